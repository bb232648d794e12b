"""What every job shares: its config, a log on terminal and in a file, exit codes to rely on.

`jobs.command_line` is what people call; `main` and `look` serve `python -m jobs.<name>`.
Exit codes: 0 done; 1 unforeseen failure; 2 config; 3 data or model, or a full disk; 4 too many
error rows; 5 the CTR check missed its threshold; 130 interrupted (Ctrl-C); 143 terminated.
"""

import argparse
import fcntl
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from features.frameworks import require_framework, templates_of
from jobs.interruption import HalfStarted, interruptible, leave_with, shut_ray_down
from jobs.lease import leased
from jobs.output import reader_may_leave
from jobs.remote_log import RUN_LOG, log_uploaded
from jobs.run_record import as_recorded, record, require_previous, require_run
from pipeline.config import RunConfig
from pipeline.config_file import load_config
from pipeline.errors import ConfigError, DataError, UserError, is_no_room
from pipeline.runs import open_run
from pipeline.store import Store

# What relative paths in a config mean: the checkout, or the caller's folder if installed elsewhere.
_CODE = Path(__file__).resolve().parent.parent
IS_CHECKOUT = (_CODE / "pyproject.toml").is_file()
ROOT = _CODE if IS_CHECKOUT else Path.cwd()
PACKAGES = ("pipeline", "retrieval_pools", "features")
log = logging.getLogger("jobs")

# Of a RunConfig, a Store, and what `options` names; may return a line to end the log with.
Job = Callable[..., str | None]
View = Callable[..., int]  # of the same; returns an exit code

_LOCK_ATTEMPTS, _LOCK_PAUSE = 5, 0.1  # s


class Ended(NamedTuple):
    """How a job ended."""

    code: int
    error: str = ""  # what a person was told, of a failure that is theirs to mend
    last: str = ""  # what to say at the very end


def main(
    job: Job,
    description: str | None,
    argv: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> int:
    """Parse the arguments, run `job` alone in its folder, and return its exit code.

    `options` are further arguments, with their help; `job` gets them by name, None where absent.
    """
    arguments, given = _parse(description, argv, options or {})
    return execute(partial(job, **given), arguments.config, arguments.set).code


def look(
    view: View,
    description: str | None,
    argv: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> int:
    """As `main`, for what only looks at a run: see `show`."""
    arguments, given = _parse(description, argv, options or {})
    return show(partial(view, **given), arguments.config, arguments.set).code


def execute(
    job: Job, path: Path, overrides: Sequence[str] = (), before: Job | None = None
) -> Ended:
    """Read the config, and run `job` alone in the folder of its run.

    What `before` refuses leaves no folder behind, which would count as a run.
    """
    try:
        config = read_config(path, overrides)
        store = open_run(config.artifacts, config.run)
        if before:
            before(config, store)
        if config.refresh.previous and not store.files.exists():
            require_previous(config)
        store.root.mkdir(parents=True, exist_ok=True)
    except UserError as error:
        return refused(error)
    except OSError as error:
        return refused(ConfigError(f"artifacts: no run can be written there: {error}"))
    with _logging_to(store.root), reader_may_leave():
        return _run(job, config, store)


def show(view: View, path: Path, overrides: Sequence[str] = (), must_exist: bool = True) -> Ended:
    """Read the config, and look at its run: no lock, no log, and nothing written to the run.

    What is read of a remote run may be fetched into the working copy. The exit code is what `view`
    returns. A run that is not there is refused if it `must_exist`.
    """
    try:
        config = read_config(path, overrides)
        store = open_run(config.artifacts, config.run)
        if must_exist:
            require_run(config, store)
        with reader_may_leave():
            return Ended(view(as_recorded(config, store), store))
    except UserError as error:
        return refused(error)
    except OSError as error:
        if not is_no_room(error):
            raise
        return refused(DataError(f"{error}; make room, and run again"))


def refused(error: UserError) -> Ended:
    """Tell a person what is theirs to mend, before there is a log."""
    print(f"error: {error}", file=sys.stderr)
    return Ended(error.exit_code, str(error))


def _parse(
    description: str | None, argv: Sequence[str] | None, options: Mapping[str, str]
) -> tuple[argparse.Namespace, dict[str, str | None]]:
    """The arguments, and what the further options were given."""
    parser = arguments_parser(description)
    for name, explanation in options.items():
        parser.add_argument(f"--{name}", help=explanation)
    arguments = parser.parse_args(argv)
    return arguments, {name: getattr(arguments, name) for name in options}


def arguments_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every job takes."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", "-c", type=Path, default=Path("conf/demo.yaml"))
    parser.add_argument("--set", "-s", action="append", default=[], metavar="SECTION.KEY=VALUE")
    return parser


def located(path: Path) -> Path:
    """Where a config is, whatever folder the process goes to; one of ours may stand in the root."""
    path = path.expanduser()  # make quotes it, so no shell does
    return path.resolve() if path.exists() else path


def read_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of a file; from here on the process is in the project's root.

    Raises:
        ConfigError: see `load_config`.
    """
    path = located(path)
    os.chdir(ROOT)  # relative paths in a config mean the project's root, wherever we were called
    config = load_config(path, overrides)
    require_framework(config.framework)
    templates_of(config)  # which checks them
    return config


def _run(job: Job, config: RunConfig, store: Store) -> Ended:
    """Run `job` alone in its folder, and leave no Ray behind if it was stopped.

    The lease and the log of a remote run are given back last. That takes requests to the store,
    which a first signal does not cut short; it does not change the exit code either.
    """
    began = time.monotonic()
    with interruptible() as signals, ExitStack() as held:
        try:
            ended = _ended(job, config, store, signals, held)
        except KeyboardInterrupt as interrupt:  # another than ours has no number: it goes on
            if not signals:
                raise
            ended = Ended(1)
            if isinstance(interrupt, HalfStarted):
                leave_with(128 + signals[0])
        finally:
            signals.are_late = True
        if (
            signals and ended.code
        ):  # by now the exception is gone, and with it all that held workers
            log.error("interrupted; what is stored stays, the same command goes on from here")
            shut_ray_down()
            return Ended(128 + signals[0], "interrupted")
        if not ended.code:
            log.info("done in %.0f s; outputs in %s", time.monotonic() - began, store.files.address)
            if ended.last:
                log.info("%s", ended.last)
        return ended


def _ended(
    job: Job, config: RunConfig, store: Store, signals: Sequence[int], held: ExitStack
) -> Ended:
    """How `job` ends; every failure ends up in the run's log.

    The lock goes to `held`, which outlives the last line of the log. Whatever fails after a signal
    fails because of it.
    """
    try:
        held.enter_context(_only_job_in(store))
        config = as_recorded(config, store)
        record(config, store)
        return Ended(0, last=job(config, store) or "")
    except UserError as error:
        if not signals:
            log.error("error: %s", error)
        return Ended(error.exit_code, str(error))
    except Exception as error:
        if is_no_room(error):
            log.error("error: %s; make room, and the same command goes on from here", error)
            return Ended(DataError.exit_code, str(error))
        if not signals:
            log.exception("unforeseen failure")
        return Ended(1, repr(error))


@contextmanager
def _only_job_in(store: Store) -> Iterator[None]:
    """Hold the lock of a run; it ends with the process, however that ends.

    Of a remote run that is the lock of this machine's working copy; between machines there is a
    lease. Who holds both may write the run's log.

    Raises:
        DataError: another job holds it.
    """
    root = store.root
    with (root / "lock").open("a+") as file:
        if not _locked(file):
            file.seek(0)
            raise DataError(
                f"{root} is being written by another job (process {file.read() or 'unknown'}); "
                "wait for it, or set another `run` name"
            )
        before = (root / RUN_LOG).stat().st_size  # of another job, which was writing until now
        file.seek(0)
        if left := file.read():
            log.warning(
                "process %s, the last to write here, ended without a word: it was killed, or its "
                "machine was; going on from what it stored",
                left,
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            with leased(store), log_uploaded(store, before):
                yield
        finally:
            file.truncate(0)  # whoever is killed leaves its number


def _locked(file: TextIO) -> bool:
    """Take the lock, unless another job keeps it; who only asks whether one does is soon gone."""
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
        else:
            return True
    return False


@contextmanager
def _logging_to(root: Path) -> Iterator[None]:
    """Log to the terminal and to `<run>/run.log`."""
    line = logging.Formatter("%(asctime)s %(name)-24s %(message)s", datefmt="%H:%M:%S")
    handlers = [logging.StreamHandler(sys.stderr), logging.FileHandler(root / RUN_LOG)]
    for handler in handlers:
        handler.setFormatter(line)
    loggers = [logging.getLogger(name) for name in ("jobs", *PACKAGES)]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.handlers = list(handlers)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:  # a closed file handler would open its file again
            logger.handlers = []
            logger.propagate = True
        for handler in handlers:
            handler.close()
