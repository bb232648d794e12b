"""The main job: it looks for what it will need first, and says when there was nothing to do."""

import sys
from types import SimpleNamespace

import pytest
import yaml

from jobs import preflight, run_all
from pipeline.errors import CheckError
from pipeline.schemas import USERS


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the main job with one stage of our own and no need of anything; give its code and log."""
    tree = {
        "run": "r",
        "artifacts": str(tmp_path),
        "catalog": {"source": "movielens", "path": "x"},
        "language_model": {"path": "x"},
        "encoder": {"path": "x"},
    }
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(tree))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "check_inputs", lambda _: None)
    monkeypatch.setattr(run_all, "STAGES", ("stage",))

    def start(stage):
        monkeypatch.setitem(sys.modules, "jobs.stage", SimpleNamespace(run=stage))
        return run_all.main(["--config", str(path)]), (tmp_path / "r" / "run.log").read_text()

    return start


def write_users(config, store):
    plan = store.plan("users", {})
    if not plan.is_done:
        plan.write(USERS.empty_table())


def test_only_a_run_without_anything_to_do_says_so(run):
    code, log = run(write_users)
    assert code == 0
    assert "nothing to do" not in log
    code, log = run(write_users)
    assert code == 0
    assert log.splitlines()[-2].endswith("nothing to do: every stage is up to date")


@pytest.mark.parametrize("is_done", [False, True])
def test_where_the_report_is_stands_last_in_log_and_terminal(run, capsys, is_done):
    def stage(config, store):
        write_users(config, store)
        return "report: here/report.html"

    for _ in range(1 + is_done):
        code, log = run(stage)
    terminal = capsys.readouterr().err
    assert code == 0
    for told in (log, terminal):
        assert told.splitlines()[-1].endswith("jobs                     report: here/report.html")
        assert "done in" in told.splitlines()[-2]


def test_a_missed_threshold_is_the_last_word_and_the_report_is_before_it(run, monkeypatch):
    def miss(config, store):
        raise CheckError("no gain")

    monkeypatch.setattr(run_all, "STAGES", ("missing", "stage"))
    monkeypatch.setitem(sys.modules, "jobs.missing", SimpleNamespace(run=miss))
    code, log = run(lambda config, store: "report: here/report.html")
    assert code == 5
    told, error = log.splitlines()[-2:]
    assert told.endswith("report: here/report.html")
    assert error.endswith("error: no gain")


def test_no_stage_begins_where_something_is_missing(run, monkeypatch):
    def complain(_):
        raise CheckError("no such model")

    begun = []
    monkeypatch.setattr(preflight, "check_inputs", complain)
    code, log = run(lambda config, store: begun.append(store))
    assert code == 5
    assert "no such model" in log
    assert not begun
