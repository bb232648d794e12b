"""What lists are like on the whole: figures for the log and the manifest, part by part."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_MEANS = ("calls", "nodes_scored", "accepted_levels", "rounds", "valid_share")


def facts_of(tables: Iterable[pa.Table]) -> dict[str, Any]:
    """Figures of RECOMMENDATIONS; means are over users without an error."""
    counts, sums, reasons = Counter[str](), Counter[str](), Counter[str]()
    items: set[str] = set()
    asof, first_error = 0, ""
    for table in tables:
        failed, good = (table.filter(test(table["error"], "")) for test in (pc.not_equal, pc.equal))
        counts["users"] += table.num_rows
        counts["errors"] += failed.num_rows
        counts["without_history"] += pc.sum(pc.equal(table["source_events"], 0)).as_py() or 0
        counts["unknown_items"] += pc.sum(table["unknown_items"]).as_py() or 0
        first_error = first_error or next(iter(failed["error"].to_pylist()), "")
        for name in _MEANS:
            sums[name] += pc.sum(good[name]).as_py() or 0
        sums["list_length"] += pc.sum(pc.list_value_length(good["item_ids"])).as_py() or 0
        reasons.update(table["exit_reason"].to_pylist())
        items.update(pc.unique(pc.list_flatten(table["item_ids"])).to_pylist())
        asof = max(asof, pc.max(table["asof"]).as_py() or 0)
    served = max(counts["users"] - counts["errors"], 1)
    return {
        **counts,
        "first_error": first_error,
        **{name: round(sums[name] / served, 3) for name in ("list_length", *_MEANS)},
        "exit_reasons": dict(reasons),
        "items_recommended": len(items),
        "asof": asof,
    }
