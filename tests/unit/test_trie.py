"""Suffix arrays and their search against lists and dictionaries."""

import hashlib
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval_pools import compiled
from retrieval_pools.compiled import CHILD, COMPILED_FILES, Index
from retrieval_pools.suffix_array import SEPARATOR, join, sort_suffixes
from retrieval_pools.trie import children, find, longest_match

DEPTH = 6
UNKNOWN = 99

# Few distinct tokens, so that documents repeat themselves and each other.
tokens = st.integers(0, 3)
documents = st.lists(st.lists(tokens, min_size=1, max_size=12), max_size=8)
contexts = st.lists(st.one_of(tokens, st.just(UNKNOWN)), min_size=1, max_size=DEPTH - 1)


def build(texts: list[list[int]], depth: int = DEPTH) -> Index:
    joined = join([np.array(text, np.int32) for text in texts])
    return Index(frozen(joined), frozen(sort_suffixes(joined, depth)))


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def key(joined: list[int], place: int, depth: int) -> tuple[int, ...]:
    """What a suffix is sorted by: its tokens up to the end of its document."""
    end = joined.index(SEPARATOR, place + 1)
    return tuple(joined[place : min(end, place + depth)])


def occurrences(texts: list[list[int]], wanted: list[int]) -> list[tuple[int, int]]:
    """(document, place after it) of every occurrence of a non-empty token sequence."""
    return [
        (number, start + len(wanted))
        for number, text in enumerate(texts)
        for start in range(len(text) - len(wanted) + 1)
        if text[start : start + len(wanted)] == wanted
    ]


def next_tokens(texts: list[list[int]], wanted: list[int]) -> Counter[int]:
    places = occurrences(texts, wanted)
    return Counter(texts[number][place] for number, place in places if place < len(texts[number]))


def found_children(
    index: Index, interval: tuple[int, int], depth: int, probes: int = 48
) -> dict[int, int]:
    found = np.empty(probes, CHILD)
    count = children(index, *interval, depth, probes, found)
    return {int(child["token"]): int(child["hi"] - child["lo"]) for child in found[:count]}


def match(index: Index, context: list[int], hint: int = 0) -> tuple[int, int, int]:
    ids = np.array(context, np.int32)
    return longest_match(index, 0, len(index.suffixes), ids, 0, len(ids), hint)


@given(documents, st.integers(2, 9))
def test_suffixes_are_sorted_by_their_tokens_and_then_by_place(texts, depth):
    index = build(texts, depth)
    joined = index.text.tolist()
    expected = sorted(range(len(joined) - 1), key=lambda place: (key(joined, place, depth), place))
    assert index.suffixes.tolist() == expected
    assert index.suffixes.dtype == index.text.dtype == np.int32


@given(documents, contexts, st.integers(0, DEPTH))
def test_the_longest_match_is_the_longest_suffix_that_occurs(texts, context, hint):
    index = build(texts)
    length, lo, hi = match(index, context, hint)
    counts = {size: len(occurrences(texts, context[-size:])) for size in range(1, len(context) + 1)}
    expected = max((size for size, count in counts.items() if count), default=0)
    assert length == expected
    assert hi - lo == (counts[length] if length else 0)


@given(documents, contexts)
def test_children_are_the_next_tokens_with_their_counts(texts, context):
    index = build(texts)
    length, lo, hi = match(index, context)
    if length:
        expected = next_tokens(texts, context[len(context) - length :])
        assert found_children(index, (lo, hi), length) == expected


@given(documents)
def test_children_of_the_whole_array_are_the_tokens_and_never_a_separator(texts):
    index = build(texts)
    expected = Counter(token for text in texts for token in text)
    assert found_children(index, (0, len(index.suffixes)), 0) == expected


@given(documents, st.lists(tokens, max_size=4))
def test_the_starts_of_documents_form_one_interval(texts, beginning):
    index = build(texts)
    ids = np.array(beginning, np.int32)
    lo, hi = find(index, 0, len(texts), 1, ids, 0, len(ids))
    starting = [text for text in texts if text[: len(beginning)] == beginning]
    assert hi - lo == len(starting)
    following = Counter(text[len(beginning)] for text in starting if len(text) > len(beginning))
    assert found_children(index, (lo, hi), 1 + len(beginning)) == following


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([16, 48]))
def test_common_children_of_a_large_node_are_found_by_a_bounded_number_of_probes(seed, probes):
    rng = np.random.default_rng(seed)
    following = (rng.zipf(1.3, 3000) % 700).astype(np.int32)
    index = build([[1000, int(token)] for token in following])
    interval = find(index, 0, len(index.suffixes), 0, np.array([1000], np.int32), 0, 1)
    found = found_children(index, interval, 1, probes)
    counts = Counter(following.tolist())
    assert len(found) <= probes
    assert found.items() <= counts.items()
    common = {token for token, count in counts.items() if count >= len(following) / probes}
    assert common <= found.keys()


def test_equal_suffixes_keep_the_order_of_their_documents():
    index = build([[7, 8], [7, 8], [7, 8]])
    length, lo, hi = match(index, [7, 8])
    assert length == 2
    assert index.suffixes[lo:hi].tolist() == [1, 4, 7]


@pytest.mark.parametrize("texts", [[], [[5]], [[5], [5]], [[5] * 40]])
def test_tiny_and_monotonous_documents_work(texts):
    index = build(texts)
    expected = sum(max(0, len(text) - 1) for text in texts)
    length, lo, hi = match(index, [5])
    assert length == (1 if texts else 0)
    assert sum(found_children(index, (lo, hi), 1).values()) == expected


def test_a_match_never_spans_two_documents():
    index = build([[1, 2], [3, 4]])
    assert match(index, [2, 3])[0] == 1
    assert found_children(index, match(index, [1, 2])[1:], 2) == {}


def test_numba_notices_a_change_of_any_file_with_compiled_code():
    """Its cache watches only the outermost kernel's file; the digest of all is in the names."""
    folder = Path(compiled.__file__).parent
    sources = {path.name: path.read_text() for path in folder.glob("*.py")}
    kernels = [name for name, source in sources.items() if "@kernel(" in source]
    assert len(kernels) > 1
    used = {
        f"{module}.py"
        for name in kernels
        for module in re.findall(r"^from retrieval_pools\.(\w+) import", sources[name], re.M)
    }
    assert {*kernels, *used} <= set(COMPILED_FILES)
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in COMPILED_FILES))
    assert digest.hexdigest()[:12] in find.py_func.__qualname__
