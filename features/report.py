"""The report of a run: one JSON for dashboards, one self-contained HTML page for people."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from features import figures, formats, measures, provenance
from pipeline.errors import DataError
from pipeline.store import Store


def summarise(store: Store) -> dict[str, Any]:
    """Everything that is known about a run, as strict JSON (no NaN: what is missing is null).

    Raises:
        DataError: a required dataset is missing or damaged.
    """
    tables = {name: store.read(name) for name in provenance.REQUIRED}
    knowledge = tables["knowledge"]
    comparison = _read_json(store, "comparison")
    ctr = _read_json(store, "ctr")
    speed = _speed(comparison) if comparison else None
    written = measures.totals(knowledge)
    report = {
        "run": store.root.name,
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "headline": _headline(written, _drafting_rule(knowledge), speed, ctr),
        "stages": provenance.stages(store, tables, ctr),
        "knowledge": written,
        "speed": speed,
        "acceptance": {
            "by_source": measures.acceptance_by_source(knowledge),
            "by_depth": measures.acceptance_by_depth(knowledge),
            "waves": measures.waves(knowledge),
        },
        "groups": measures.group_sizes(tables["groups"]),
        "map": measures.embedding_map(tables["embeddings"], tables["groups"], tables["items"]),
        "texts": comparison["texts"] if comparison else None,
        "ctr": ctr,
        "failures": measures.failures(knowledge, tables["features"]),
        "environment": provenance.environment(),
        "datasets": provenance.datasets(store),
    }
    return _strict(report)


def render(report: Mapping[str, Any]) -> str:
    """One HTML page; it loads nothing from anywhere."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ("count", "decimal", "signed", "percent", "times", "duration", "fact")
    environment.filters |= {name: getattr(formats, name) for name in names}
    page = environment.get_template("report_template.html")
    return page.render(
        **report,
        figures=figures,
        flat_facts=formats.flat_facts,
        differences=formats.differences,
        pretty=_pretty,
    )


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _drafting_rule(knowledge: pa.Table) -> str:
    """The rule of most rows that had drafts; wave 0 is decoded plainly in every run."""
    counts = {row["values"]: row["counts"] for row in knowledge["rule"].value_counts().to_pylist()}
    counts.pop("plain", None)
    return max(counts, key=counts.__getitem__) if counts else "plain"


def _headline(
    written: Mapping[str, Any],
    rule: str,
    speed: Mapping[str, Any] | None,
    ctr: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The six numbers on top of the page; `auc_gain` is the smallest over the models."""
    arms = speed["arms"] if speed else []
    ratios = {arm["kind"]: arm["ratio_to_plain"] for arm in arms if arm["arm"] == rule}
    models = ctr["models"] if ctr else {}
    gains = [
        {"model": name, **result["gain"], "verdict": result["verdict"]}
        for name, result in models.items()
    ]
    known = [gain for gain in gains if gain["auc"] is not None]
    return {
        "entities": written["written"],
        "of_rows": written["rows"],
        "tokens": written["tokens"],
        "tokens_per_forward": written["tokens_per_forward"],
        "rule": rule,
        "speedup": ratios.pop("all", None),
        "speedup_by_kind": ratios,
        "auc_gain": min(known, key=lambda gain: gain["auc"]) if known else None,
        "auc_gains": gains,
        "errors": written["errors"],
    }


def _speed(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The comparison with ratios to plain decoding, and with sums over both kinds."""
    arms = [dict(arm) for arm in comparison["arms"]]
    for name in dict.fromkeys(arm["arm"] for arm in arms):
        parts = [arm for arm in arms if arm["arm"] == name]
        if all(part["kind"] != "all" for part in parts):
            arms.append(_all_kinds(name, parts))
    plain = {arm["kind"]: arm["tokens_per_second"] for arm in arms if arm["arm"] == "plain"}
    for arm in arms:
        arm["ratio_to_plain"] = measures.ratio(arm["tokens_per_second"], plain.get(arm["kind"]))
    return {key: comparison[key] for key in comparison if key != "texts"} | {"arms": arms}


def _all_kinds(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    keys = ("rows", "seconds", "new_tokens", "looping_rows")
    sums = {key: sum(part[key] for part in parts) for key in keys}
    passes = [measures.ratio(part["new_tokens"], part["tokens_per_forward"]) for part in parts]
    known = [count for count in passes if count is not None]
    return {
        "arm": name,
        "kind": "all",
        **sums,
        "tokens_per_second": measures.ratio(sums["new_tokens"], sums["seconds"]),
        "tokens_per_forward": (
            measures.ratio(sums["new_tokens"], sum(known)) if len(known) == len(parts) else None
        ),
    }


def _read_json(store: Store, name: str) -> dict[str, Any] | None:
    """`<name>/<name>.json` with NaN read as null; None where the dataset was not made."""
    if not store.is_consistent(name):
        return None
    path = store.path(name) / f"{name}.json"
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
