"""What a scheduler and a person get from a job: exit code, log, and one job at a time."""

import errno
import fcntl
import os
import sys
from pathlib import Path

import pytest
import yaml

from jobs import cli
from pipeline.errors import CheckError, DataError, PartialError


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config file, and the caller's folder restored afterwards."""
    monkeypatch.chdir(tmp_path)
    tree = {
        "run": "r",
        "artifacts": str(tmp_path / "artifacts"),
        "catalog": {"source": "movielens", "path": "x"},
        "language_model": {"path": "x"},
        "encoder": {"path": "x"},
    }
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def log_of(config):
    return (config.parent / "artifacts" / "r" / "run.log").read_text()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("rotten"), 3),
        (PartialError("rotten"), 4),
        (CheckError("rotten"), 5),
        (RuntimeError("rotten"), 1),
    ],
)
def test_every_failure_has_its_exit_code_and_stands_in_the_log(config, error, code):
    def job(_, __):
        raise error

    assert cli.main(job, None, ["--config", str(config)]) == code
    assert "rotten" in log_of(config)
    assert ("Traceback" in log_of(config)) == (code == 1)  # only what nobody foresaw


def test_a_config_is_found_from_the_callers_folder(config):
    seen = []
    assert cli.main(lambda c, s: seen.append(c.run), None, ["--config", "r.yaml"]) == 0
    assert seen == ["r"]
    assert Path.cwd() == cli.ROOT
    assert "done in" in log_of(config)


def test_a_second_job_in_the_same_run_is_told_who_holds_it(config, capsys):
    root = config.parent / "artifacts" / "r"
    root.mkdir(parents=True)
    with (root / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4242")
        lock.flush()
        assert cli.main(lambda c, s: None, None, ["--config", str(config)]) == 3
    assert "process 4242" in capsys.readouterr().err
    assert cli.main(lambda c, s: None, None, ["--config", str(config)]) == 0


def test_a_job_starts_although_someone_looks_at_the_lock_just_then(config, monkeypatch):
    root = config.parent / "artifacts" / "r"
    root.mkdir(parents=True)
    with (root / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        monkeypatch.setattr(cli.time, "sleep", lambda _: fcntl.flock(lock, fcntl.LOCK_UN))
        assert cli.main(lambda c, s: None, None, ["--config", str(config)]) == 0


def test_further_arguments_reach_the_job_by_name(config):
    seen = []

    def job(_, __, group, text):
        seen.append((group, text))

    options = {"group": "one", "text": "another"}
    arguments = ["--config", str(config), "--text", "She likes"]
    assert cli.main(job, None, arguments, options) == 0
    assert seen == [(None, "She likes")]


def test_a_job_that_was_killed_is_told_of_by_the_next(config):
    root = config.parent / "artifacts" / "r"
    for _ in range(2):  # one that ends by itself leaves no trace
        assert cli.main(lambda c, s: None, None, ["--config", str(config)]) == 0
    assert "ended without a word" not in (root / "run.log").read_text()
    (root / "lock").write_text("4242")
    assert cli.main(lambda c, s: None, None, ["--config", str(config)]) == 0
    assert (
        "process 4242, the last to write here, ended without a word"
        in (root / "run.log").read_text()
    )
    assert not (root / "lock").read_text()


def test_a_full_disk_is_told_of_by_who_only_looks_too(config, capsys):
    """What it reads of a remote run is fetched."""
    assert cli.main(lambda c, s: None, None, ["--config", str(config)]) == 0

    def view(_, __):
        raise OSError(errno.EDQUOT, "Quota exceeded", "tokens.npy")

    assert cli.look(view, None, ["--config", str(config)]) == 3
    assert "tokens.npy'; make room, and run again" in capsys.readouterr().err


def test_a_full_disk_says_what_to_do(config, capsys):
    def job(_, __):
        raise OSError(errno.ENOSPC, "No space left on device", "part-00001.tmp")

    assert cli.main(job, None, ["--config", str(config)]) == 3
    said = capsys.readouterr().err
    assert "part-00001.tmp" in said
    assert "make room, and the same command goes on" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("how", [cli.main, cli.look])
def test_whoever_reads_may_leave_before_the_end(config, monkeypatch, how):
    """As in `make status | head -1`."""
    assert cli.main(lambda c, s: None, None, ["--config", str(config)]) == 0
    reads, writes = os.pipe()
    os.close(reads)

    def run(_, __):
        for _ in range(10_000):  # more than a pipe and a buffer hold
            sys.stdout.write("a line\n")
        return 6

    with os.fdopen(writes, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert how(run, None, ["--config", str(config)]) == (6 if how is cli.look else 0)
    assert "Traceback" not in log_of(config)


def test_a_refresh_of_nothing_leaves_no_folder_behind(config, capsys):
    arguments = ["--config", str(config), "--set", "refresh.previous=nowhere"]
    assert cli.main(lambda c, s: None, None, arguments) == 3
    assert "there are: none" in capsys.readouterr().err
    assert not (config.parent / "artifacts").exists()


def test_a_job_by_itself_takes_the_same_short_options_as_a_command(config):
    seen = []
    words = ["-c", str(config), "-s", "seed=3"]
    assert cli.main(lambda c, s: seen.append(c.seed), None, words) == 0
    assert seen == [3]
    with pytest.raises(SystemExit):  # as there, no half of a name
        cli.main(lambda c, s: None, None, ["--conf", str(config)])


def test_what_is_refused_beforehand_leaves_no_folder(config, capsys):
    def refuse(_, __):
        raise DataError("too early")

    assert cli.execute(lambda c, s: None, config, before=refuse).code == 3
    assert "too early" in capsys.readouterr().err
    assert not (config.parent / "artifacts").exists()
