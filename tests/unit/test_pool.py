"""Pools on disk: the same answers after opening, and no answer from a file that is not right."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DataError
from retrieval_pools.pool import PoolSet, build_pools
from retrieval_pools.suffix_array import SEPARATOR

ARRAYS = ("tokens", "group_suffixes", "global_suffixes")
FILES = (*(f"{name}.npy" for name in ARRAYS), "pools.json")


def texts(count: int, seed: int = 0, length: int = 40) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50, length).astype(np.int32) for _ in range(count)]


@pytest.fixture
def pools() -> PoolSet:
    return build_pools({"a": texts(5), "b": [], "c": texts(7, seed=1)}, depth=8, max_tokens=10_000)


@pytest.fixture
def folder(pools: PoolSet, tmp_path: Path) -> Path:
    pools.save(tmp_path, "tokenizer-1")
    return tmp_path


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


def as_tuples(documents: list[np.ndarray]) -> list[tuple[int, ...]]:
    return sorted(tuple(document.tolist()) for document in documents)


def test_every_group_indexes_its_own_documents_and_the_global_pool_all(pools):
    assert group_contents(pools, "a") == as_tuples(texts(5))
    assert group_contents(pools, "b") == []
    assert group_contents(pools, "c") == as_tuples(texts(7, seed=1))
    assert contents(pools, pools.global_suffixes) == as_tuples(texts(5) + texts(7, seed=1))


def test_a_group_is_sorted_as_if_it_were_alone(pools):
    alone = build_pools({"c": texts(7, seed=1)}, depth=8, max_tokens=10_000)
    pool = pools.groups["c"]
    shift = np.flatnonzero(pools.tokens == SEPARATOR)[5]  # the five documents of "a" come first
    assert np.array_equal(
        pools.group_suffixes[pool.first : pool.last] - shift, alone.global_suffixes
    )


def test_opening_gives_what_was_saved_without_copying_it(pools, folder):
    opened = PoolSet.open(folder, "tokenizer-1")
    assert opened.depth == pools.depth
    assert opened.groups == pools.groups
    for name in ARRAYS:
        array = getattr(opened, name)
        assert np.array_equal(array, getattr(pools, name))
        assert array.dtype == np.int32
        assert not array.flags.writeable
        assert isinstance(array.base, np.memmap)


def test_the_same_documents_give_the_same_files(pools, folder, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    documents = {"c": texts(7, seed=1), "b": [], "a": texts(5)}
    build_pools(documents, depth=8, max_tokens=10_000).save(again, "tokenizer-1")
    for name in FILES:
        assert (again / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("documents", [{}, {"a": []}, {"a": [np.empty(0, np.int32)]}])
def test_no_text_makes_an_empty_pool_that_can_be_stored(documents, tmp_path):
    build_pools(documents, depth=8, max_tokens=100).save(tmp_path, "t")
    opened = PoolSet.open(tmp_path, "t")
    assert opened.num_tokens == opened.num_documents == len(opened.global_suffixes) == 0
    assert opened.bytes_per_token == 0.0


@pytest.mark.parametrize("length", [4, 40, 400])
def test_all_indexes_together_take_at_most_16_bytes_a_token(length, tmp_path):
    pools = build_pools({"a": texts(30, length=length)}, depth=24, max_tokens=10**6)
    pools.save(tmp_path, "t")
    stored = sum((tmp_path / f"{name}.npy").stat().st_size for name in ARRAYS)
    headers = 3 * 128
    assert pools.bytes_per_token == pytest.approx((stored - headers) / pools.num_tokens)
    assert pools.bytes_per_token <= 16.0


def test_a_pool_that_overflows_loses_its_oldest_documents(caplog):
    documents = texts(5)
    with caplog.at_level(logging.INFO, "retrieval_pools.pool"):
        pools = build_pools({"a": documents, "b": texts(1, seed=2)}, depth=8, max_tokens=99)
    assert group_contents(pools, "a") == as_tuples(documents[3:])
    assert group_contents(pools, "b") == as_tuples(texts(1, seed=2))
    assert "pool a: the oldest 3 of 5 texts left out" in caplog.text
    assert "pool b" not in caplog.text


def test_the_global_pool_has_the_same_bound_and_every_group_its_share():
    first, second = texts(4), texts(2, seed=3)
    pools = build_pools({"a": first, "b": second}, depth=8, max_tokens=160)
    assert group_contents(pools, "a") == as_tuples(first)
    assert contents(pools, pools.global_suffixes) == as_tuples([*first[2:], second[1]])


@pytest.mark.parametrize("bad", [np.array([3, -1]), np.array([[1, 2]]), np.array([0.5])])
def test_a_document_that_is_not_token_ids_is_refused_by_name(bad):
    with pytest.raises(DataError, match="pool users: document 1 "):
        build_pools({"users": [*texts(1), bad]}, depth=8, max_tokens=100)


def test_pools_of_another_tokenizer_are_refused(folder):
    with pytest.raises(DataError, match=r"pools\.json.*tokenizer-1.*tokenizer-2"):
        PoolSet.open(folder, "tokenizer-2")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(DataError, match=name):
        PoolSet.open(folder, "tokenizer-1")


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=f"{name} is damaged"):
        PoolSet.open(folder, "tokenizer-1")


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_is_noticed(folder, name):
    path = folder / name
    content = bytearray(path.read_bytes())
    place = content.index(b'"depth": 8') + 9 if name == "pools.json" else len(content) - 2
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{name} is damaged"):
        PoolSet.open(folder, "tokenizer-1")


@pytest.mark.parametrize("manifest", [[], {}, {"format": 99}])
def test_a_manifest_of_another_kind_is_refused(folder, manifest):
    (folder / "pools.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"pools\.json is not a manifest of pools in format 1"):
        PoolSet.open(folder, "tokenizer-1")
