"""Pools on disk: the same answers after opening, and no answer from a file that is not right."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DataError
from retrieval_pools.document import Document
from retrieval_pools.eviction import size_of
from retrieval_pools.pool import PoolSet, build_pools
from retrieval_pools.pool_folder import open_pools, save_pools

ARRAYS = ("tokens", "group_suffixes", "global_suffixes", "group_marks", "global_marks")
FILES = (*(f"{name}.npy" for name in ARRAYS), "pools.json")


def texts(count: int, seed: int = 0, length: int = 40, relaxed: int = 0) -> list[Document]:
    """Random texts, of which the last are `relaxed`."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, 50, length).astype(np.int32) for _ in range(count)]
    return [Document(text, number >= count - relaxed) for number, text in enumerate(made)]


def two_groups() -> dict[str, list[Document]]:
    return {"c": texts(7, seed=1), "b": [], "a": texts(5, relaxed=2)}


def size(documents: list[Document]) -> int:
    return sum(size_of(len(document.token_ids) + 1) for document in documents)


@pytest.fixture
def pools() -> PoolSet:
    return build_pools(two_groups(), depth=8, max_bytes=100_000)


@pytest.fixture
def folder(pools: PoolSet, tmp_path: Path) -> Path:
    save_pools(pools, tmp_path, "tokenizer-1", "model-1")
    return tmp_path


def test_the_manifest_names_the_model_and_the_contents_of_every_group(folder):
    manifest = json.loads((folder / "pools.json").read_text())
    assert (manifest["format"], manifest["model"]) == (2, "model-1")
    group = manifest["groups"]["a"]
    assert [group[f"num_{name}"] for name in ("documents", "relaxed", "tokens")] == [5, 2, 200]


def test_opening_gives_what_was_saved_without_copying_it(pools, folder):
    opened = open_pools(folder, "tokenizer-1")
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
    save_pools(build_pools(documents, 8, 100_000), again, "tokenizer-1", "model-1")
    for name in FILES:
        assert (again / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("documents", [{}, {"a": []}, {"a": [Document(np.empty(0, np.int32))]}])
def test_no_text_makes_an_empty_pool_that_can_be_stored(documents, tmp_path):
    save_pools(build_pools(documents, depth=8, max_bytes=100), tmp_path, "t")
    opened = open_pools(tmp_path, "t")
    assert opened.num_tokens == opened.num_documents == len(opened.global_suffixes) == 0
    assert opened.bytes_per_token == 0.0
    assert all(opened.texts(group) == [] for group in documents)


@pytest.mark.parametrize("relaxed", [0, 30])
@pytest.mark.parametrize("length", [4, 40, 400])
def test_all_indexes_together_take_at_most_16_bytes_a_token(length, relaxed, tmp_path):
    documents = texts(30, length=length, relaxed=relaxed)
    pools = build_pools({"a": documents}, depth=24, max_bytes=10**6)
    save_pools(pools, tmp_path, "t")
    stored = sum((tmp_path / f"{name}.npy").stat().st_size for name in ARRAYS)
    headers = len(ARRAYS) * 128
    assert pools.bytes_per_token == pytest.approx((stored - headers) / pools.num_tokens)
    assert pools.bytes_per_token <= 16.0
    # The closing separator and two last words are all that eviction does not reckon with.
    assert stored - headers <= size(documents) + 4 + 2 * 16


def test_pools_of_another_tokenizer_are_refused(folder):
    with pytest.raises(DataError, match=r"pools\.json.*tokenizer-1.*tokenizer-2"):
        open_pools(folder, "tokenizer-2")


def test_pools_of_an_earlier_format_are_refused_with_the_remedy(folder):
    path = folder / "pools.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    with pytest.raises(DataError, match=r"pools\.json .* format 2; .*run `laser pools` again"):
        open_pools(folder, "tokenizer-1")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(DataError, match=name):
        open_pools(folder, "tokenizer-1")


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=f"{name} is damaged"):
        open_pools(folder, "tokenizer-1")


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_is_noticed(folder, name):
    path = folder / name
    content = bytearray(path.read_bytes())
    place = content.index(b'"depth": 8') + 9 if name == "pools.json" else len(content) - 2
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{name} is damaged"):
        open_pools(folder, "tokenizer-1")


@pytest.mark.parametrize("manifest", [[], {}, {"format": 1}, {"format": 99}])
def test_a_manifest_of_another_kind_is_refused(folder, manifest):
    (folder / "pools.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"pools\.json is not a manifest of pools in format 2"):
        open_pools(folder, "tokenizer-1")


def rewritten(folder: Path, **changes) -> None:
    """A manifest with other entries, under a checksum that fits."""
    path = folder / "pools.json"
    manifest = {**json.loads(path.read_text()), **changes}
    manifest = {name: value for name, value in manifest.items() if value is not None}
    manifest.pop("checksum")
    text = json.dumps(manifest, sort_keys=True).encode()
    path.write_text(json.dumps(manifest | {"checksum": hashlib.sha256(text).hexdigest()}))


def replaced(folder: Path, name: str, array: np.ndarray) -> None:
    """Another array under a checksum that fits."""
    np.save(folder / f"{name}.npy", array)
    manifest = json.loads((folder / "pools.json").read_text())
    digest = hashlib.sha256((folder / f"{name}.npy").read_bytes()).hexdigest()
    rewritten(folder, sha256=manifest["sha256"] | {name: digest})


@pytest.mark.parametrize("entry", ["depth", "groups", "sha256"])
def test_a_manifest_that_lacks_an_entry_is_refused_whatever_its_checksum(folder, entry):
    rewritten(folder, **{entry: None})
    with pytest.raises(DataError, match=rf"pools\.json lacks or adds an entry.*{entry}"):
        open_pools(folder, "tokenizer-1")


def test_a_group_beyond_the_arrays_is_refused(folder):
    groups = json.loads((folder / "pools.json").read_text())["groups"]
    groups["c"]["last"] = 10**9
    rewritten(folder, groups=groups)
    with pytest.raises(DataError, match="do not fit each other"):
        open_pools(folder, "tokenizer-1")


@pytest.mark.parametrize("depth", [1, "8"])
def test_a_depth_that_is_none_is_refused(folder, depth):
    rewritten(folder, depth=depth)
    with pytest.raises(DataError, match="do not fit each other"):
        open_pools(folder, "tokenizer-1")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, change) for name in ARRAYS for change in ("type", "shape")),
        *((name, "shorter") for name in ARRAYS if name != "global_suffixes"),  # bounded by itself
        *((name, "beyond") for name in ARRAYS if name.endswith("suffixes")),
    ],
)
def test_arrays_that_kernels_would_read_beyond_are_refused(folder, name, change):
    array = np.load(folder / f"{name}.npy")
    changes = {
        "type": array.astype(np.float32),
        "shape": array.reshape(1, -1),
        "shorter": array[:-3],
        "beyond": np.append(array[:-1], array.dtype.type(10**6)),
    }
    replaced(folder, name, changes[change])
    with pytest.raises(DataError, match="do not fit each other"):
        open_pools(folder, "tokenizer-1")


def test_json_that_is_nested_without_end_is_damaged(folder):
    (folder / "pools.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="damaged"):
        open_pools(folder, "tokenizer-1")
