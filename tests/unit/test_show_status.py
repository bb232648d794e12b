"""The status of a run, from its folder alone."""

import fcntl

import pyarrow as pa
import pytest
import yaml

from jobs import show_status
from pipeline.schemas import USERS
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


def test_a_run_that_never_began(run, capsys):
    path, store = run
    code, text = said(path, capsys)
    assert code == show_status.UNFINISHED
    assert "no job was ever started" in text
    assert not store.root.exists()  # looking leaves nothing behind


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


def test_a_whole_run_is_told_by_the_exit_code(run, capsys, monkeypatch):
    path, store = run
    store.plan("users", {}).write(a_user("a"))
    monkeypatch.setattr(show_status, "datasets", lambda _: ["users"])
    assert said(path, capsys)[0] == 0


def test_a_bad_config_ends_as_everywhere(run, capsys):
    path, _ = run
    assert show_status.main(["--config", str(path), "--set", "no.such=1"]) == 2
