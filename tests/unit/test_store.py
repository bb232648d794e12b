"""The store: a dataset is complete or absent, and nothing that was made is ever deleted."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import parts as parts_module
from pipeline import store as store_module
from pipeline.config import EmbeddingSettings
from pipeline.errors import DataError
from pipeline.schemas import FEATURES, KNOWLEDGE, USERS
from pipeline.store import MANIFEST, Store, fingerprint


def make_users(*ids):
    rows = [{"user_id": user, "attributes": [("age", "30")]} for user in ids]
    return pa.Table.from_pylist(rows, schema=USERS)


def make_features(*vectors):
    rows = [
        {f.name: 0 if f.type == pa.int64() else "x" for f in FEATURES} | {"vector": vector}
        for vector in vectors
    ]
    return pa.Table.from_pylist(rows, schema=FEATURES)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


class Killed(BaseException):
    """Stands for a process that ends here: nothing may catch it."""


def kill(*_):
    raise Killed


def kill_before_a_part_is_renamed(path):
    """Stands in for `sync`."""
    if path.name.startswith("part-"):
        raise Killed


def set_aside_folders(store):
    return sorted(store.root.glob("superseded/*"))


def test_a_dataset_is_read_as_it_was_written_with_its_manifest(store):
    plan = store.plan("users", {"seed": 1})
    assert not plan.is_done
    plan.write(make_users("u1", "u2"), {"note": "fine"})
    assert plan.is_done
    assert store.read("users") == make_users("u1", "u2")
    manifest = store.require("users")
    assert manifest.dataset == "users"
    assert manifest.num_rows == 2
    assert manifest.settings == {"seed": 1}
    assert manifest.facts == {"note": "fine"}
    assert {path.name for path in store.path("users").iterdir()} == {"part-00000.parquet", MANIFEST}


def test_an_empty_table_is_a_dataset_too(store):
    store.plan("users", {}).write(make_users())
    assert store.read("users").num_rows == 0


def test_a_dataset_that_was_not_made_says_so(store):
    for attempt in (lambda: store.read("users"), lambda: store.plan("items", {}, ["users"])):
        with pytest.raises(DataError, match="users has not been made"):
            attempt()


def test_a_crash_between_temporary_file_and_rename_leaves_no_part_and_a_rerun_works(
    store, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(parts_module, "sync", kill_before_a_part_is_renamed)
        with pytest.raises(Killed):
            store.plan("users", {}).write(make_users("u1"))
    assert not list(store.path("users").glob("part-*.parquet"))
    assert list(store.path("users").glob("part-*.tmp"))
    assert store.manifest("users") is None
    with pytest.raises(DataError, match="not been made"):
        store.read("users")
    store.plan("users", {}).write(make_users("u1", "u2"))
    assert store.read("users") == make_users("u1", "u2")


def test_the_manifest_comes_last(store, monkeypatch):
    plan = store.plan("users", {})
    monkeypatch.setattr(plan.__class__, "_write_manifest", kill)
    with pytest.raises(Killed):
        plan.write(make_users("u1"))
    assert list(store.path("users").glob("part-*.parquet"))
    assert not plan.is_done
    assert store.manifest("users") is None


def test_files_become_a_dataset_only_when_all_are_written(store):
    plan = store.plan("report", {})

    def fill_and_die(folder):
        (folder / "report.json").write_text("{")
        raise Killed

    with pytest.raises(Killed):
        plan.write_files(fill_and_die, 1)
    assert not store.path("report").exists()
    plan.write_files(lambda folder: (folder / "report.json").write_text("{}"), 1, {"auc": 0.7})
    assert plan.is_done
    assert (store.path("report") / "report.json").read_text() == "{}"
    assert store.require("report").facts == {"auc": 0.7}
    assert [path.name for path in store.root.iterdir()] == ["report"]


def test_parts_of_an_interrupted_run_are_kept_and_continued(store):
    writer = store.plan("users", {}).open_writer()
    writer.append(make_users("u1"))
    writer.append(make_users("u2"))
    again = store.plan("users", {}).open_writer()  # the first one never finished
    assert again.existing() == make_users("u1", "u2")
    again.append(make_users("u3"))
    again.finish()
    assert store.read("users") == make_users("u1", "u2", "u3")
    assert not set_aside_folders(store)


def test_parts_made_for_other_settings_are_moved_away_not_mixed(store):
    store.plan("users", {"seed": 1}).open_writer().append(make_users("old"))
    writer = store.plan("users", {"seed": 2}).open_writer()
    assert writer.existing().num_rows == 0
    writer.append(make_users("new"))
    writer.finish()
    assert store.read("users") == make_users("new")
    [aside] = set_aside_folders(store)
    assert pq.read_table(aside / "part-00000.parquet")["user_id"].to_pylist() == ["old"]


def test_writing_at_once_drops_what_an_interrupted_run_left(store):
    store.plan("users", {}).open_writer().append(make_users("half"))
    store.plan("users", {}).write(make_users("whole"))
    assert store.read("users") == make_users("whole")


def test_a_stale_dataset_is_moved_aside_whole_and_said_so(store, caplog):
    store.plan("users", {"seed": 1}).write(make_users("u1"))
    plan = store.plan("users", {"seed": 2})
    assert not plan.is_done
    with caplog.at_level("INFO", logger="pipeline"):
        plan.write(make_users("u2"))
    assert store.read("users") == make_users("u2")
    [aside] = set_aside_folders(store)
    assert json.loads((aside / MANIFEST).read_text())["settings"] == {"seed": 1}
    assert pq.read_table(aside / "part-00000.parquet")["user_id"].to_pylist() == ["u1"]
    assert f"; moved to superseded/{aside.name}" in caplog.text


def test_two_datasets_set_aside_in_one_second_do_not_meet(store):
    for seed in range(4):
        store.plan("users", {"seed": seed}).write(make_users(f"u{seed}"))
    ids = [
        pq.read_table(a / "part-00000.parquet")["user_id"][0].as_py()
        for a in set_aside_folders(store)
    ]
    assert sorted(ids) == ["u0", "u1", "u2"]


def test_a_folder_that_is_no_dataset_of_ours_is_moved_not_deleted(store):
    store.path("users").mkdir(parents=True)
    (store.path("users") / "letter.txt").write_text("mine")
    store.plan("users", {}).write(make_users("u1"))
    [aside] = set_aside_folders(store)
    assert (aside / "letter.txt").read_text() == "mine"


def test_a_table_of_another_schema_is_refused_and_nothing_is_written(store):
    plan = store.plan("users", {})
    table = make_users("u1")
    for wrong, complaint in (
        (table.rename_columns(["id", "attributes"]), r"columns are \['id', 'attributes'\]"),
        (table.select(["user_id"]), r"expected \['user_id', 'attributes'\]"),
        (table.append_column("extra", pa.array([1])), "extra"),
        (table.set_column(0, "user_id", pa.array([None], pa.string())), "user_id: 1 null values"),
    ):
        with pytest.raises(DataError, match=complaint):
            plan.write(wrong)
    assert not plan.is_done
    assert not list(store.path("users").glob("part-*"))


def test_vectors_are_stored_at_a_fixed_width_and_must_agree_on_it(store):
    plan = store.plan("features", {})
    with pytest.raises(DataError, match=r"features\.vector: widths differ: \[1, 2\]"):
        plan.write(make_features([1.0], [1.0, 2.0]))
    plan.write(make_features([1.0, 2.0], [3.0, 4.0]))
    assert store.read("features")["vector"].type == pa.list_(pa.float32(), 2)


def test_a_damaged_part_is_named(store):
    store.plan("users", {}).write(make_users("u1"))
    part = store.path("users") / "part-00000.parquet"
    for content in (part.read_bytes()[:50], b"", b"PAR1 and then something else PAR1"):
        part.write_bytes(content)
        with pytest.raises(DataError, match=r"part-00000\.parquet is damaged"):
            store.read("users")


def test_a_part_that_was_lost_or_added_is_noticed(store):
    writer = store.plan("users", {}).open_writer()
    writer.append(make_users("u1"))
    writer.append(make_users("u2"))
    writer.finish()
    first, second = sorted(store.path("users").glob("part-*"))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(DataError, match="holds 1 rows, its manifest says 2"):
        store.read("users")
    second.write_bytes(kept)
    second.with_name("part-00002.parquet").write_bytes(first.read_bytes())
    with pytest.raises(DataError, match="holds 3 rows, its manifest says 2"):
        store.read("users")


@pytest.mark.parametrize("text", ["{", "[]", '{"dataset": "users"}', '{"unknown": 1}'])
def test_a_damaged_manifest_is_named(store, text):
    store.plan("users", {}).write(make_users("u1"))
    (store.path("users") / MANIFEST).write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        store.read("users")


def test_a_dataset_of_another_schema_version_is_not_read(store, monkeypatch):
    store.plan("users", {}).write(make_users("u1"))
    monkeypatch.setitem(store_module.SCHEMAS, "users", (USERS, 2))
    with pytest.raises(DataError, match="schema version 1, this program reads 2; run its job"):
        store.read("users")
    assert not store.plan("users", {}).is_done


def test_fingerprints_follow_settings_inputs_and_names(store):
    settings = {"embeddings": EmbeddingSettings(), "seed": 1}
    store.plan("users", {"v": 1}).write(make_users("u1"))
    first = store.plan("items", settings, ["users"])
    assert (
        first.fingerprint
        == store.plan("items", dict(reversed(settings.items())), ["users"]).fingerprint
    )
    others = [
        store.plan("items", settings | {"seed": 2}, ["users"]),
        store.plan("items", settings | {"embeddings": EmbeddingSettings(dim=8)}, ["users"]),
        store.plan("items", settings),
        store.plan("groups", settings, ["users"]),
    ]
    store.plan("users", {"v": 2}).write(make_users("u1"))
    others.append(store.plan("items", settings, ["users"]))  # its input was made anew
    prints = [plan.fingerprint for plan in [first, *others]]
    assert len(set(prints)) == len(prints)


def test_the_fingerprint_of_a_value_is_stable_across_processes():
    assert fingerprint({"b": [1, "é"], "a": None}) == fingerprint({"a": None, "b": [1, "é"]})
    assert fingerprint({}) == "44136fa355b3678a"  # SHA-256 of "{}"


def test_waves_have_the_schema_of_their_last_name_and_their_own_place(store):
    plan = store.plan("waves/2/knowledge", {})
    plan.write(KNOWLEDGE.empty_table())
    assert store.read("waves/2/knowledge").schema == KNOWLEDGE
    store.plan("waves/2/knowledge", {"seed": 2}).write(KNOWLEDGE.empty_table())
    [aside] = set_aside_folders(store)
    assert aside.name.startswith("waves-2-knowledge-")


def test_part_numbers_beyond_five_digits_keep_their_order(store):
    writer = store.plan("users", {}).open_writer()
    writer.append(make_users("first"))
    part = next(store.path("users").glob("part-*.parquet"))
    part.rename(part.with_name("part-99999.parquet"))
    writer.append(make_users("second"))
    writer.append(make_users("third"))
    writer.finish()
    assert store.read("users")["user_id"].to_pylist() == ["first", "second", "third"]


def test_an_empty_part_before_vectors_does_not_spoil_the_dataset(store):
    writer = store.plan("features", {}).open_writer()
    writer.append(make_features())
    writer.append(make_features([1.0, 2.0]))
    writer.finish()
    assert store.read("features").num_rows == 1


def test_a_column_of_another_type_and_parts_of_two_widths_are_named(store):
    writer = store.plan("features", {}).open_writer()
    wrong = make_features([1.0]).set_column(0, "kind", pa.array([b"\xff\xfe"]))
    with pytest.raises(DataError, match="features: a column has another type"):
        writer.append(wrong)
    writer.append(make_features([1.0]))
    writer.append(make_features([1.0, 2.0]))
    with pytest.raises(DataError, match="differ in type"):
        writer.existing()


def test_a_damaged_part_or_marker_is_named_while_writing(store):
    plan = store.plan("users", {})
    writer = plan.open_writer()
    writer.append(make_users("u1"))
    part = next(store.path("users").glob("part-*.parquet"))
    part.write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"part-00000\.parquet is damaged"):
        writer.finish()
    for marker in (b"\xff{", b"[]", b"7"):
        (store.path("users") / "building.json").write_bytes(marker)
        with pytest.raises(DataError, match=r"building\.json is damaged"):
            plan.open_writer()


def test_a_dataset_made_from_older_inputs_is_not_consistent(store):
    store.plan("users", {"seed": 1}).write(make_users("u1"))
    store.plan("features", {}, inputs=["users"]).write(make_features([1.0]))
    assert store.is_consistent("users")
    assert store.is_consistent("features")
    assert not store.is_consistent("items")
    store.plan("users", {"seed": 2}).write(make_users("u1", "u2"))
    assert not store.is_consistent("features")


def test_what_was_made_from_other_rows_of_the_same_settings_is_not_current(store):
    store.plan("users", {"seed": 1}).write(make_users("u1"))
    features = store.plan("features", {}, ["users"])
    features.write(make_features([0.5]))
    store.set_aside("users")
    store.plan("users", {"seed": 1}).write(make_users("u1"))
    assert store.is_consistent("features")
    assert store.plan("features", {}, ["users"]).is_done
    store.set_aside("users")
    store.plan("users", {"seed": 1}).write(make_users("u1", "u2"))
    assert not store.is_consistent("features")
    assert not store.plan("features", {}, ["users"]).is_done


def test_a_dataset_of_an_older_program_is_still_what_others_were_made_from(store):
    store.plan("users", {}).write(make_users("u1"))
    path = store.path("users") / MANIFEST
    manifest = json.loads(path.read_text())
    assert manifest.pop("content")
    path.write_text(json.dumps(manifest))
    assert store.require("users").version == manifest["fingerprint"]
    assert store.plan("features", {}, ["users"]).inputs == {"users": manifest["fingerprint"]}
