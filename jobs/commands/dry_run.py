"""What would a command do? Its stages on a store that none can write, and how long they would take.

Nothing is written. A stage that is not up to date ends where it would begin its work; what is made
from it is then made anew as well, unless it comes out as it was.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from features.formats import duration
from jobs.commands.durations import Estimate, Size, estimates
from jobs.commands.planned_store import PlannedStore, WouldWork
from jobs.commands.refreshed_rows import Refreshed, refreshed_rows
from jobs.commands.step_costs import are_costs_known
from jobs.left_out import why_no_check, why_no_comparison
from jobs.preflight import check_inputs
from jobs.stage_order import NEEDS, require_before
from jobs.waves import CATALOG
from pipeline.catalog import Catalog, load_catalog
from pipeline.config import RunConfig
from pipeline.errors import CheckError, PartialError
from pipeline.language_model import loads_at_once
from pipeline.store import Store

_LOAD_TOKENIZERS = ("generate_knowledge", "build_pools", "compare_decoding", "export_drafts")
_UP_TO_DATE = "up to date"
_DECODE = ("generate_knowledge", "compare_decoding")
STEP_COSTS = (
    "besides, kernels are compiled and the model's step costs measured, once per batch and "
    "length: about a minute for a small model on two cores"
)


def dry_run(config: RunConfig, store: Store, stages: Sequence[str]) -> dict[str, Any]:
    """What `stages` would do: `rows` of the catalog, and of every stage its `state` and seconds.

    `exit_code` is that of what a run would refuse at once, or of a threshold that is missed; 0 if
    there is nothing of the kind.
    """
    if len(stages) > 1:
        check_inputs(config, "generate_knowledge" in stages)
    else:
        require_before(stages[0], config, store)
    return planned(config, store, stages)


def planned(
    config: RunConfig, store: Store, stages: Sequence[str], waiting: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """As `dry_run`, for whoever has looked at the inputs.

    `waiting` names stages that another run is to be made for first, and that run.
    """
    states = list(_states(config, PlannedStore(store), stages, waiting or {}))
    by_stage = {one.stage: one for one in states}
    is_made = "build_catalog" not in by_stage or by_stage["build_catalog"].is_done
    catalog = None if is_made else load_catalog(config.catalog)
    rows = _rows(store, catalog)
    refreshed = _refreshed(config, store, catalog, by_stage.get("generate_knowledge"))
    expected = estimates(config, _size(config, rows, refreshed)) if rows else {}
    return {
        "run": config.run,
        "folder": store.files.address,
        "rows": rows,
        "texts": _texts(config, rows) if "generate_knowledge" in by_stage else 0,
        "measures_step_costs": _measures_step_costs(config, states),
        "refreshed": refreshed._asdict() if refreshed else None,
        "stages": [_record(one, expected.get(one.stage)) for one in states],
        "exit_code": next((one.exit_code for one in states if one.exit_code), 0),
    }


class _State(NamedTuple):
    """What a stage would do."""

    stage: str
    said: str
    is_done: bool = False
    exit_code: int = 0


def _record(state: _State, expected: Estimate | None) -> dict[str, Any]:
    record = {"stage": state.stage, "state": state.said, "is_done": state.is_done}
    if state.is_done:
        return record | {"seconds": 0.0, "by": ""}
    if expected is None:
        return record | {"seconds": None, "by": ""}
    return record | {"seconds": expected.seconds, "by": expected.source}


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """The same for a terminal."""
    rows = ", ".join(f"{number:,} {name}" for name, number in told["rows"].items())
    texts = f"; {told['texts']:,} texts" if told["texts"] else ""
    yield f"run {told['run']} in {told['folder']}{rows and ': '}{rows}{texts}"
    if refreshed := told["refreshed"]:
        yield (
            f"{refreshed['kept']:,} texts are kept, if model and parameters are the same; to be "
            f"written: {refreshed['changed']:,} that are asked something else or had failed, "
            f"{refreshed['new']:,} new"
        )
    for stage in told["stages"]:
        time = "" if stage["is_done"] else f"{in_time(stage['seconds']):>12}"
        yield f"  {stage['stage']:<20}{time:<14} {stage['state']}"
    if told["measures_step_costs"]:
        yield STEP_COSTS
    yield in_all(told["stages"])


def in_all(stages: Sequence[Mapping[str, Any]]) -> str:
    """The time of all stages, and what it was learnt from."""
    todo = [stage for stage in stages if not stage["is_done"]]
    if not todo:
        return "nothing to do, and nothing was written"
    known = [stage["seconds"] for stage in todo if stage["seconds"] is not None]
    bound = "at least " if len(known) < len(todo) else ""
    sources = ", ".join(dict.fromkeys(stage["by"] for stage in todo if stage["by"]))
    total = f"in all {bound}{in_time(sum(known))}, after {sources}" if known else "time unknown"
    return f"{total}; nothing was written"


def in_time(seconds: float | None) -> str:
    """A duration, or that nobody knows it."""
    return "unknown" if seconds is None else duration(seconds)


def _states(
    config: RunConfig, store: Store, stages: Sequence[str], waiting: Mapping[str, str]
) -> Iterator[_State]:
    stale: set[str] = set()
    for stage in stages:
        behind = [need for need in NEEDS.get(stage, ()) if need in stale]
        if not behind and stage in waiting:
            behind = [f"run {waiting[stage]}"]
        if why := _why_left_out(config, store, stage):
            state = _State(stage, f"left out: {why}", True)
        elif behind:
            state = _State(stage, f"after {' and '.join(behind)}")
        else:
            state = _state(config, store, stage)
        if not state.is_done:
            stale.add(stage)
        yield state


def _why_left_out(config: RunConfig, store: Store, stage: str) -> str:
    """Why a stage would make nothing, whatever came before it."""
    if stage == "check_ctr":
        return why_no_check(config)
    return why_no_comparison(config, store) if stage == "compare_decoding" else ""


def _state(config: RunConfig, store: Store, stage: str) -> _State:
    """Whether a stage would work, and why.

    Raises:
        UserError: it would refuse to.
    """
    if stage in _LOAD_TOKENIZERS and not loads_at_once(config.language_model):
        return _State(stage, "the GGUF file is converted first, and then it is seen")
    logger = logging.getLogger("jobs")
    was, logger.disabled = logger.disabled, True  # it tells what it finds up to date
    try:
        import_module(f"jobs.{stage}").run(config, store)
    except WouldWork as reason:
        return _State(stage, str(reason))
    except (PartialError, CheckError) as error:  # a run goes on, and ends with its code
        return _State(stage, f"{_UP_TO_DATE}; {error}", True, error.exit_code)
    finally:
        logger.disabled = was
    return _State(stage, _UP_TO_DATE, True)


def _measures_step_costs(config: RunConfig, states: Sequence[_State]) -> bool:
    """Whether the engine, before its first row, would measure what a step of this model costs."""
    is_used = any(one.stage in _DECODE and not one.is_done for one in states)
    return is_used and not are_costs_known(config)


def _rows(store: Store, catalog: Catalog | None) -> dict[str, int]:
    """Users, items and interactions: of the tables just read, or of the run's catalog.

    None are known where a measurement has yet to make its catalog.
    """
    if catalog is not None:
        return {name: getattr(catalog, name).num_rows for name in CATALOG}
    made = {name: store.manifest(name) for name in CATALOG}
    return {name: manifest.num_rows for name, manifest in made.items() if manifest}


def _refreshed(
    config: RunConfig, store: Store, catalog: Catalog | None, texts: _State | None
) -> Refreshed | None:
    """Of a refresh whose texts are not up to date, which of them would be kept."""
    if not config.refresh.previous or texts is None or texts.is_done:
        return None
    return refreshed_rows(config, catalog or Catalog(*(store.read(name) for name in CATALOG)))


def _texts(config: RunConfig, rows: dict[str, int]) -> int:
    return sum(rows[f"{kind}s"] for kind in config.generation.kinds)


def _size(config: RunConfig, rows: dict[str, int], refreshed: Refreshed | None) -> Size:
    texts, ctr = _texts(config, rows), config.ctr
    written = refreshed.changed + refreshed.new if refreshed else texts
    kinds = [rows[f"{kind}s"] // config.generation.waves for kind in config.generation.kinds]
    compared = sum(min(of_kind, config.comparison.rows_per_kind) for of_kind in kinds)
    return Size(
        rows["interactions"],
        texts,
        written * config.generation.max_new_tokens,
        min(compared, written) * config.comparison.repeats,
        rows["interactions"] * len(ctr.models) * ctr.seeds,
    )
