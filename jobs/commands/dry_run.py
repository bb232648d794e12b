"""What would a command do? Its stages on a store that none can write, and how long they would take.

Nothing is written. A stage that is not up to date ends where it would begin its work; what is made
from it is then made anew as well, unless it comes out as it was.
"""

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from jobs.commands.durations import Size, estimates
from jobs.commands.planned_store import NotMade, PlannedStore
from pipeline.catalog import load_catalog
from pipeline.config import RunConfig
from pipeline.mirrored_files import MirroredFiles
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
_UP_TO_DATE = "up to date"


def dry_run(config: RunConfig, store: Store, stages: Sequence[str]) -> dict[str, Any]:
    """What `stages` would do: `rows` of the catalog, and of every stage its `state` and seconds."""
    states = dict(_states(config, _planned(store), stages))
    rows = _catalog_rows(config, store, states.get("build_catalog", _UP_TO_DATE) == _UP_TO_DATE)
    expected = estimates(config, _size(config, rows))
    return {
        "run": config.run,
        "folder": store.files.address,
        "rows": rows,
        "texts": _texts(config, rows),
        "stages": [
            {"stage": stage, "state": state}
            | (
                {"seconds": 0.0, "by": ""}
                if state == _UP_TO_DATE
                else {
                    "seconds": expected[stage].seconds if stage in expected else None,
                    "by": expected[stage].source if stage in expected else "",
                }
            )
            for stage, state in states.items()
        ],
    }


def lines(told: dict[str, Any]) -> Iterator[str]:
    """The same for a terminal."""
    rows = ", ".join(f"{number:,} {name}" for name, number in told["rows"].items())
    yield f"run {told['run']} in {told['folder']}: {rows}; {told['texts']:,} texts"
    for stage in told["stages"]:
        time = "" if stage["state"] == _UP_TO_DATE else f"{_duration(stage['seconds']):>12}"
        yield f"  {stage['stage']:<20}{time:<14} {stage['state']}"
    known = [stage["seconds"] for stage in told["stages"] if stage["seconds"] is not None]
    sources = dict.fromkeys(stage["by"] for stage in told["stages"] if stage["by"])
    if sources:
        yield f"in all {_duration(sum(known))}, after {', '.join(sources)}; nothing was written"
    else:
        yield "nothing to do, and nothing was written"


def _states(config: RunConfig, store: Store, stages: Sequence[str]) -> Iterator[tuple[str, str]]:
    stale: set[str] = set()
    for stage in stages:
        behind = [need for need in NEEDS.get(stage, ()) if need in stale]
        state = f"after {' and '.join(behind)}" if behind else _state(config, store, stage)
        if state != _UP_TO_DATE:
            stale.add(stage)
        yield stage, state


def _state(config: RunConfig, store: Store, stage: str) -> str:
    """Whether a stage would work, and why.

    Raises:
        UserError: it would refuse to.
    """
    logger = logging.getLogger("jobs")
    was, logger.disabled = logger.disabled, True  # it tells what it finds up to date
    try:
        import_module(f"jobs.{stage}").run(config, store)
    except NotMade as error:
        return f"{error.plan.name}: {error.why}"
    finally:
        logger.disabled = was
    return _UP_TO_DATE


def _planned(store: Store) -> Store:
    mirror = store.files.mirror if isinstance(store.files, MirroredFiles) else None
    return PlannedStore(store.root, mirror)


def _catalog_rows(config: RunConfig, store: Store, is_made: bool) -> dict[str, int]:
    """Users, items and interactions: of the run's catalog, or of the tables it would be made from.

    Raises:
        DataError: the tables cannot be used, or the catalog has not been made.
    """
    names = ("users", "items", "interactions")
    if is_made:
        return {name: store.require(name).num_rows for name in names}
    catalog = load_catalog(config.catalog)
    return {name: getattr(catalog, name).num_rows for name in names}


def _texts(config: RunConfig, rows: dict[str, int]) -> int:
    return sum(rows[f"{kind}s"] for kind in config.generation.kinds)


def _size(config: RunConfig, rows: dict[str, int]) -> Size:
    texts, ctr = _texts(config, rows), config.ctr
    return Size(
        rows["interactions"],
        texts,
        texts * config.generation.max_new_tokens,
        config.comparison.rows_per_kind * len(config.generation.kinds) * config.comparison.repeats,
        rows["interactions"] * len(ctr.models) * ctr.seeds,
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
