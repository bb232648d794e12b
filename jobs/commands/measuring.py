"""The commands that measure the program itself: none makes a feature."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from jobs.commands.completion import complete_config
from jobs.commands.options import AsJson, Asked, Config, DryRun, Limit, Settings, asked
from jobs.commands.running import Told, look, run_job, run_work, show_dry_run
from pipeline.config import RunConfig
from pipeline.store import Store

app = typer.Typer()

MEASURING = "Measurements"
_BENCH = Path("conf/bench.yaml")
_MODULES = {
    "decoding": ("benchmark_decoding", _BENCH),
    "refresh": ("benchmark_refresh", _BENCH),
    "fan-out": ("benchmark_fan_out", _BENCH),
    "generative": ("benchmark_generative", Path("conf/bench_generative.yaml")),
    "scale": ("benchmark_scale", Path("conf/scale.yaml")),
    "drafts": ("measure_drafts", _BENCH),
    "sources": ("sweep_pools", Path("conf/sweep.yaml")),
}
What = Literal["decoding", "refresh", "fan-out", "generative", "scale", "drafts", "sources"]
_OWN = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Config; each measurement has its own.",
        autocompletion=complete_config,
    ),
]


@app.command(
    rich_help_panel=MEASURING,
    epilog="Example: laser bench decoding --set 'benchmark.batch_sizes=[1,16]'",
)
def bench(
    what: Annotated[What, typer.Argument(help="What is measured.")] = "decoding",
    config: _OWN = None,
    settings: Settings = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Speed, against targets: of decoding, refreshes, fan-out, lists, stages; what drafts bring."""
    module, own = _MODULES[what]
    on = asked(config or own, settings, limit, as_json)
    if dry_run:
        show_dry_run(lambda _: [module], on, as_json)
    run_job(f"bench {what}", module, on, as_json)


@app.command(rich_help_panel=MEASURING, epilog="Example: laser auc --set ctr.seeds=3")
def auc(
    config: Config = Path("conf/auc.yaml"),
    settings: Settings = None,
    limit: Limit = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """What knowledge is worth, framework by framework, on all of MovieLens-100K (hours)."""
    on = asked(config, settings, limit, as_json)
    if dry_run:
        look(partial(_dry_auc, on), on, as_json, must_exist=False)
    from jobs.check_auc import check

    run_work("auc", lambda: check(*on), as_json)


def _dry_auc(on: Asked, config: RunConfig, store: Store) -> Told:
    from jobs.commands import dry_auc

    facts = dry_auc.dry_run(config, store, *on)
    return facts, dry_auc.lines(facts), facts["exit_code"]
