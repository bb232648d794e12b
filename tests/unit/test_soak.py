"""The soak: what it calls broken, whom it signals, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest
import yaml

from jobs import soak
from jobs.processes import actors_of, descendants
from jobs.soak_checks import broken, leftovers, rewritten, stored_parts
from jobs.soak_faults import FAULTS, tear_part, terminate
from jobs.soak_shop import make_shop
from pipeline.config_file import load_config
from pipeline.schemas import KNOWLEDGE
from pipeline.store import Store

EMPTY = {pa.string(): "", pa.int32(): 0, pa.int64(): 0, pa.float32(): 0.0}
SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def knowledge(**tokens):
    """One row for every keyword; a name with an underscore behind it is the same entity again."""
    blank = {field.name: EMPTY.get(field.type, []) for field in KNOWLEDGE}
    rows = [
        blank | {"kind": "user", "entity_id": name.rstrip("_"), "token_ids": ids}
        for name, ids in tokens.items()
    ]
    return pa.Table.from_pylist(rows, schema=KNOWLEDGE)


@pytest.fixture
def stored(tmp_path):
    """Store knowledge as a run of its own."""

    def store_rows(name, **tokens):
        store = Store(tmp_path / name)
        store.plan("knowledge", {}).write(knowledge(**tokens))
        return store

    return store_rows


@pytest.fixture
def sleeper():
    """A process that sleeps until the test is over."""
    process = subprocess.Popen(SLEEPS)
    yield process
    process.kill()
    process.wait()


def test_a_run_equal_to_the_calm_one_is_not_broken(stored):
    calm = stored("calm", a=[1], b=[2, 3])
    assert broken(calm, stored("again", b=[2, 3], a=[1])) == []  # in whatever order


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ({"a": [1]}, "1 rows missing (user b)"),
        ({"a": [1], "b": [2, 3], "b_": [2, 3]}, "1 rows twice (user b)"),
        ({"a": [1], "b": [2, 3], "c": [1]}, "1 rows nobody asked for (user c)"),
        ({"a": [9], "b": [2, 3]}, "1 rows unlike the undisturbed run's (user a)"),
    ],
)
def test_a_row_that_is_missing_twice_strange_or_different_breaks_a_run(stored, rows, complaint):
    assert broken(stored("calm", a=[1], b=[2, 3]), stored("other", **rows)) == [complaint]


def test_a_run_without_knowledge_is_broken(stored, tmp_path):
    [complaint] = broken(stored("calm", a=[1]), Store(tmp_path / "none"))
    assert "has not been made" in complaint


def test_files_left_over_break_a_run(stored):
    calm, other = stored("calm", a=[1]), stored("other", a=[1])
    for name in ("knowledge/part-00001.tmp", ".report.tmp", "building.json"):
        (other.root / name).write_text("")
    assert len(leftovers(other.root)) == 3
    [complaint] = broken(calm, other)
    assert complaint.startswith("3 files left over (.report.tmp, building.json, knowledge/part-")


def test_parts_that_were_stored_must_stay_as_they_were(stored):
    store = stored("run", a=[1])
    before = stored_parts(store)
    assert rewritten(before, stored_parts(store)) == []
    [part] = before
    part.write_bytes(part.read_bytes())
    [complaint] = rewritten(before, stored_parts(store))
    assert complaint.startswith("1 parts written again")
    part.unlink()
    assert rewritten(before, stored_parts(store)) == [complaint]


def test_descendants_are_those_of_the_process_and_no_other(sleeper):
    code = f"import subprocess; subprocess.run({SLEEPS!r})"
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 30
        while not (found := descendants(parent.pid)):
            assert time.monotonic() < deadline
        assert len(found) == 1
        assert sleeper.pid not in found
        assert {parent.pid, sleeper.pid, *found} <= set(descendants(os.getpid()))
        assert actors_of(parent.pid) == []  # it holds no model
    finally:
        for pid in [*descendants(parent.pid), parent.pid]:
            os.kill(pid, signal.SIGKILL)
        parent.wait()


def test_a_job_that_has_ended_cannot_be_struck(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not [fault.name for fault in FAULTS if fault.strike(ended, Store(tmp_path))]


def test_a_terminated_process_ends_by_the_signal(sleeper, tmp_path):
    assert terminate(sleeper, Store(tmp_path))
    assert sleeper.wait(30) == -signal.SIGTERM


def test_a_torn_part_is_half_of_one_under_a_name_that_is_not_a_parts(sleeper, stored):
    store = stored("run", a=[1])
    folder = store.path("waves/1/knowledge")
    folder.parent.mkdir(parents=True)
    store.path("knowledge").rename(folder)
    (folder / "manifest.json").unlink()
    before = stored_parts(store)
    assert tear_part(sleeper, store)
    assert sleeper.wait(30) == -signal.SIGKILL
    assert [path.name for path in leftovers(store.root)] == ["part-00001.tmp"]
    assert stored_parts(store) == before


def test_the_shop_is_the_same_every_time(tmp_path):
    for name in ("one", "two"):
        make_shop(tmp_path / name, seed=7)
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("one", "two")
    )
    assert one == two
    assert {"readers.csv", "books.csv", "ratings.csv", "model.safetensors"} <= set(one)


JOB = """
import shutil, sys, time
from pathlib import Path
arguments = dict(part.split("=") for part in sys.argv if "=" in part)
root = Path(arguments["artifacts"]) / arguments["run"]
time.sleep(0.3)
if not (root / "knowledge").exists():
    rows = {bad_rows!r} if root.name == {bad!r} else {rows!r}
    shutil.copytree(rows, root / "new", dirs_exist_ok=True)
    (root / "new").rename(root / "knowledge")
"""


@pytest.fixture
def rehearsed(monkeypatch, tmp_path, stored):
    """The soak with a job that only copies rows; `bad` is the run that gets other ones."""

    def rehearse(bad=""):
        rows, others = stored("rows", a=[1]), stored("others", a=[2])
        code = JOB.format(
            bad=bad, bad_rows=str(others.path("knowledge")), rows=str(rows.path("knowledge"))
        )

        def start(module, arguments, output):
            output.touch()
            return subprocess.Popen([sys.executable, "-c", code, *arguments])

        monkeypatch.setattr(soak, "start_job", start)
        monkeypatch.setattr(soak, "_INPUTS", ())
        for stage in (soak.build_catalog, soak.train_embeddings, soak.group_entities):
            monkeypatch.setattr(stage, "run", lambda config, store: None)
        tree = {
            "run": "soak",
            "artifacts": str(tmp_path / "artifacts"),
            "generation": {"rule": "strict"},
            "catalog": {"source": "movielens", "path": "x"},
            "language_model": {"path": "x"},
            "encoder": {"path": "x"},
        }
        path = tmp_path / "soak.yaml"
        path.write_text(yaml.safe_dump(tree))
        return ["--config", str(path), "--minutes", "0.02"]

    return rehearse


def test_a_soak_says_a_line_for_every_round_and_ends_with_json(rehearsed, capsys):
    assert soak.main(rehearsed()) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    totals = json.loads(last)
    assert totals["rounds"] == len(lines) > 0
    assert totals["broken"] == 0
    assert all(line.startswith(f"round-{n}: ") for n, line in enumerate(lines))
    assert all(line.endswith("exit 0: as undisturbed") for line in lines)


def test_a_broken_round_is_named_kept_and_ends_the_soak_with_5(rehearsed, capsys, tmp_path):
    assert soak.main(rehearsed(bad="round-0")) == 5
    *lines, last = capsys.readouterr().out.splitlines()
    assert "BROKEN" in lines[0]
    assert "1 rows unlike the undisturbed run's (user a)" in lines[0]
    assert json.loads(last)["broken"] == 1
    rounds = tmp_path / "artifacts/soak/rounds"
    assert (rounds / "round-0/knowledge").is_dir()
    assert not (rounds / "round-1").exists()  # one that holds is removed


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--set", "generation.rule=relaxed"], "set generation.rule=strict"),
        (["--minutes", "soon"], "--minutes takes a number, got 'soon'"),
        (["--minutes", "-1"], "--minutes takes a number from 0 on"),
    ],
)
def test_a_soak_that_cannot_compare_is_refused(rehearsed, capsys, options, complaint):
    assert soak.main([*rehearsed(), *options]) == 2
    assert complaint in capsys.readouterr().err


def test_a_dumped_config_reads_as_it_was(tmp_path):
    config = load_config(soak.cli.ROOT / "conf/soak.yaml")
    path = tmp_path / "dump.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config(path) == config
