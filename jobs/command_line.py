"""`laser`: everything that a person does with a run, from the raw tables to the report.

Exit codes: see `jobs.cli`. Output for machines goes to stdout, the log to stderr and the run's
folder.
"""

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from jobs.commands import measuring, starting, switches, viewing
from jobs.commands.completion import complete_run
from jobs.commands.measuring import MEASURING
from jobs.commands.options import AsJson, Config, DryRun, Limit, Settings, asked
from jobs.commands.running import run_job, show_dry_run
from jobs.commands.stages import COMMANDS, LISTS, MAIN, OTHERS, STAGES, Command, stages_of
from jobs.commands.viewing import LOOKING
from jobs.output import reader_may_leave

app = typer.Typer(
    name="laser",
    cls=switches.Group,
    epilog="First: laser run (the demo), or laser init TABLES (your own catalog).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(version("laser-knowledge"))
        raise typer.Exit


@app.callback()
def laser(
    _: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Knowledge about users and items by an LLM, as features of a CTR model (LASER)."""


def _register(command: Command) -> None:
    """Add a command that runs one job."""

    @app.command(
        command.name,
        help=command.help,
        epilog=f"Example: {command.example}",
        rich_help_panel=command.panel,
    )
    def run(
        config: Config = command.config,
        settings: Settings = None,
        limit: Limit = None,
        dry_run: DryRun = False,
        as_json: AsJson = False,
    ) -> None:
        on = asked(config, settings, limit, as_json)
        if dry_run:
            show_dry_run(stages_of(command), on, as_json)
        run_job(command.name, command.module, on, as_json)


@app.command(
    rich_help_panel=MAIN,
    epilog="Example: laser refresh --config conf/bookshop.yaml --previous monday --run tuesday",
)
def refresh(
    previous: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Run to go on from; it stays as it is.",
            autocompletion=complete_run,
        ),
    ],
    run: Annotated[
        str,
        typer.Option(metavar="RUN", help="Name of the new run.", autocompletion=complete_run),
    ],
    config: Config = Path("conf/demo.yaml"),
    settings: Settings = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """A run over a changed catalog: rows of an earlier run whose prompt is the same are kept."""
    # In quotes: a name may look like a number or a date, and an empty one is no name.
    both = [f"run={json.dumps(run)}", f"refresh.previous={json.dumps(previous)}"]
    on = asked(config, [*(settings or []), *both], limit, as_json)
    (command,) = (one for one in COMMANDS if one.name == "run")
    if dry_run:
        show_dry_run(stages_of(command), on, as_json)
    run_job("refresh", command.module, on, as_json)


@app.command(
    rich_help_panel=OTHERS,
    epilog="Example: laser log --set mlflow.tracking_uri=http://tracking:5000",
)
def log(
    config: Config = Path("conf/demo.yaml"),
    settings: Settings = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Headline, config and report to MLflow; `laser run` does it last where it is configured.

    There is no dry run: nothing is made here, and a report is told once.
    """
    run_job("log", "log_run", asked(config, settings, limit, as_json), as_json)


for _command in COMMANDS:
    _register(_command)
for _part in (starting, viewing, measuring):
    app.registered_commands += _part.app.registered_commands
for _info in app.registered_commands:
    _info.cls = switches.Command
_PANELS = [MAIN, LOOKING, STAGES, LISTS, OTHERS, MEASURING]
app.registered_commands.sort(  # the first is what most people look for
    key=lambda info: (_PANELS.index(str(info.rich_help_panel)), info.name != "run")
)


def main() -> None:
    """Entry point of the package."""
    if "_LASER_COMPLETE" in os.environ:  # a shell takes every line for an answer, folded or not
        os.environ["COLUMNS"] = "10000"
    with reader_may_leave():  # `laser schema | head -1` is no failure
        app()


if __name__ == "__main__":
    main()
