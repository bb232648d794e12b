"""The options that commands share, and what a shell completes them to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from jobs.cli import read_config
from pipeline.config import RunConfig
from pipeline.config_schema import dotted_keys
from pipeline.errors import UserError

CONFIGS = Path("conf")


def complete_config(incomplete: str) -> Iterator[str]:
    """Configs beside the demo's."""
    yield from (path for path in map(str, CONFIGS.glob("*.yaml")) if path.startswith(incomplete))


def complete_setting(incomplete: str) -> Iterator[tuple[str, str]]:
    """Dotted keys with what each means."""
    for key, meaning in dotted_keys(RunConfig).items():
        if key.startswith(incomplete):
            yield f"{key}=", meaning


Config = Annotated[
    Path,
    typer.Option("--config", "-c", help="Config of the run.", autocompletion=complete_config),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="SECTION.KEY=VALUE",
        help="A setting instead of the config's; may be given several times.",
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


class Asked(NamedTuple):
    """A config and what is set instead of its values."""

    path: Path
    overrides: list[str]


def asked(config: Path, settings: list[str] | None, limit: int | None = None) -> Asked:
    """What a command is to work on; a trial of `limit` users and items has a folder of its own."""
    overrides = settings or []
    path = config.expanduser()
    path = path.resolve() if path.exists() else path  # jobs change to the project's root
    if limit is None:
        return Asked(path, overrides)
    try:
        given = read_config(path, overrides)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    most = {
        f"catalog.max_{name}": min(limit, getattr(given.catalog, f"max_{name}") or limit)
        for name in ("users", "items")
    }
    trial = {"run": f"{given.run}-limit-{limit}", **most}
    return Asked(path, [*overrides, *(f"{key}={value}" for key, value in trial.items())])
