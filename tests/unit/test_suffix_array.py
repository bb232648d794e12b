"""Sorting suffixes, against comparing them one by one; searches are in test_trie."""

import time

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


def seconds_to_sort(texts: list[np.ndarray]) -> float:
    tokens = join(texts)
    times = []
    for _ in range(3):
        began = time.process_time()
        sort_suffixes(tokens, 24)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize("count", [1, 15])
def test_a_template_with_strays_at_its_end_is_sorted_in_no_square_of_its_size(count):
    template = np.arange(100, 116, dtype=np.int32)
    strays = [np.append(template[:place], np.int32(5)) for place in range(count, 0, -1)]
    small, large = (seconds_to_sort([template] * size + strays) for size in (4_000, 32_000))
    assert large < 8 * 4 * small


def test_one_text_of_equal_tokens_is_sorted_in_no_square_of_its_size():
    small, large = (seconds_to_sort([np.full(size, 7, np.int32)]) for size in (4_000, 32_000))
    assert large < 8 * 4 * small


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_the_places_are_sorted_as_in_the_whole(seed):
    tokens = join(random_texts(seed, 9, 300, 3))
    places = np.flatnonzero(np.random.default_rng(seed).random(len(tokens) - 1) < 0.4)
    chosen = set(places.tolist())
    expected = [place for place in sort_suffixes(tokens, 24).tolist() if place in chosen]
    assert sort_suffixes(tokens, 24, places.astype(np.int32)).tolist() == expected


def test_no_text_has_no_suffix():
    assert sort_suffixes(join([]), 8).tolist() == []


def test_the_tokens_stay_as_they_are():
    tokens = join(random_texts(1, 5, 20, 4))
    before = tokens.copy()
    sort_suffixes(tokens, 8)
    assert np.array_equal(tokens, before)
    assert tokens.flags.writeable
