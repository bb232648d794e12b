"""What the stored tables say: speed of drafting, groups, the map, failures.

Tables in, plain numbers out (report.json); nothing here knows the page. A share of nothing is None.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.knowledge import is_among
from pipeline.row_batches import Batches, rows_among
from pipeline.schemas import KINDS

_MAP_POINTS = 1500  # a larger catalog is sampled: the page must stay small
_EXAMPLES = 3
_INSTEAD = {  # of an own vector
    "group": "no usable text; the vector is the mean of its group",
    "default": "no usable text, nor has its group one; the vector is the mean of its kind",
    "none": "no usable text, nor has its kind one; the vector is zero",
}


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part / whole`, None where either is missing or the whole is zero."""
    return part / whole if part is not None and whole else None


def totals(knowledge: pa.Table) -> dict[str, Any]:
    """Rows, texts, tokens, forward passes and tokens per forward pass."""
    tokens = _sum(pc.list_value_length(knowledge["token_ids"]))
    passes = _sum(knowledge["forward_passes"])
    failed = _sum(pc.not_equal(knowledge["error"], ""))
    return {
        "rows": knowledge.num_rows,
        "written": knowledge.num_rows - failed,
        "errors": failed,
        "tokens": tokens,
        "forward_passes": passes,
        "tokens_per_forward": ratio(tokens, passes),
        "relaxed_tokens": _sum(knowledge["relaxed_tokens"]),
        "relaxed_share": ratio(_sum(knowledge["relaxed_tokens"]), tokens),
        "cut_at_length": _sum(pc.equal(knowledge["finish_reason"], "length")),
    }


def written_now(knowledge: pa.Table) -> pa.Table:
    """The rows of a refresh that are not of the earlier run, which are its wave 0."""
    return knowledge.filter(pc.greater(knowledge["wave"], 0))


def waves(knowledge: pa.Table) -> list[dict[str, Any]]:
    """The totals of each wave and kind, and their decoding rules."""
    rows = []
    for wave in sorted(pc.unique(knowledge["wave"]).to_pylist()):
        of_wave = knowledge.filter(pc.equal(knowledge["wave"], wave))
        for kind in KINDS:
            part = of_wave.filter(pc.equal(of_wave["kind"], kind))
            if part.num_rows:
                rules = sorted(pc.unique(part["rule"]).to_pylist())
                rows.append({"wave": wave, "kind": kind, "rules": rules, **totals(part)})
    return rows


def group_sizes(groups: pa.Table) -> list[dict[str, Any]]:
    """Size, mean cosine distance to the centroid and representatives of every group."""
    counted = groups.group_by(["kind", "route", "group_id"]).aggregate(
        [("entity_id", "count"), ("distance", "mean"), ("representative", "sum")]
    )
    rows = [
        {
            "kind": row["kind"],
            "group_id": row["group_id"],
            "route": row["route"],
            "size": row["entity_id_count"],
            "distance": row["distance_mean"],
            "representatives": row["representative_sum"],
        }
        for row in counted.to_pylist()
    ]
    order = {"user": 0, "item": 1, "collaborative": 0, "attribute": 1}
    return sorted(
        rows,
        key=lambda row: (order[row["kind"]], order[row["route"]], -row["size"], row["group_id"]),
    )


def embedding_map(embeddings: pa.Table, groups: pa.Table, items: pa.Table) -> dict[str, Any] | None:
    """The two main directions of the trained vectors, for a sample of users and items.

    Vectors are scaled to length one first, because groups are made by angle and the length of a
    LightGCN vector is mostly popularity. None when fewer than three vectors were trained.
    """
    trained = embeddings.filter(pc.greater(embeddings["num_interactions"], 0))
    shown = min(trained.num_rows, _MAP_POINTS)
    if shown < 3:
        return None
    sample = np.random.default_rng(0).choice(trained.num_rows, shown, replace=False)
    trained_rows, trained = trained.num_rows, trained.take(np.sort(sample))
    places, explained = _two_directions(trained["vector"].combine_chunks())
    known = groups.select(["kind", "entity_id", "route", "group_id"])
    joined = trained.drop_columns(["vector"]).append_column("row", pa.array(range(shown)))
    joined = joined.join(known, ["kind", "entity_id"]).sort_by("row")
    titles = items.filter(pc.is_in(items["item_id"], value_set=trained["entity_id"]))
    title_of = dict(zip(titles["item_id"].to_pylist(), titles["title"].to_pylist(), strict=True))
    points = [
        {
            "kind": row["kind"],
            "entity_id": row["entity_id"],
            "title": title_of.get(row["entity_id"], "") if row["kind"] == "item" else "",
            "route": row["route"] or "",
            "group_id": row["group_id"] or "",
            "x": round(float(x), 4),
            "y": round(float(y), 4),
        }
        for row, (x, y) in zip(joined.to_pylist(), places, strict=True)
    ]
    return {
        "points": points,
        "explained": explained,
        "trained": trained_rows,
        "untrained": embeddings.num_rows - trained_rows,
    }


def examples(
    knowledge: pa.Table, items: pa.Table, texts: Batches, per_kind: int = 3
) -> list[dict[str, Any]]:
    """Texts of a few entities of each kind, evenly spaced among all that have one.

    `texts` reads the rows of `knowledge` with their texts.
    """
    titles = dict(zip(items["item_id"].to_pylist(), items["title"].to_pylist(), strict=True))
    is_written = pc.equal(knowledge["error"], "")
    found: list[dict[str, Any]] = []
    for kind in KINDS:
        is_wanted = pc.and_(is_written, pc.equal(knowledge["kind"], kind))
        rows = np.flatnonzero(is_wanted.to_numpy())
        spaced = np.linspace(0, len(rows) - 1, min(per_kind, len(rows))).astype(np.int64)
        chosen = rows_among(texts(["entity_id", "text", "finish_reason"]), rows[spaced])
        found += [
            {
                "kind": kind,
                "entity_id": row["entity_id"],
                "title": titles.get(row["entity_id"], "") if kind == "item" else "",
                "text": row["text"],
                "is_cut": row["finish_reason"] == "length",
            }
            for row in chosen.to_pylist()
        ]
    return found


def failures(knowledge: pa.Table, features: pa.Table) -> list[dict[str, Any]]:
    """Failed rows by stage, kind and message (numbers left out), with up to three examples.

    A kind that nothing was to be written about has not failed.
    """
    failed = knowledge.filter(pc.not_equal(knowledge["error"], ""))
    without = features.filter(
        pc.and_(pc.not_equal(features["source"], "own"), is_among(features, knowledge))
    )
    rows = [
        (
            "knowledge",
            row["kind"],
            re.sub(r"\d+", "#", row["error"]),
            row["entity_id"],
            row["error"],
        )
        for row in failed.select(["kind", "error", "entity_id"]).to_pylist()
    ]
    rows += [
        ("features", row["kind"], _INSTEAD[row["source"]], row["entity_id"], "")
        for row in without.select(["kind", "entity_id", "source"]).to_pylist()
    ]
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for stage, kind, pattern, entity_id, message in rows:
        entry = found.setdefault(
            (stage, kind, pattern),
            {
                "stage": stage,
                "kind": kind,
                "message": message or pattern,
                "rows": 0,
                "examples": [],
            },
        )
        entry["rows"] += 1
        if len(entry["examples"]) < _EXAMPLES:
            entry["examples"].append(entity_id)
    return sorted(found.values(), key=lambda entry: -entry["rows"])


def _two_directions(vectors: pa.Array) -> tuple[np.ndarray, list[float]]:
    """Coordinates (rows, 2) by principal components, and the variance share of both."""
    from sklearn.decomposition import PCA

    table = np.asarray(vectors.flatten(), np.float64).reshape(len(vectors), -1)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    wide = np.pad(table, ((0, 0), (0, max(0, 2 - table.shape[1]))))
    if np.ptp(wide, axis=0).max() == 0:
        return np.zeros((len(wide), 2)), [0.0, 0.0]
    model = PCA(n_components=2, svd_solver="full")
    places = model.fit_transform(wide)
    return places, [float(share) for share in model.explained_variance_ratio_]


def _sum(column: Any) -> int:
    return pc.sum(column).as_py() or 0
