"""What a person wants to know of a catalog before a night: rows, likes, splits, what is missing."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.build_catalog import NO_PAST, catalog_facts
from pipeline.catalog import Catalog
from pipeline.config import RunConfig
from pipeline.schemas import SPLITS


def numbers_of(catalog: Catalog, config: RunConfig) -> dict[str, Any]:
    """Tables, splits, and how many entities nothing is known of."""
    rows = catalog.interactions
    has_none = config.catalog.positive_rating is None  # then all are filled in
    seconds = pc.min_max(rows["timestamp"]).as_py()
    return {
        "tables": {
            "users": _entities(catalog.users, "user", rows, config),
            "items": _entities(catalog.items, "item", rows, config)
            | {"without_title": _blank(catalog.items["title"])},
            "interactions": {
                "rows": rows.num_rows,
                "likes": pc.sum(rows["label"]).as_py(),
                "ratings": None if has_none else _ratings(rows["rating"]),
                "first_day": _day(seconds["min"]),
                "last_day": _day(seconds["max"]),
            },
        },
        "splits": {name: _split(rows, name) for name in SPLITS},
        NO_PAST: catalog_facts(catalog)[NO_PAST],
    }


def _entities(table: pa.Table, kind: str, rows: pa.Table, config: RunConfig) -> dict[str, Any]:
    """Of users or items: rows, attributes, who has no interaction, who is cold."""
    ids = table[f"{kind}_id"]
    has_rows = pc.is_in(ids, value_set=pc.unique(rows[f"{kind}_id"]))
    is_edge = pc.and_(pc.equal(rows["split"], "knowledge"), pc.equal(rows["label"], 1))
    edges = rows.filter(is_edge)[f"{kind}_id"].value_counts()
    is_warm = pc.greater_equal(pc.struct_field(edges, "counts"), config.groups.min_interactions)
    warm = pc.struct_field(edges, "values").filter(is_warm)
    is_cold = np.invert(pc.is_in(ids, value_set=warm).to_numpy(zero_copy_only=False))
    group_by = getattr(config.groups, f"{kind}_attributes")
    has_group = np.zeros(table.num_rows, bool)
    for name in group_by:
        found = pc.map_lookup(table["attributes"], name, "first")
        has_group |= pc.is_valid(found).to_numpy(zero_copy_only=False)
    return {
        "rows": table.num_rows,
        "without_interactions": table.num_rows - pc.sum(has_rows).as_py(),
        "cold": int(is_cold.sum()),  # fewer past likes than groups.min_interactions
        "cold_without_attributes": int((is_cold & ~has_group).sum()),
        "attributes_missing_share": _missing(table),
    }


def _missing(table: pa.Table) -> dict[str, float]:
    """Share of the entities that lack an attribute, for each that some have."""
    chunks = [chunk.keys for chunk in table["attributes"].chunks]
    counts = pa.chunked_array(chunks, pa.string()).value_counts().to_pylist()
    return {one["values"]: round(1 - one["counts"] / table.num_rows, 4) for one in counts}


def _split(rows: pa.Table, name: str) -> dict[str, Any]:
    own = rows.filter(pc.equal(rows["split"], name))
    return {
        "rows": own.num_rows,
        "users": pc.count_distinct(own["user_id"]).as_py(),
        "items": pc.count_distinct(own["item_id"]).as_py(),
        "likes": pc.sum(own["label"]).as_py() or 0,
    }


def _blank(texts: pa.ChunkedArray) -> int:
    return pc.sum(pc.equal(pc.utf8_trim_whitespace(texts), "")).as_py() or 0


def _ratings(ratings: pa.ChunkedArray) -> dict[str, float]:
    found = pc.min_max(ratings).as_py()
    return {"least": found["min"], "most": found["max"]}


def _day(second: int) -> str:
    return dt.datetime.fromtimestamp(second, dt.UTC).date().isoformat()
