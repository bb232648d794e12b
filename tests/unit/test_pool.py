"""What pools hold: whose texts, in which order, and what leaves."""

import logging

import numpy as np
import pytest

from pipeline.errors import DataError
from retrieval_pools.document import Document
from retrieval_pools.eviction import size_of
from retrieval_pools.marks import marked
from retrieval_pools.pool import PoolSet, build_pools
from retrieval_pools.suffix_array import SEPARATOR


def texts(count: int, seed: int = 0, length: int = 40, relaxed: int = 0) -> list[Document]:
    """Random texts, of which the last are `relaxed`."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, 50, length).astype(np.int32) for _ in range(count)]
    return [Document(text, number >= count - relaxed) for number, text in enumerate(made)]


def unlike(first: int, count: int) -> list[Document]:
    """Texts that share no token, each of a wave of its own."""
    starts = range(40 * first, 40 * (first + count), 40)
    return [Document(np.arange(start, start + 40), wave=n) for n, start in enumerate(starts)]


def two_groups() -> dict[str, list[Document]]:
    return {"c": texts(7, seed=1), "b": [], "a": texts(5, relaxed=2)}


@pytest.fixture
def pools() -> PoolSet:
    return build_pools(two_groups(), depth=8, max_bytes=100_000)


def contents(pools: PoolSet, suffixes: np.ndarray) -> list[tuple[int, ...]]:
    """Documents that an index covers, told by the separators among its suffixes."""
    ends = np.flatnonzero(pools.tokens == SEPARATOR)
    starts = suffixes[pools.tokens[suffixes] == SEPARATOR]
    return sorted(
        tuple(pools.tokens[start + 1 : ends[ends > start][0]].tolist()) for start in starts
    )


def group_contents(pools: PoolSet, name: str) -> list[tuple[int, ...]]:
    pool = pools.groups[name]
    return contents(pools, pools.group_suffixes[pool.first : pool.last])


def as_tuples(documents: list[Document]) -> list[tuple[int, ...]]:
    return sorted(tuple(document.token_ids.tolist()) for document in documents)


def size(documents: list[Document]) -> int:
    """Bytes that eviction reckons with."""
    return sum(size_of(len(document.token_ids) + 1) for document in documents)


def test_every_group_indexes_its_own_documents_and_the_global_pool_all(pools):
    assert group_contents(pools, "a") == as_tuples(texts(5))
    assert group_contents(pools, "b") == []
    assert group_contents(pools, "c") == as_tuples(texts(7, seed=1))
    assert contents(pools, pools.global_suffixes) == as_tuples(texts(5) + texts(7, seed=1))


def test_a_group_is_sorted_as_if_it_were_alone(pools):
    alone = build_pools({"c": texts(7, seed=1)}, depth=8, max_bytes=100_000)
    pool = pools.groups["c"]
    shift = np.flatnonzero(pools.tokens == SEPARATOR)[5]  # the five documents of "a" come first
    assert np.array_equal(
        pools.group_suffixes[pool.first : pool.last] - shift, alone.global_suffixes
    )


def test_texts_are_given_back_as_they_came(pools):
    for name, documents in two_groups().items():
        given = pools.texts(name)
        assert [text.tolist() for text in given] == [d.token_ids.tolist() for d in documents]


def test_relaxed_documents_are_counted_and_their_suffixes_marked(pools):
    assert [pools.groups[name].num_relaxed for name in "abc"] == [2, 0, 0]
    assert pools.num_relaxed == 2
    first, *_, last = np.flatnonzero(pools.tokens == SEPARATOR)[3:6]  # around the last two of "a"
    for suffixes, marks in (
        (pools.group_suffixes, pools.group_marks),
        (pools.global_suffixes, pools.global_marks),
    ):
        for number, place in enumerate(suffixes.tolist()):
            assert marked(marks, number, number + 1) == (first <= place < last)


def test_pools_without_relaxed_text_have_no_marks():
    pools = build_pools({"a": texts(5)}, depth=8, max_bytes=100_000)
    assert len(pools.group_marks) == len(pools.global_marks) == 0


def test_a_pool_that_overflows_loses_the_least_worthy_documents(caplog):
    said_twice, others = texts(1, seed=2, length=39), texts(4)
    twins = [Document(np.append(said_twice[0].token_ids, last)) for last in (60, 61)]
    documents = [twins[0], *others, twins[1]]
    with caplog.at_level(logging.INFO, "retrieval_pools"):
        bound = size(twins)
        pools = build_pools({"a": documents, "b": said_twice}, depth=8, max_bytes=bound)
    assert group_contents(pools, "a") == as_tuples(twins)
    assert group_contents(pools, "b") == as_tuples(said_twice)
    assert "pool a: the least worthy 4 of 6 texts left out" in caplog.text
    assert "pool b" not in caplog.text


def test_the_global_pool_has_the_same_bound_and_every_group_its_share():
    first, second = unlike(0, 4), unlike(4, 2)
    pools = build_pools({"a": first, "b": second}, depth=8, max_bytes=size(first))
    assert group_contents(pools, "a") == as_tuples(first)
    assert group_contents(pools, "b") == as_tuples(second)
    assert contents(pools, pools.global_suffixes) == as_tuples([*first[2:], second[1]])


@pytest.mark.parametrize(
    "bad",
    [
        np.array([3, -1]),
        np.array([[1, 2]]),
        np.array([0.5]),
        np.array([2**32 - 1], np.uint32),
        np.array([2**32 + 5]),
    ],
)
def test_a_document_that_is_not_token_ids_is_refused_by_name(bad):
    with pytest.raises(DataError, match="pool users: document 1 "):
        build_pools({"users": [*texts(1), Document(bad)]}, depth=8, max_bytes=100)
