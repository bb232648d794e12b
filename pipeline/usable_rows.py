"""`catalog.unusable_rows: drop`: rows that `pipeline.validation` refuses are left out, counted.

What says that a setting is wrong (times in another unit, no rows at all) is refused all the same.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.raw_tables import RawTables

log = logging.getLogger(__name__)


def usable_rows(raw: RawTables) -> RawTables:
    """Entities with an id, each once; interactions of these, rated, with a time, each once.

    Of rows with the same id, or the same user, item and time, the first stays.
    """
    users = _usable_entities(raw.users, "users", "user_id")
    items = _usable_entities(raw.items, "items", "item_id")
    rows = raw.interactions
    for entities, key in ((users, "user_id"), (items, "item_id")):
        is_known = pc.is_in(rows[key], value_set=entities[key])
        rows = _where(rows, is_known, "interactions", f"name {key[:-3]}s that their table lacks")
    rows = _where(rows, pc.is_valid(rows["rating"]), "interactions", "lack a rating")
    has_time = pc.fill_null(pc.greater_equal(rows["timestamp"], 0), False)
    rows = _where(rows, has_time, "interactions", "lack a time")
    is_first = _is_first(rows, ["user_id", "item_id", "timestamp"])
    rows = _where(rows, is_first, "interactions", "repeat the user, item and time of another")
    return RawTables(users, items, rows)


def _usable_entities(table: pa.Table, name: str, key: str) -> pa.Table:
    ids = pc.fill_null(table[key], "")
    is_good = pc.and_(
        pc.not_equal(pc.utf8_trim_whitespace(ids), ""), pc.invert(pc.match_substring(ids, "\0"))
    )
    table = _where(table, is_good, name, f"have no {key} that can be used")
    return _where(table, _is_first(table, [key]), name, f"repeat the {key} of another")


def _is_first(table: pa.Table, keys: list[str]) -> pa.ChunkedArray:
    """Whether no earlier row has the same keys: (rows,) bool."""
    numbered = table.select(keys).append_column("row", pa.array(np.arange(table.num_rows)))
    first = numbered.group_by(keys).aggregate([("row", "min")])["row_min"].to_numpy()
    is_first = np.zeros(table.num_rows, bool)
    is_first[first] = True
    return pa.chunked_array([pa.array(is_first)])


def _where(table: pa.Table, mask: pa.ChunkedArray, name: str, what: str) -> pa.Table:
    kept = table.filter(mask)
    lost = table.num_rows - kept.num_rows
    if lost:
        log.warning("%s: %d of %d rows %s; left out", name, lost, table.num_rows, what)
    return kept
