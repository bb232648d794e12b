"""Pools on disk: the same answers after opening, and no answer from a file that is not right."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DataError
from retrieval_pools.document import Document
from retrieval_pools.eviction import size_of
from retrieval_pools.marks import marked
from retrieval_pools.pool import PoolSet, build_pools
from retrieval_pools.suffix_array import SEPARATOR

ARRAYS = ("tokens", "group_suffixes", "global_suffixes", "group_marks", "global_marks")
FILES = (*(f"{name}.npy" for name in ARRAYS), "pools.json")


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


@pytest.fixture
def folder(pools: PoolSet, tmp_path: Path) -> Path:
    pools.save(tmp_path, "tokenizer-1", "model-1")
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


def test_the_manifest_names_the_model_and_the_contents_of_every_group(folder):
    manifest = json.loads((folder / "pools.json").read_text())
    assert (manifest["format"], manifest["model"]) == (2, "model-1")
    group = manifest["groups"]["a"]
    assert [group[f"num_{name}"] for name in ("documents", "relaxed", "tokens")] == [5, 2, 200]


def test_opening_gives_what_was_saved_without_copying_it(pools, folder):
    opened = PoolSet.open(folder, "tokenizer-1")
    assert opened.depth == pools.depth
    assert opened.groups == pools.groups
    for name in ARRAYS:
        array = getattr(opened, name)
        assert np.array_equal(array, getattr(pools, name))
        assert array.dtype == (np.int64 if name.endswith("marks") else np.int32)
        assert not array.flags.writeable
        assert isinstance(array.base, np.memmap)


def test_the_same_documents_give_the_same_files(pools, folder, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    documents = dict(sorted(two_groups().items()))
    build_pools(documents, depth=8, max_bytes=100_000).save(again, "tokenizer-1", "model-1")
    for name in FILES:
        assert (again / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("documents", [{}, {"a": []}, {"a": [Document(np.empty(0, np.int32))]}])
def test_no_text_makes_an_empty_pool_that_can_be_stored(documents, tmp_path):
    build_pools(documents, depth=8, max_bytes=100).save(tmp_path, "t")
    opened = PoolSet.open(tmp_path, "t")
    assert opened.num_tokens == opened.num_documents == len(opened.global_suffixes) == 0
    assert opened.bytes_per_token == 0.0
    assert all(opened.texts(group) == [] for group in documents)


@pytest.mark.parametrize("relaxed", [0, 30])
@pytest.mark.parametrize("length", [4, 40, 400])
def test_all_indexes_together_take_at_most_16_bytes_a_token(length, relaxed, tmp_path):
    documents = texts(30, length=length, relaxed=relaxed)
    pools = build_pools({"a": documents}, depth=24, max_bytes=10**6)
    pools.save(tmp_path, "t")
    stored = sum((tmp_path / f"{name}.npy").stat().st_size for name in ARRAYS)
    headers = len(ARRAYS) * 128
    assert pools.bytes_per_token == pytest.approx((stored - headers) / pools.num_tokens)
    assert pools.bytes_per_token <= 16.0
    # The closing separator and two last words are all that eviction does not reckon with.
    assert stored - headers <= size(documents) + 4 + 2 * 16


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


@pytest.mark.parametrize("bad", [np.array([3, -1]), np.array([[1, 2]]), np.array([0.5])])
def test_a_document_that_is_not_token_ids_is_refused_by_name(bad):
    with pytest.raises(DataError, match="pool users: document 1 "):
        build_pools({"users": [*texts(1), Document(bad)]}, depth=8, max_bytes=100)


def test_pools_of_another_tokenizer_are_refused(folder):
    with pytest.raises(DataError, match=r"pools\.json.*tokenizer-1.*tokenizer-2"):
        PoolSet.open(folder, "tokenizer-2")


def test_pools_of_an_earlier_format_are_refused_with_the_remedy(folder):
    path = folder / "pools.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    with pytest.raises(
        DataError, match=r"pools\.json .* format 2; .*run the job build_pools again"
    ):
        PoolSet.open(folder, "tokenizer-1")


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


@pytest.mark.parametrize("manifest", [[], {}, {"format": 1}, {"format": 99}])
def test_a_manifest_of_another_kind_is_refused(folder, manifest):
    (folder / "pools.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"pools\.json is not a manifest of pools in format 2"):
        PoolSet.open(folder, "tokenizer-1")
