"""The status of a run, from its folder alone."""

import fcntl

import pyarrow as pa
import pytest
import yaml

from jobs import show_status
from pipeline.schemas import KNOWLEDGE, USERS
from pipeline.store import Store


@pytest.fixture
def run(tmp_path):
    """A config and the store of its run, of which only the users are made."""
    tables = {name: {"path": "x.csv"} for name in ("users", "items", "interactions")}
    tree = {
        "run": "shop",
        "artifacts": str(tmp_path / "artifacts"),
        "catalog": {"tables": tables},
        "language_model": {"path": "none"},
        "encoder": {"path": "none"},
        "generation": {"waves": 2},
    }
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump(tree))
    store = Store(tmp_path / "artifacts" / "shop")
    return path, store


def said(path, capsys):
    code = show_status.main(["--config", str(path)])
    return code, capsys.readouterr().out


def a_user(name):
    return pa.Table.from_pylist([{"user_id": name, "attributes": []}], schema=USERS)


def test_a_run_that_is_not_there_is_an_error_that_names_those_that_are(run, capsys):
    path, store = run
    for name in ("monday", "tuesday"):
        Store(store.root.parent / name).plan("users", {}).write(a_user("a"))
    (store.root.parent / "no-run").mkdir()
    assert show_status.main(["--config", str(path)]) == 3
    error = capsys.readouterr().err
    assert "no such run: shop" in error
    assert "there are: monday, tuesday\n" in error
    assert not store.root.exists()  # looking leaves nothing behind


def test_a_run_that_has_only_just_begun(run, capsys):
    path, store = run
    store.root.mkdir(parents=True)
    code, text = said(path, capsys)
    assert code == show_status.UNFINISHED
    assert "no job was ever started" in text


def test_what_is_made_what_is_in_work_and_what_is_missing(run, capsys):
    path, store = run
    store.plan("users", {}).write(a_user("a"))
    writer = store.plan("items", {}).open_writer()
    (store.root / "run.log").write_text("first\nlast words\n")
    (store.root / "lock").touch()
    code, text = said(path, capsys)
    by_name = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert code == show_status.UNFINISHED
    assert "1 rows" in by_name["users"]
    assert "unfinished, 0 rows stored" in by_name["items"]
    assert by_name["knowledge"].split() == ["knowledge", "-"]
    assert {"waves/1/pools", "waves/2/knowledge"} <= set(by_name)
    assert "waves/0/pools" not in by_name
    assert "last words" in text
    assert "no job is running" in text
    assert writer.existing().num_rows == 0


def test_who_is_writing_is_named(run, capsys):
    path, store = run
    store.root.mkdir(parents=True)
    with (store.root / "lock").open("w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("4711")
        file.flush()
        assert "process 4711 is writing it" in said(path, capsys)[1]
    assert "process 4711, the last, was killed" in said(path, capsys)[1]


def test_a_whole_run_is_told_by_the_exit_code(run, capsys, monkeypatch):
    path, store = run
    store.plan("users", {}).write(a_user("a"))
    monkeypatch.setattr(show_status, "datasets", lambda _: ["users"])
    assert said(path, capsys)[0] == 0


def test_what_is_made_on_demand_is_listed_and_no_run_lacks_it(run, capsys, monkeypatch):
    path, store = run
    store.plan("users", {}).write(a_user("a"))
    monkeypatch.setattr(show_status, "datasets", lambda _: ["users"])
    assert "recommend" not in said(path, capsys)[1]
    store.plan("recommender", {}, ["users"]).write_files(lambda _: None, 1)
    store.plan("recommendations", {}).open_writer()
    code, text = said(path, capsys)
    by_name = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert code == 0
    assert list(by_name)[:3] == ["users", "recommender", "recommendations"]
    assert " 1 model," in by_name["recommender"]
    assert "unfinished, 0 rows stored" in by_name["recommendations"]
    store.plan("users", {"other": True}).write(a_user("b"))
    code, text = said(path, capsys)
    assert code == 0
    assert "from older inputs" in text


def a_row(entity):
    """One row of KNOWLEDGE."""
    empty = {field.name: [] if pa.types.is_list(field.type) else 0 for field in KNOWLEDGE}
    fields = empty | {field.name: "" for field in KNOWLEDGE if field.type == pa.string()}
    return pa.Table.from_pylist([fields | {"kind": "user", "entity_id": entity}], schema=KNOWLEDGE)


def refresh_of_monday(store, written):
    """A refresh that carried one row over and wrote the rows of `written`."""
    for wave, rows in enumerate([["a"], written]):
        table = pa.concat_tables([KNOWLEDGE.empty_table(), *map(a_row, rows)])
        store.plan(f"waves/{wave}/knowledge", {}).write(table)
    (store.root / "run.json").write_text('{"previous": "monday"}')


def test_a_refresh_is_told_by_its_folder_and_asks_for_its_own_waves_only(run, capsys):
    path, store = run
    refresh_of_monday(store, ["b"])
    _, text = said(path, capsys)
    assert "a refresh of monday" in text
    assert "waves/1/knowledge" in text
    assert "waves/2" not in text


@pytest.mark.parametrize(("written", "code"), [([], 0), (["b"], show_status.UNFINISHED)])
def test_a_comparison_counts_as_missing_only_where_there_are_rows_for_it(
    run, capsys, monkeypatch, written, code
):
    path, store = run
    refresh_of_monday(store, written)
    names = ["waves/1/knowledge", "comparison"]
    monkeypatch.setattr(show_status, "datasets", lambda _: names)
    assert said(path, capsys)[0] == code
    assert ("left out: the last wave had no text" in said(path, capsys)[1]) == (code == 0)


def test_a_bad_config_ends_as_everywhere(run, capsys):
    path, _ = run
    assert show_status.main(["--config", str(path), "--set", "no.such=1"]) == 2
