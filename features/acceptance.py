"""Which drafts stayed: by source, depth and group, and against the chance they were given.

KNOWLEDGE in, plain numbers out. A share of nothing is None.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.measures import ratio
from pipeline.schemas import SOURCES

_TENTHS = 10


def by_source(knowledge: pa.Table) -> list[dict[str, Any]]:
    """Drafted and accepted tokens of each source that drafted anything."""
    drafted = _sum_by_position(knowledge["drafted_by_source"])
    accepted = _sum_by_position(knowledge["accepted_by_source"])
    rows = [
        {"source": name, **_acceptance(drafted, accepted, index)}
        for index, name in enumerate(SOURCES)
    ]
    return [row for row in rows if row["drafted"]]


def by_depth(knowledge: pa.Table) -> list[dict[str, Any]]:
    """Drafted and accepted tokens at each distance from the last committed token, 1 first."""
    drafted = _sum_by_position(knowledge["drafted_by_depth"])
    accepted = _sum_by_position(knowledge["accepted_by_depth"])
    rows = [
        {"depth": index + 1, **_acceptance(drafted, accepted, index)}
        for index in range(len(drafted))
    ]
    return [row for row in rows if row["drafted"]]


def by_group(knowledge: pa.Table) -> list[dict[str, Any]]:
    """Drafted and accepted tokens of each group, and tokens per forward pass, largest first."""
    counts = {
        "drafted": _sum_by_row(knowledge["drafted_by_source"]),
        "accepted": _sum_by_row(knowledge["accepted_by_source"]),
        "tokens": pc.list_value_length(knowledge["token_ids"]),
        "passes": knowledge["forward_passes"],
    }
    columns = {name: knowledge[name] for name in ("kind", "group_id")} | counts
    summed = (
        pa.table(columns)
        .group_by(["kind", "group_id"])
        .aggregate([([], "count_all"), *((name, "sum") for name in counts)])
        .sort_by([("count_all", "descending"), ("kind", "descending"), ("group_id", "ascending")])
    )
    return [
        {
            "kind": row["kind"],
            "group_id": row["group_id"],
            "rows": row["count_all"],
            "drafted": row["drafted_sum"],
            "accepted": row["accepted_sum"],
            "rate": ratio(row["accepted_sum"], row["drafted_sum"]),
            "tokens_per_forward": ratio(row["tokens_sum"], row["passes_sum"]),
        }
        for row in summed.to_pylist()
    ]


def calibration(knowledge: pa.Table) -> dict[str, Any]:
    """Of the rules that had drafts: drafts by their chance to stay, and how many of them did.

    `expected` is the mean of the chances in a bin, which `rate` would be if all of them were right.
    What the draft budget left out is not among them, so drafts of a small chance are few.
    """
    found = []
    for rule in sorted(pc.unique(knowledge["rule"]).to_pylist()):
        rows = knowledge.filter(pc.equal(knowledge["rule"], rule))
        drafted, accepted, chances = (
            np.resize(np.append(_sum_by_position(rows[name]), np.zeros(_TENTHS)), _TENTHS)
            for name in ("drafted_by_chance", "accepted_by_chance", "chance_by_decile")
        )
        if drafted.any():
            found.append({"rule": rule, "bins": _bins(drafted, accepted, chances)})
    return {"by_rule": found}


def _bins(drafted: np.ndarray, accepted: np.ndarray, chances: np.ndarray) -> list[dict[str, Any]]:
    return [
        {
            "low": tenth / _TENTHS,
            "high": (tenth + 1) / _TENTHS,
            **_acceptance(drafted, accepted, tenth),
            "expected": ratio(float(chances[tenth]), int(drafted[tenth])),
        }
        for tenth in range(_TENTHS)
    ]


def _acceptance(drafted: np.ndarray, accepted: np.ndarray, index: int) -> dict[str, Any]:
    tokens = int(drafted[index]) if index < len(drafted) else 0
    kept = int(accepted[index]) if index < len(accepted) else 0
    return {"drafted": tokens, "accepted": kept, "rate": ratio(kept, tokens)}


def _sum_by_position(lists: pa.ChunkedArray) -> np.ndarray:
    """Element-wise sum of lists of any lengths: (longest,) float64."""
    values, lengths = _flat(lists)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.bincount(np.arange(len(values)) - starts, weights=values)


def _sum_by_row(lists: pa.ChunkedArray) -> np.ndarray:
    """Sum of each list: (rows,) int64."""
    values, lengths = _flat(lists)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows, weights=values, minlength=len(lengths)).astype(np.int64)


def _flat(lists: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """All values one after the other, and the lengths of the lists."""
    return pc.list_flatten(lists).to_numpy(), pc.list_value_length(lists).to_numpy()
