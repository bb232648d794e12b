"""What would `laser auc` do? A dry run of each of its runs, and of its table."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.check_auc import runs_of
from jobs.cli import read_config
from jobs.commands.dry_run import STEP_COSTS, in_all, in_time, planned
from pipeline.config import RunConfig
from pipeline.runs import open_run
from pipeline.store import Store

_READ_PLAIN = ("measure_quality", "check_ctr")  # of the plain run


def dry_run(
    config: RunConfig, store: Store, path: Path, overrides: Sequence[str]
) -> dict[str, Any]:
    """What each run would do, as `jobs.commands.dry_run` tells it of one.

    Raises:
        UserError: what the command itself would refuse before its first run.
    """
    runs, unfinished = [], set()
    for settings, stages in runs_of(config, path, overrides):
        own = read_config(path, settings)
        plain = own.plain_run or ""
        waiting = {stage: plain for stage in _READ_PLAIN if plain in unfinished}
        runs.append(planned(own, open_run(own.artifacts, own.run), stages, waiting))
        if not all(stage["is_done"] for stage in runs[-1]["stages"]):
            unfinished.add(own.run)
    is_done = all(stage["is_done"] for run in runs for stage in run["stages"])
    is_done = is_done and store.manifest("auc") is not None
    table = {"stage": "auc", "is_done": is_done, "seconds": 0.0, "by": ""}
    return {
        "run": config.run,
        "folder": store.files.address,
        "runs": runs,
        "texts": sum(run["texts"] for run in runs),
        "table": table,
        "exit_code": next((run["exit_code"] for run in runs if run["exit_code"]), 0),
    }


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """The same for a terminal: a line for each run."""
    runs = told["runs"]
    yield f"{told['folder']}: {len(runs)} runs, {told['texts']:,} texts"
    width = max((len(run["run"]) for run in runs), default=0)
    for run in runs:
        todo = [stage for stage in run["stages"] if not stage["is_done"]]
        known = [stage["seconds"] for stage in todo if stage["seconds"] is not None]
        time = in_time(sum(known) if known else None) if todo else ""
        first = f"{todo[0]['stage']}: {todo[0]['state']}" if todo else "up to date"
        yield f"  {run['run']:<{width}} {run['texts']:>8,} texts {time:>12}  {first}"
    if any(run["measures_step_costs"] for run in runs):
        yield STEP_COSTS
    yield in_all([*(stage for run in runs for stage in run["stages"]), told["table"]])
