"""The report of a run as one JSON, for dashboards; `features.page` makes the page for people."""

import json
import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from features import acceptance, measures, provenance, speed
from features.ctr.verdict import outcome
from features.left_out import left_out
from features.step_times import step_times
from pipeline.errors import DataError
from pipeline.parts import read_batches
from pipeline.runs import is_refresh
from pipeline.schemas import KNOWLEDGE
from pipeline.store import Store

# What is said of the texts, with their length, is in memory for all rows; the texts are not.
_COLUMNS = {
    "knowledge": [name for name in KNOWLEDGE.names if name not in ("text", "token_origins")]
}


def summarise(store: Store, previous: str | None = None, no_comparison: str = "") -> dict[str, Any]:
    """Everything that is known about a run, as strict JSON (no NaN: what is missing is null).

    Of a refresh, speed and drafts are those of the rows written now.

    Args:
        store: the run.
        previous: name of the run that a refresh goes on from.
        no_comparison: why there is nothing to compare, "" if there is or nobody has tried.

    Raises:
        DataError: a required dataset is missing or damaged.
    """
    tables = {name: store.read(name, _COLUMNS.get(name)) for name in provenance.REQUIRED}
    knowledge, texts = (
        tables["knowledge"],
        partial(read_batches, store.parts("knowledge"), KNOWLEDGE),
    )
    comparison = _read_json(store, "comparison")
    quality = _read_json(store, "quality")
    ctr = _read_json(store, "ctr")
    speeds = (
        speed.of_comparison(comparison, store.require("comparison").settings)
        if comparison
        else None
    )
    goes_on = is_refresh(store)
    written = measures.written_now(knowledge) if goes_on else knowledge
    refresh = _refresh(knowledge, written, previous) if goes_on else None
    report = {
        "run": store.root.name,
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "headline": _headline(knowledge, written, speeds, ctr) | {"refresh": refresh},
        "left_out": left_out(store),
        "stages": provenance.stages(store, tables, comparison, ctr),
        "knowledge": measures.totals(knowledge),
        "speed": speeds,
        "no_comparison": no_comparison,
        "acceptance": {
            "by_source": acceptance.by_source(written),
            "by_depth": acceptance.by_depth(written),
            "by_group": acceptance.by_group(written),
            "waves": measures.waves(knowledge),
        },
        "calibration": acceptance.calibration(written),
        "steps": step_times(store),
        "waterfall": comparison.get("waterfall") if comparison else None,
        "groups": measures.group_sizes(tables["groups"]),
        "map": measures.embedding_map(tables["embeddings"], tables["groups"], tables["items"]),
        "texts": [_text(text) for text in comparison["texts"]] if comparison else None,
        "examples": [] if comparison else measures.examples(knowledge, tables["items"], texts),
        "quality": quality,
        "ctr": ctr,
        "failures": measures.failures(knowledge, tables["features"]),
        "environment": provenance.environment(),
        "datasets": provenance.datasets(store),
    }
    return _strict(report)


def _drafting_rule(knowledge: pa.Table) -> str:
    """The rule of most rows that had drafts; wave 0 is decoded plainly in every run."""
    counts = {row["values"]: row["counts"] for row in knowledge["rule"].value_counts().to_pylist()}
    counts.pop("plain", None)
    return max(counts, key=counts.__getitem__) if counts else "plain"


def _refresh(knowledge: pa.Table, written: pa.Table, previous: str | None) -> dict[str, Any]:
    return {
        "previous": previous or "the earlier run",
        "kept": knowledge.num_rows - written.num_rows,
        "written": measures.totals(written)["written"],
    }


def _headline(
    knowledge: pa.Table,
    written: pa.Table,
    speeds: Mapping[str, Any] | None,
    ctr: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The six numbers on top of the page; `auc_gain` is the smallest over the models.

    Speeds that cannot be believed give no `speedup`.

    `written` are the rows of `knowledge` that this run wrote itself.
    """
    rule = _drafting_rule(written)
    arms = speeds["arms"] if speeds else []
    ratios = {arm["kind"]: arm["ratio_to_plain"] for arm in arms if arm["arm"] == rule}
    gains = [
        {
            "model": name,
            **result["gain"],
            "outcome": outcome(result["gain"], result["gain_over_shuffled"]),
            "verdict": result["verdict"],
        }
        for name, result in (ctr["models"] if ctr else {}).items()
    ]
    known = [gain for gain in gains if gain["auc"] is not None]
    all_rows, now = measures.totals(knowledge), measures.totals(written)
    numbers = {
        "entities": all_rows["written"],
        "of_rows": all_rows["rows"],
        "errors": all_rows["errors"],
        "tokens": now["tokens"],
        "tokens_per_forward": now["tokens_per_forward"],
        "relaxed_share": now["relaxed_share"],
        "rule": rule,
        "speedup": ratios.pop("all", None),
        "speedup_by_kind": ratios,
        "auc_gain": min(known, key=lambda gain: gain["auc"]) if known else None,
        "auc_gains": gains,
    }
    return speed.without_doubtful(numbers, speeds)


def _text(text: Mapping[str, Any]) -> dict[str, Any]:
    """Comparisons did not always say which texts had been cut."""
    return {"plain_is_cut": False, "relaxed_is_cut": False, **text}


def _read_json(store: Store, name: str) -> dict[str, Any] | None:
    """`<name>/<name>.json` with NaN read as null; None where the dataset was not made."""
    if not store.is_consistent(name):
        return None
    path = store.files.local(name) / f"{name}.json"
    try:
        return _strict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); move its folder away and run again"
        ) from error


def _strict(value: Any) -> Any:
    """The same JSON without NaN and infinity, which are not JSON."""
    if isinstance(value, Mapping):
        return {str(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
