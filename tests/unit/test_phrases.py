"""Phrases said most, against counting them all."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retrieval_pools.phrases import top_phrases
from retrieval_pools.suffix_array import join, sort_suffixes

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), max_size=6)


def found(texts: list[list[int]], depth: int, count: int, shortest: int = 4):
    joined = join([np.array(text, np.int32) for text in texts])
    phrases = top_phrases(joined, sort_suffixes(joined, depth), depth, count, shortest)
    return [(tuple(phrase.token_ids.tolist()), phrase.count) for phrase in phrases]


def counted(texts: list[list[int]], shortest: int) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        for start in range(len(text)):
            counts.update(tuple(text[start:end]) for end in range(start + shortest, len(text) + 1))
    return counts


def stands_in(phrase: tuple[int, ...], longer: tuple[int, ...]) -> bool:
    size = len(phrase)
    return any(longer[at : at + size] == phrase for at in range(len(longer) - size + 1))


@given(texts, st.integers(1, 5))
def test_all_phrases_that_no_longer_one_stands_for_are_found_by_count(texts, shortest):
    counts = {phrase: count for phrase, count in counted(texts, shortest).items() if count > 1}
    expected = {
        phrase: count
        for phrase, count in counts.items()
        if not any(
            longer != phrase and counts[longer] == count and stands_in(phrase, longer)
            for longer in counts
        )
    }
    listed = found(texts, 24, 10**6, shortest)
    assert dict(listed) == expected
    assert len(listed) == len(expected)
    keys = [(-count, -len(phrase)) for phrase, count in listed]
    assert keys == sorted(keys)
    assert found(texts, 24, 3, shortest) == listed[:3]


@given(texts, st.integers(4, 6))
def test_the_depth_of_the_order_bounds_no_count_and_cuts_no_phrase(texts, depth):
    counts = counted(texts, 4)
    listed = found(texts, depth, 10**6)
    for phrase, count in listed:
        assert counts[phrase] == count > 1
        for other, as_often in listed:
            assert other == phrase or as_often != count or not stands_in(phrase, other)
    if found(texts, 24, 1):
        assert listed[0][1] == found(texts, 24, 1)[0][1]


def test_a_sentence_longer_than_the_order_is_one_phrase():
    sentence = list(range(10, 60))
    listed = found([[1, *sentence, 2], [3, *sentence], [*sentence, 4]], 6, 5)
    assert listed == [(tuple(sentence), 3)]


def test_a_phrase_that_is_said_more_often_than_the_sentence_around_it_is_listed_too():
    listed = found([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 9]], 24, 5)
    assert listed == [((2, 3, 4, 5), 3), ((1, 2, 3, 4, 5, 6), 2)]


def test_nothing_said_twice_gives_nothing():
    assert found([], 24, 5) == []
    assert found([[1, 2, 3, 4, 5]], 24, 5) == []
