"""The commands that measure the program itself: none makes a feature."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from jobs import cli
from jobs.commands.options import AsJson, Config, Settings, asked
from jobs.commands.running import finish, run_job

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
    Path | None, typer.Option("--config", "-c", help="Config; each measurement has its own.")
]


@app.command(
    rich_help_panel=MEASURING,
    epilog="Example: laser bench decoding --set 'benchmark.batch_sizes=[1,16]'",
)
def bench(
    what: Annotated[What, typer.Argument(help="What is measured.")] = "decoding",
    config: _OWN = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Speed, against targets: of decoding, refreshes, fan-out, lists, stages; what drafts bring."""
    module, own = _MODULES[what]
    run_job(f"bench {what}", module, asked(config or own, settings), as_json)


@app.command(rich_help_panel=MEASURING, epilog="Example: laser auc")
def auc(
    config: Config = Path("conf/auc.yaml"), settings: Settings = None, as_json: AsJson = False
) -> None:
    """What knowledge is worth, framework by framework, on all of MovieLens-100K (hours)."""
    on = asked(config, settings)

    def work() -> cli.Ended:
        from jobs.check_auc import check

        return check(*on)

    finish("auc", work, on, as_json)
