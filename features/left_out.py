"""Rows of the raw tables that a run goes without, for the report."""

from typing import Any

from pipeline.catalog import LEFT_OUT
from pipeline.store import Store


def left_out(store: Store) -> list[dict[str, Any]] | None:
    """Tables that lost rows, how many of how many, and why; None if nobody has counted them."""
    manifest = store.require("interactions")
    counted = manifest.facts.get(LEFT_OUT)
    if counted is None:  # of an older program
        return None if _may_lack_rows(manifest.settings.get("catalog", {})) else []
    tables: dict[str, dict[str, Any]] = {}
    for one in counted:
        start = {"table": one["table"], "rows": 0, "of_rows": one["of_rows"], "reasons": []}
        table = tables.setdefault(one["table"], start)
        table["rows"] += one["rows"]
        table["reasons"].append({key: one[key] for key in ("rows", "reason", "is_asked")})
    return list(tables.values())


def _may_lack_rows(catalog: dict[str, Any]) -> bool:
    is_cut = any(catalog.get(name) for name in ("max_users", "max_items"))
    drops = catalog.get("unusable_rows") == "drop" or catalog.get("source") == "amazon_books"
    return is_cut or drops
