"""What a command does: run a job or look at a run, tell how it went, and exit with its code."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import typer

from jobs import cli
from jobs.commands.options import Asked, as_facts, print_json
from jobs.commands.outcome import outcome
from jobs.stage_order import require_before
from jobs.terminal_text import printable
from pipeline.config import RunConfig
from pipeline.store import Store

log = logging.getLogger("jobs")

Stages = Callable[[RunConfig], Sequence[str]]  # the jobs that a command consists of, in order
Told = tuple[Mapping[str, Any], Iterable[str], int]  # facts, lines for a terminal, exit code
View = Callable[[RunConfig, Store], Told]


def run_job(command: str, module: str, on: Asked, as_json: bool) -> NoReturn:
    """Run `jobs.<module>`, which is imported once the config has been read and found good.

    With `as_json` the outcome is all that stdout gets.
    """
    stores: list[Store] = []

    def job(config: RunConfig, store: Store) -> str | None:
        stores.append(store)
        return import_module(f"jobs.{module}").run(config, store)

    before = partial(require_before, module)
    run_work(command, lambda: cli.execute(job, *on, before=before), as_json, stores)


def run_work(
    command: str, work: Callable[[], cli.Ended], as_json: bool, stores: Sequence[Store] = ()
) -> NoReturn:
    """Do work in the first of `stores`, which it may open itself; in none if it has several."""
    if not as_json:
        raise typer.Exit(work().code)
    began = time.time()
    with redirect_stdout(sys.stderr):
        ended = _whatever_comes(work)
    print_json(outcome(command, ended, stores[0] if stores else None, began))
    raise typer.Exit(ended.code)


def show_dry_run(stages: Stages, on: Asked, as_json: bool) -> NoReturn:
    """Say what a command would do, and exit."""

    def view(config: RunConfig, store: Store) -> Told:
        from jobs.commands.dry_run import dry_run, lines  # loads what stages load: seconds

        facts = dry_run(config, store, stages(config))
        return facts, lines(facts), facts["exit_code"]

    look(view, on, as_json, must_exist=False)


def look(view: View, on: Asked, as_json: bool, must_exist: bool = True) -> NoReturn:
    """Show facts of a run, or the lines that tell them, and exit with the code of the view."""
    seen: list[Mapping[str, Any]] = []

    def shown(config: RunConfig, store: Store) -> int:
        facts, lines, code = view(config, store)
        seen.append(facts)
        if not as_json:
            for line in lines:
                print(printable(line))
        return code

    if not as_json:
        raise typer.Exit(cli.show(shown, *on, must_exist).code)
    with redirect_stdout(sys.stderr):
        ended = _whatever_comes(lambda: cli.show(shown, *on, must_exist))
    print_json(seen[0] if seen else as_facts(ended))
    raise typer.Exit(ended.code)


def _whatever_comes(work: Callable[[], cli.Ended]) -> cli.Ended:
    """How some work ended; what nobody foresaw is told as well, and is no end without JSON."""
    try:
        return work()
    except Exception as error:
        log.exception("unforeseen failure")
        return cli.Ended(1, repr(error))
