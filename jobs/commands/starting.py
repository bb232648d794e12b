"""The command that a user's own catalog begins with."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import AsJson, print_json, refuse
from jobs.commands.viewing import LOOKING
from pipeline.errors import UserError

app = typer.Typer()

_TABLE = "File, folder of Parquet files, or URI"


@app.command(
    rich_help_panel=LOOKING,
    epilog="Example: laser init data/readers.csv data/books.csv data/ratings.csv "
    "--output conf/bookshop.yaml",
)
def init(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE", help=f"Tables, in any order. {_TABLE}."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Config to write.")
    ] = Path("conf/own.yaml"),
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Name of the run; else that of the config's file."),
    ] = None,
    users: Annotated[
        str | None, typer.Option(metavar="TABLE", help="The table of users, if it is not seen.")
    ] = None,
    items: Annotated[
        str | None, typer.Option(metavar="TABLE", help="The table of items, if it is not seen.")
    ] = None,
    interactions: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="The table of interactions, if it is not seen."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the config.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented config by looking at tables: which is which, keys, times, attributes."""
    from jobs import init_config

    named = {"users": users, "items": items, "interactions": interactions}
    try:
        proposal = init_config.init(tables or [], output, run=run, overwrite=force, **named)
    except UserError as error:
        refuse(error, as_json)
    if as_json:
        return print_json(
            {"exit_code": 0, "error": None, "config": str(output), "doubts": proposal.doubts}
        )
    typer.echo(f"{output} is written; its lines say what they were taken from")
    for doubt in proposal.doubts:
        typer.echo(f"  check: {doubt}")
    typer.echo(f"next: laser validate --config {output}")
    return None
