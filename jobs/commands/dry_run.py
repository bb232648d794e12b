"""What would a command do? Its stages on a store that none can write, and how long they would take.

Nothing is written. A stage that is not up to date ends where it would begin its work; what is made
from it is then made anew as well, unless it comes out as it was.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from jobs.commands.durations import Estimate, Size, estimates
from jobs.commands.planned_store import PlannedStore, WouldWork
from jobs.commands.refreshed_rows import Refreshed, refreshed_rows
from jobs.preflight import check_inputs
from jobs.waves import CATALOG
from pipeline.catalog import Catalog, load_catalog
from pipeline.config import RunConfig
from pipeline.errors import CheckError, PartialError
from pipeline.language_model import loads_at_once
from pipeline.store import Store

# What each stage is made from, directly.
NEEDS: dict[str, tuple[str, ...]] = {
    "build_catalog": (),
    "train_embeddings": ("build_catalog",),
    "group_entities": ("train_embeddings",),
    "generate_knowledge": ("group_entities",),
    "build_pools": ("group_entities",),
    "compare_decoding": ("generate_knowledge",),
    "encode_features": ("generate_knowledge",),
    "measure_quality": ("encode_features",),
    "check_ctr": ("encode_features",),
    "write_report": ("compare_decoding", "measure_quality", "check_ctr"),
    "export_features": ("encode_features",),
    "assign_semantic_ids": ("train_embeddings", "encode_features"),
    "train_recommender": ("assign_semantic_ids",),
    "align_drafter": ("train_recommender",),
    "train_retriever": ("train_recommender",),
    "recommend_items": ("train_recommender", "align_drafter", "train_retriever"),
}
_LOAD_TOKENIZERS = ("generate_knowledge", "build_pools", "compare_decoding", "export_drafts")
_UP_TO_DATE = "up to date"


def dry_run(config: RunConfig, store: Store, stages: Sequence[str]) -> dict[str, Any]:
    """What `stages` would do: `rows` of the catalog, and of every stage its `state` and seconds.

    `exit_code` is that of what a run would refuse at once, or of a threshold that is missed; 0 if
    there is nothing of the kind.
    """
    if len(stages) > 1:
        check_inputs(config, "generate_knowledge" in stages)
    states = list(_states(config, PlannedStore(store), stages))
    by_stage = {one.stage: one for one in states}
    is_made = "build_catalog" not in by_stage or by_stage["build_catalog"].is_done
    catalog = None if is_made else load_catalog(config.catalog)
    rows = _rows(store, catalog)
    refreshed = _refreshed(config, store, catalog, by_stage.get("generate_knowledge"))
    expected = estimates(config, _size(config, rows, refreshed))
    return {
        "run": config.run,
        "folder": store.files.address,
        "rows": rows,
        "texts": _texts(config, rows) if "generate_knowledge" in by_stage else 0,
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
    yield f"run {told['run']} in {told['folder']}: {rows}{texts}"
    if refreshed := told["refreshed"]:
        yield (
            f"{refreshed['kept']:,} texts are kept, if model and parameters are the same; to be "
            f"written: {refreshed['changed']:,} that are asked something else or had failed, "
            f"{refreshed['new']:,} new"
        )
    todo = [stage for stage in told["stages"] if not stage["is_done"]]
    for stage in told["stages"]:
        time = "" if stage["is_done"] else f"{_duration(stage['seconds']):>12}"
        yield f"  {stage['stage']:<20}{time:<14} {stage['state']}"
    if not todo:
        yield "nothing to do, and nothing was written"
        return
    known = [stage["seconds"] for stage in todo if stage["seconds"] is not None]
    bound = "at least " if len(known) < len(todo) else ""
    sources = ", ".join(dict.fromkeys(stage["by"] for stage in todo if stage["by"]))
    total = f"in all {bound}{_duration(sum(known))}, after {sources}" if known else "time unknown"
    yield f"{total}; nothing was written"


def _states(config: RunConfig, store: Store, stages: Sequence[str]) -> Iterator[_State]:
    stale: set[str] = set()
    for stage in stages:
        behind = [need for need in NEEDS.get(stage, ()) if need in stale]
        state = (
            _State(stage, f"after {' and '.join(behind)}")
            if behind
            else _state(config, store, stage)
        )
        if not state.is_done:
            stale.add(stage)
        yield state


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


def _rows(store: Store, catalog: Catalog | None) -> dict[str, int]:
    """Users, items and interactions: of the tables just read, or of the run's catalog.

    Raises:
        DataError: the catalog has not been made.
    """
    if catalog is None:
        return {name: store.require(name).num_rows for name in CATALOG}
    return {name: getattr(catalog, name).num_rows for name in CATALOG}


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


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
