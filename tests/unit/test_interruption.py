"""A job that is stopped says so in one line, and returns what a scheduler expects."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import yaml

from jobs import cli
from jobs.interruption import handlers_kept, interruptible

JOB = """
import atexit, os, sys, time
from jobs import cli
from jobs.interruption import handlers_kept

def job(config, store):
    (store.root / "began").touch()
    try:
        {work}
    finally:
        {cleanup}

def start_ray():
    with handlers_kept():
        atexit.register(os.abort)  # what comes of a Ray that has half started
        time.sleep(60)

sys.exit(cli.main(job, None, sys.argv[1:]))
"""
CLEANUPS = {
    "nothing fails": "pass",
    "what holds workers fails": "raise RuntimeError('the worker is gone')",
}


def config_in(folder):
    tree = {
        "run": "r",
        "artifacts": str(folder),
        "catalog": {"source": "movielens", "path": "x"},
        "language_model": {"path": "x"},
        "encoder": {"path": "x"},
    }
    path = folder / "r.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def started(tmp_path):
    """Start a job of its own process that sleeps, and wait until it does."""
    path = config_in(tmp_path)
    processes = []

    def start(cleanup, work="time.sleep(60)"):
        code = JOB.format(cleanup=cleanup, work=work)
        command = [sys.executable, "-c", code, "--config", str(path)]
        process = subprocess.Popen(command, cwd=cli.ROOT, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        deadline = time.monotonic() + 60
        while not (tmp_path / "r" / "began").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("cleanup", CLEANUPS.values(), ids=CLEANUPS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_job_says_one_line_and_has_its_exit_code(
    started, tmp_path, number, code, cleanup
):
    process = started(cleanup)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert len(said.splitlines()) == 1
    assert "interrupted; what is stored stays, the same command goes on from here" in said
    assert (tmp_path / "r" / "run.log").read_text() == said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_job_that_is_stopped_while_ray_starts_has_its_exit_code_too(
    started, tmp_path, number, code
):
    process = started("pass", "start_ray()")
    time.sleep(0.5)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert "interrupted; what is stored stays" in said
    assert (tmp_path / "r" / "lock").read_text() == ""


def test_a_second_sigterm_does_not_cut_the_ending_short(started, tmp_path):
    process = started("time.sleep(1.0); (store.root / 'ended').touch()")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert (tmp_path / "r" / "ended").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_while_lease_and_log_are_given_back_does_not_cut_that_short(
    number, tmp_path, monkeypatch
):
    """The job is done by then: that is what the exit code says."""
    given_back, outside = [], []

    @contextmanager
    def only_job_in(store):
        yield
        signal.raise_signal(number)
        given_back.append(store)

    monkeypatch.setattr(cli, "_only_job_in", only_job_in)
    monkeypatch.chdir(tmp_path)
    before = signal.signal(number, lambda *_: outside.append(number))
    try:
        arguments = ["--config", str(config_in(tmp_path))]
        assert cli.main(lambda config, store: None, None, arguments) == 0
    finally:
        signal.signal(number, before)
    assert len(given_back) == 1
    assert not outside


def test_a_handler_that_another_library_replaces_is_put_back():
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        with handlers_kept():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
        assert got == [signal.SIGTERM]
        with pytest.raises(SystemExit), handlers_kept():  # as Ray answers
            sys.exit(signal.SIGTERM)
        assert got == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def a_signal_while_ray_starts(answers):
    """Notes what answers to SIGTERM right after."""
    with handlers_kept():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            answers.append(signal.getsignal(signal.SIGTERM))


def test_after_a_first_signal_sigterm_stays_ignored_whatever_was_being_set_up():
    before, answers = signal.getsignal(signal.SIGTERM), []
    with interruptible() as received:
        with pytest.raises(KeyboardInterrupt):
            a_signal_while_ray_starts(answers)
        signal.raise_signal(signal.SIGTERM)  # ignored: this one would end the test
    assert answers == [signal.SIG_IGN]
    assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_was_switched_off_stays_off():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible() as received:
            signal.raise_signal(signal.SIGINT)
        assert received == []
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("command", ["laser", "-m"])
def test_ctrl_c_while_modules_load_is_one_line_and_no_traceback(tmp_path, command):
    """Signals come at any moment; here one that a module sends itself while it is loaded."""
    load = "import jobs, signal; signal.raise_signal(signal.SIGINT)"
    code = f"import sys; sys.argv[0] = {command!r}; {load}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cli.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGINT  # for a shell that is 130
    assert done.stderr == "interrupted\n"


def test_other_programs_keep_their_own_answer_to_what_nobody_catches():
    code = "import sys, jobs; assert sys.excepthook is sys.__excepthook__"
    subprocess.run([sys.executable, "-c", code], cwd=cli.ROOT, check=True)
    code = "import sys; sys.argv[0] = 'laser'; import jobs; raise ValueError('odd')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cli.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("ValueError: odd\n")
