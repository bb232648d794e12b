"""Remote tables and models are fetched once for each version, and read like local ones."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from features.encoder import locate_encoder, weights_fingerprint
from jobs.build_catalog import _identities
from pipeline import fetched, gguf_cache
from pipeline import made_once as made_once_module
from pipeline.catalog_config import CatalogSettings
from pipeline.decoding_config import LanguageModelSettings
from pipeline.errors import DataError, ModelError
from pipeline.fetched import local_copy
from pipeline.mirror import Mirror
from pipeline.model_identity import model_fingerprint
from pipeline.readers import read_raw

USERS = pa.table({"user_id": ["u1", "u2"]})
ITEMS = pa.table({"item_id": ["b1", "b2"], "title": ["One", "Two"]})
EVENTS = pa.table({"user_id": ["u1"], "item_id": ["b1"], "rating": ["4"], "timestamp": ["7"]})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(fetched, "_CACHE", tmp_path / "fetched")
    return tmp_path / "fetched"


@pytest.fixture
def shop(tmp_path):
    """A user's tables: files, and a folder of parts."""
    folder = tmp_path / "shop"
    (folder / "events" / "day=1").mkdir(parents=True)
    (folder / "events" / "_temporary").mkdir()
    pacsv.write_csv(USERS, folder / "users.csv")
    pq.write_table(ITEMS, folder / "items.parquet")
    pq.write_table(EVENTS, folder / "events" / "day=1" / "a.parquet")
    (folder / "events" / "_temporary" / "b.parquet").write_bytes(b"half")
    return folder


@pytest.fixture
def remote_shop(shop, bucket):
    upload(shop, f"{bucket}/data")
    return f"{bucket}/data"


def upload(folder, uri):
    for file in folder.rglob("*"):
        if file.is_file():
            Mirror(uri).upload(file, file.relative_to(folder).as_posix())


def settings_of(place):
    return CatalogSettings.model_validate(
        {
            "tables": {
                "users": {"path": f"{place}/users.csv"},
                "items": {"path": f"{place}/items.parquet"},
                "interactions": {"path": f"{place}/events"},
            }
        }
    )


def test_remote_tables_are_read_like_local_ones(shop, remote_shop, cache):
    assert read_raw(settings_of(remote_shop)) == read_raw(settings_of(shop))


def test_the_identity_of_a_table_is_its_name_and_content_wherever_it_was_fetched(
    remote_shop, cache, monkeypatch
):
    first = _identities(settings_of(remote_shop))
    assert [one["path"] for one in first] == [
        "users.csv",
        "items.parquet",
        "events/day=1/a.parquet",
    ]
    monkeypatch.setattr(fetched, "_CACHE", cache.parent / "another")
    assert _identities(settings_of(remote_shop)) == first
    Mirror(remote_shop).write("users.csv", b"user_id\nu9\n")
    assert _identities(settings_of(remote_shop))[0] != first[0]


def test_a_version_is_fetched_once(remote_shop, cache, object_store):
    folder = local_copy(f"{remote_shop}/events")
    object_store.seen.clear()
    assert local_copy(f"{remote_shop}/events") == folder
    assert not [path for method, path in object_store.seen if method == "GET" and "parquet" in path]
    Mirror(remote_shop).write("events/day=2/c.parquet", b"more")
    assert (local_copy(f"{remote_shop}/events") / "day=2" / "c.parquet").read_bytes() == b"more"


def test_a_fetch_that_died_leaves_nothing_that_could_be_taken_for_a_copy(
    remote_shop, cache, monkeypatch
):
    real = Mirror.download

    def dying(mirror, info, target):
        if target.name == "b.parquet":
            real(mirror, info, target)
            return
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "download", dying)
        with pytest.raises(KeyboardInterrupt):
            local_copy(f"{remote_shop}/events")
    assert not list(cache.iterdir())  # a disk that was full has room again
    assert (local_copy(f"{remote_shop}/events") / "day=1" / "a.parquet").is_file()


def test_what_a_killed_fetch_left_is_removed_by_the_next(remote_shop, cache, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 4242)
        patch.setattr(made_once_module.shutil, "rmtree", lambda *_, **__: None)  # nobody cleans up
        patch.setattr(Mirror, "download", lambda _, info, target: left(target))
        with pytest.raises(KeyboardInterrupt):
            local_copy(f"{remote_shop}/events")
    assert list(cache.rglob("b.parquet"))
    folder = local_copy(f"{remote_shop}/events")
    assert list(cache.iterdir()) == [folder.parent]
    assert (folder / "_temporary" / "b.parquet").read_bytes() == b"half"


def left(target):
    target.parent.mkdir(parents=True)
    target.write_bytes(b"less")
    raise KeyboardInterrupt


def test_many_who_want_the_same_at_once_fetch_it_once(remote_shop, cache, object_store):
    object_store.seen.clear()
    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(local_copy, [f"{remote_shop}/items.parquet"] * 8))
    assert len(folders) == 1
    assert pq.read_table(folders.pop()) == ITEMS
    assert sum(method == "GET" and "parquet" in path for method, path in object_store.seen) == 1


def test_a_folder_that_cannot_be_put_in_its_place_is_an_error(remote_shop, cache, monkeypatch):
    real = Path.rename

    def rename(path, target):
        if path.is_dir():
            raise PermissionError(f"{target} may not be made")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(PermissionError):
        local_copy(f"{remote_shop}/users.csv")
    assert not list(cache.iterdir())


def test_a_model_that_is_converted_is_made_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_cache, "_CACHE", tmp_path / "models")
    errors = [OSError(errno.ENOSPC, "full"), OSError("rotten"), None]

    def convert(file, dtype, folder):
        (folder / "weights").write_text(dtype)
        if error := errors.pop(0):
            raise error

    monkeypatch.setattr(gguf_cache, "_convert", convert)
    for kind, words in (
        (OSError, "full"),
        (ModelError, r"a\.gguf cannot be read as a GGUF .*rotten"),
    ):
        with pytest.raises(kind, match=words):
            gguf_cache.converted_folder(Path("a.gguf"), "float32", "f00")
        assert not list((tmp_path / "models").iterdir())
    for _ in range(2):
        folder = gguf_cache.converted_folder(Path("a.gguf"), "float32", "f00")
        assert folder == tmp_path / "models" / "a-f00"
        assert (folder / "weights").read_text() == "float32"


def test_what_is_not_there_is_named(bucket, cache):
    with pytest.raises(DataError, match=rf"{bucket}/nowhere does not exist; correct the URI"):
        local_copy(f"{bucket}/nowhere")
    with pytest.raises(DataError, match="no such bucket"):
        local_copy("s3://no-such-shop/users.csv")


def test_a_model_has_the_same_identity_wherever_it_lies_and_no_code_is_fetched(
    tmp_path, bucket, cache
):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    (model / "config.json").write_text("{}")
    (model / "modeling_own.py").write_text("raise SystemExit")
    upload(model, f"{bucket}/models/llm")
    remote = f"{bucket}/models/llm"
    local, there = (LanguageModelSettings(path=str(place)) for place in (model, remote))
    assert model_fingerprint(local) == model_fingerprint(there)
    assert weights_fingerprint(locate_encoder(remote)) == weights_fingerprint(model)
    assert not list(cache.rglob("*.py"))
    assert len(list(cache.iterdir())) == 1
