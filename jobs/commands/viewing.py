"""The commands that only look: nothing is loaded on a GPU, and no run is written."""

import json
from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.completion import complete_entity, complete_group
from jobs.commands.options import AsJson, Config, Limit, Settings, asked, print_json, refuse
from jobs.commands.running import Told, look, run_job
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.store import Store

app = typer.Typer()

LOOKING = "Before a run and beside it"


@app.command(
    rich_help_panel=LOOKING, epilog="Example: laser status --config conf/bookshop.yaml --json"
)
def status(
    config: Config = Path("conf/demo.yaml"),
    settings: Settings = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """How far a run is: running, dead or done. Ends with 0 if every stage is made, 6 if not.

    Whether settings have changed since, `laser run --dry-run` says.
    """

    def view(config: RunConfig, store: Store) -> Told:
        from jobs.show_status import facts_of, lines

        facts = facts_of(config, store)
        return facts, lines(facts), facts["exit_code"]

    look(view, asked(config, settings, limit, as_json), as_json)


@app.command(
    rich_help_panel=LOOKING,
    epilog='Example: laser inspect --group user/collab-0 --text "They also like"',
)
def inspect(
    config: Config = Path("conf/demo.yaml"),
    settings: Settings = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Group to show; else the largest one.",
            autocompletion=complete_group,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What a row has written so far; its drafts are shown."),
    ] = None,
    entity: Annotated[
        str | None,
        typer.Option(
            help="Instead of pools a user or item, as user/42: its prompt, text and vector.",
            metavar="KIND/ID",
            autocompletion=complete_entity,
        ),
    ] = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """What the latest pools hold and would draft, or what a run knows of one user or item."""

    def view(config: RunConfig, store: Store) -> Told:
        if entity is not None:
            from jobs import inspect_entity

            if group is not None or text is not None:
                raise ConfigError("--entity shows one entity; leave out --group and --text")
            facts = inspect_entity.facts_of(config, store, entity)
            return facts, inspect_entity.lines(facts), 0
        from jobs import inspect_pool

        facts = inspect_pool.facts_of(config, store, group, text)
        return facts, inspect_pool.lines(facts), 0

    look(view, asked(config, settings, limit, as_json), as_json)


@app.command(rich_help_panel=LOOKING, epilog="Example: laser validate --config conf/bookshop.yaml")
def validate(
    config: Config = Path("conf/demo.yaml"),
    settings: Settings = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Whether a config, its tables and its models would do, before a night is spent on them."""

    def view(config: RunConfig, store: Store) -> Told:
        from jobs.validate_catalog import facts_of, lines

        facts = facts_of(config)
        return facts, lines(facts), facts["exit_code"]

    if limit is None:
        _refuse_broken(config, settings or [], as_json)
    look(view, asked(config, settings, limit, as_json), as_json, must_exist=False)


def _refuse_broken(config: Path, settings: list[str], as_json: bool) -> None:
    """End here, if the config is wrong itself; tables and models are told about all the same."""
    from jobs.validate_catalog import broken_config_facts, lines

    facts = broken_config_facts(config, settings)
    if not facts:
        return
    if as_json:
        print_json(facts | {"error": "\n".join(facts["problems"])})
    else:
        print("\n".join(lines(facts)))
    raise typer.Exit(facts["exit_code"])


@app.command(
    rich_help_panel=LOOKING,
    epilog="Example: laser plan --set plan.model=qwen2.5-7b --set plan.accelerator=a100-80",
)
def plan(
    config: Config = Path("conf/plan.yaml"),
    settings: Settings = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Price N entities.", metavar="N")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a run would cost on other machines: memory, GPU-hours, money, the best batch."""
    sized = [] if limit is None else [f"plan.entities={limit}"]
    # A run of its own: whoever asks for a price should not wait for the run that is priced.
    on = asked(config, ["run=plan", *(settings or []), *sized])
    if as_json:
        look(_forecast, on, as_json, must_exist=False)
    run_job("plan", "forecast_cost", on, as_json)


def _forecast(config: RunConfig, store: Store) -> Told:
    from jobs.forecast_cost import forecast

    return forecast(config), (), 0


@app.command(rich_help_panel=LOOKING, epilog="Example: laser schema --output conf/schema.json")
def schema(
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; else stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """JSON Schema of a config file, by which an editor completes and checks it."""
    from pipeline.config_schema import json_schema

    if output is None:
        return print_json(json_schema(RunConfig))
    if output.exists() and not force:
        refuse(ConfigError(f"{output} exists; give another --output, or --force to replace it"))
    try:
        output.write_text(json.dumps(json_schema(RunConfig), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        refuse(ConfigError(f"--output {output} cannot be written: {error.strerror}"))
    return None
