"""The options that commands share, and what is asked for by them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from jobs.cli import Ended, located, read_config, refused
from jobs.commands.completion import complete_config, complete_setting
from pipeline.errors import UserError

Config = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Config of the run.",
        autocompletion=complete_config,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="A setting (section.key) instead of the config's; may be given several times.",
        autocompletion=complete_setting,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON object on stdout; all else goes to stderr.")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be done, of how many rows, for how long; stop."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=1,
        metavar="N",
        help="Only the N most active users and N most rated items, as a run of its own.",
    ),
]


# A trial is for reading texts: its few rows would say nothing of speed, and take most of its time.
_OF_A_TRIAL = "comparison.rows_per_kind=0"


class Asked(NamedTuple):
    """A config and what is set instead of its values."""

    path: Path
    overrides: list[str]


def asked(
    config: Path, settings: list[str] | None, limit: int | None = None, as_json: bool = False
) -> Asked:
    """What a command is to work on; a trial of `limit` users and items has a folder of its own."""
    path, overrides = located(config), settings or []
    if limit is None:
        return Asked(path, overrides)
    try:
        given = read_config(path, overrides)
    except UserError as error:
        refuse(error, as_json)
    most = {
        f"catalog.max_{name}": min(limit, getattr(given.catalog, f"max_{name}") or limit)
        for name in ("users", "items")
    }
    trial = {"run": f"{given.run}-limit-{limit}", **most}
    named = [f"{key}={value}" for key, value in trial.items()]
    return Asked(path, [_OF_A_TRIAL, *overrides, *named])


def refuse(error: UserError, as_json: bool = False) -> NoReturn:
    """End a command before its work, with the exit code of an error."""
    ended = refused(error)
    if as_json:
        print_json(as_facts(ended))
    raise typer.Exit(ended.code)


def as_facts(ended: Ended) -> dict[str, Any]:
    """What is told of a command that was refused, in the words of all outcomes."""
    return {"exit_code": ended.code, "error": ended.error or None}


def print_json(facts: Mapping[str, Any]) -> None:
    """One line of strict JSON."""
    print(json.dumps(facts, ensure_ascii=False, allow_nan=False))
