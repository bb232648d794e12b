"""`catalog.unusable_rows: drop`: rows that `pipeline.validation` refuses are left out, counted.

What says that something else is wrong (most times in another unit, more than
`catalog.max_unusable_share` of a table lost, no rows at all) is refused all the same.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.catalog_config import CatalogSettings
from pipeline.errors import UnusableCatalog
from pipeline.raw_tables import LeftOut, RawTables
from pipeline.repeats import EVENT, is_first, repeats
from pipeline.row_widths import ODD_WIDTH
from pipeline.times import TICKS, better_unit, is_plausible

log = logging.getLogger(__name__)


@dataclass
class _Rows:
    """What is left of a table, and how many rows went for which reason."""

    name: str
    table: pa.Table
    lost: dict[str, int] = field(default_factory=dict)

    def keep(self, mask: pa.ChunkedArray, reason: str) -> None:
        before = self.table.num_rows
        self.table = self.table.filter(mask)
        if self.table.num_rows < before:
            self.lost[reason] = before - self.table.num_rows

    def keep_first(self, *keys: str) -> None:
        is_new = pa.chunked_array([pa.array(is_first(self.table, keys))])
        self.keep(is_new, f"{repeats(*keys)}, which is kept")

    @property
    def given(self) -> int:
        return self.table.num_rows + sum(self.lost.values())


def usable_rows(raw: RawTables, settings: CatalogSettings) -> RawTables:
    """Entities with an id, each once; interactions of these, rated, with a time, each once.

    Of rows with the same id, or the same user, item and time, the first stays.

    Raises:
        UnusableCatalog: more of a table would be left out than the settings allow, or all of it.
    """
    users = _usable_entities(_rows_of(raw, "users"), "user_id")
    items = _usable_entities(_rows_of(raw, "items"), "item_id")
    rows = _rows_of(raw, "interactions")
    for entities, key in ((users, "user_id"), (items, "item_id")):
        is_known = pc.is_in(rows.table[key], value_set=entities.table[key])
        rows.keep(is_known, f"name {key[:-3]}s that their table lacks")
    rows.keep(pc.is_valid(rows.table["rating"]), "lack a rating")
    times = rows.table["timestamp"]
    rows.keep(pc.fill_null(pc.greater_equal(times, 0), False), "lack a time")
    if better_unit(raw.interactions["timestamp"].drop_null(), settings.timestamp_unit) is None:
        _keep_plausible_times(rows, settings.timestamp_unit)  # else the unit is wrong, not the rows
    rows.keep_first(*EVENT)
    tables = (users, items, rows)
    _require_enough(tables, settings.max_unusable_share)
    left_out = tuple(
        LeftOut(one.name, reason, count, one.given)
        for one in tables
        for reason, count in one.lost.items()
    )
    for one in left_out:
        told = (one.table, one.rows, one.of_rows, one.reason)
        log.warning("%s: %d of %d rows %s; left out", *told)
    return RawTables(*(one.table for one in tables), left_out=raw.left_out + left_out)


def _rows_of(raw: RawTables, name: str) -> _Rows:
    """All rows of a table, without those that the reader had to leave out."""
    lost = {ODD_WIDTH: raw.odd[name].count} if name in raw.odd else {}
    return _Rows(name, getattr(raw, name), lost)


def _usable_entities(rows: _Rows, key: str) -> _Rows:
    ids = pc.fill_null(rows.table[key], "")
    is_good = pc.and_(
        pc.not_equal(pc.utf8_trim_whitespace(ids), ""), pc.invert(pc.match_substring(ids, "\0"))
    )
    rows.keep(is_good, f"have no {key} that can be used")
    rows.keep_first(key)
    return rows


def _keep_plausible_times(rows: _Rows, unit: str) -> None:
    is_good = is_plausible(rows.table["timestamp"], TICKS[unit])
    if pc.any(is_good).as_py():  # else whoever asks is told what is wrong with all of them
        rows.keep(is_good, f"have a time outside 1990 to tomorrow when read as {unit}")


def _require_enough(tables: tuple[_Rows, ...], most: float) -> None:
    lines = "\n".join(f"  {line}" for rows in tables for line in _too_many(rows, most))
    if lines:
        raise UnusableCatalog(
            f"catalog.unusable_rows: drop would leave out too much:\n{lines}\n  correct the "
            f"tables, or raise catalog.max_unusable_share ({most:g} of a table's rows; all of them "
            "are never left out)"
        )


def _too_many(rows: _Rows, most: float) -> Iterator[str]:
    lost = sum(rows.lost.values())
    if not rows.given:
        yield f"{rows.name}: no rows; check the path"
    elif lost and (lost > most * rows.given or lost == rows.given):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in rows.lost.items())
        yield f"{rows.name}: {lost:,} of {rows.given:,} rows: {reasons}"
