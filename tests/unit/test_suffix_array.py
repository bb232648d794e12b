"""Sorting suffixes, against comparing them one by one; searches are in test_trie."""

import numpy as np
import pytest

from retrieval_pools.suffix_array import SEPARATOR, join, sort_suffixes


def by_comparison(tokens: np.ndarray, depth: int) -> list[int]:
    text = tokens.tolist()
    ends = [place for place, token in enumerate(text) if token == SEPARATOR]

    def key(place: int) -> tuple[list[int], int]:
        end = next(end for end in ends if end > place)
        return text[place : min(end, place + depth)], place

    return sorted(range(len(text) - 1), key=key)


def random_texts(seed: int, count: int, length: int, vocabulary: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, vocabulary, length).astype(np.int32) for _ in range(count)]


@pytest.mark.parametrize("vocabulary", [1, 2, 50, 2**31 - 1])
@pytest.mark.parametrize("depth", [1, 2, 7, 64])
def test_long_runs_are_sorted_as_comparison_sorts_them(vocabulary, depth):
    tokens = join(random_texts(depth, count=12, length=60, vocabulary=vocabulary))
    assert sort_suffixes(tokens, depth).tolist() == by_comparison(tokens, depth)


def test_texts_that_are_all_the_same_stand_in_their_order():
    tokens = join(random_texts(0, 1, 50, 30) * 40)
    assert sort_suffixes(tokens, 24).tolist() == by_comparison(tokens, 24)


def test_no_text_has_no_suffix():
    assert sort_suffixes(join([]), 8).tolist() == []


def test_the_tokens_stay_as_they_are():
    tokens = join(random_texts(1, 5, 20, 4))
    before = tokens.copy()
    sort_suffixes(tokens, 8)
    assert np.array_equal(tokens, before)
    assert tokens.flags.writeable
