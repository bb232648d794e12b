"""What a command does: run a job or look at a run, tell how it went, and exit with its code."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any, NoReturn

import typer

from jobs import cli
from jobs.commands.options import Asked
from jobs.commands.outcome import outcome
from pipeline.config import RunConfig
from pipeline.store import Store

Stages = Callable[[RunConfig], Sequence[str]]  # the jobs that a command consists of, in order


def run_job(command: str, module: str, on: Asked, as_json: bool) -> NoReturn:
    """Run `jobs.<module>`, which is imported once the config has been read and found good."""

    def job(config: RunConfig, store: Store) -> None:
        import_module(f"jobs.{module}").run(config, store)

    finish(command, lambda: cli.execute(job, *on), on, as_json)


def finish(
    command: str,
    work: Callable[[], cli.Ended],
    on: Asked,
    as_json: bool,
) -> NoReturn:
    """Do the work, and exit with its code; with `as_json` its outcome is all that stdout gets."""
    if not as_json:
        raise typer.Exit(work().code)
    began = time.time()
    with redirect_stdout(sys.stderr):
        ended = work()
    print_json(outcome(command, ended, on, began))
    raise typer.Exit(ended.code)


def show_dry_run(stages: Stages, on: Asked, as_json: bool) -> NoReturn:
    """Say what a command would do, and exit."""
    from jobs.commands.dry_run import dry_run, lines  # loads what stages load: seconds

    def view(config: RunConfig, store: Store) -> int:
        told = dry_run(config, store, stages(config))
        tell(told, lines(told), as_json)
        return 0

    raise typer.Exit(cli.show(view, *on, must_exist=False).code)


def look(
    view: Callable[[RunConfig, Store], tuple[Mapping[str, Any], Iterable[str], int]],
    on: Asked,
    as_json: bool,
    must_exist: bool = True,
) -> NoReturn:
    """Show facts of a run, or the lines that tell them, and exit with the code of the view."""

    def shown(config: RunConfig, store: Store) -> int:
        facts, lines, code = view(config, store)
        tell(facts, lines, as_json)
        return code

    raise typer.Exit(cli.show(shown, *on, must_exist).code)


def tell(facts: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Print one or the other."""
    if as_json:
        print_json(facts)
    else:
        for line in lines:
            print(line)


def print_json(facts: Mapping[str, Any]) -> None:
    """One line of strict JSON."""
    print(json.dumps(facts, ensure_ascii=False, allow_nan=False))
