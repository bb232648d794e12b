"""Users, items and interactions as readers hand them over: our columns and types, not judged."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.columns import as_attributes, as_ids, as_ratings, as_text, as_timestamps
from pipeline.errors import DataError
from pipeline.row_widths import OddRows

REQUIRED: dict[str, tuple[str, ...]] = {
    "users": ("user_id",),
    "items": ("item_id", "title"),
    "interactions": ("user_id", "item_id", "rating", "timestamp"),
}

_LOOKED_AT, _SHOWN = 100, 40  # values, and characters of one

Read = TypeVar("Read")


class LeftOut(NamedTuple):
    """Rows of a table that a catalog goes on without, of one kind."""

    table: str
    reason: str  # as in "6 rows lack a rating"
    rows: int
    of_rows: int  # that the table had
    is_asked: bool = False  # a setting asks for a smaller catalog


@dataclass(frozen=True)
class RawTables:
    """Tables as read; ids, titles, ratings and timestamps may still be null or wrong.

    users (user_id, attributes), items (item_id, title, attributes), interactions (user_id,
    item_id, rating float64, timestamp int64 in `catalog.timestamp_unit`).
    """

    users: pa.Table
    items: pa.Table
    interactions: pa.Table
    left_out: tuple[LeftOut, ...] = ()  # of what was read
    odd: Mapping[str, OddRows] = field(default_factory=dict)  # by table: rows that are in none
    unread: Mapping[str, str] = field(default_factory=dict)  # by column of interactions: a value


def read_all(*reads: Callable[[], Read]) -> list[Read]:
    """What every one of `reads` gives.

    Raises:
        DataError: some cannot be read; the complaints of all of them, so that a data owner hears
            them at once.
    """
    results, problems = [], []
    for read in reads:
        try:
            results.append(read())
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return results


def our_table(
    columns: Mapping[str, pa.ChunkedArray],
    attributes: Mapping[str, pa.ChunkedArray],
    unit: str,
    file: Path,
    theirs: Mapping[str, str],
) -> pa.Table:
    """Convert every column; interactions, which have a timestamp, get no attributes.

    Raises:
        DataError: some cannot be converted; all of them are named as the user does, by `theirs`.
    """
    problems: list[str] = []

    def convert(read: Callable[..., pa.ChunkedArray], label: str, *column: Any) -> pa.ChunkedArray:
        try:
            return read(*column, f"{file}, column {label}")
        except DataError as error:
            problems.append(str(error))
            return pa.chunked_array([], pa.string())

    table = {}
    for ours, column in columns.items():
        label = theirs[ours] + ("" if theirs[ours] == ours else f" (our {ours})")
        if ours == "timestamp":
            table[ours] = convert(as_timestamps, label, column, unit)
        elif ours == "rating":
            table[ours] = convert(as_ratings, label, column)
        else:
            table[ours] = convert(as_text if ours == "title" else as_ids, label, column)
    texts = {name: convert(as_text, name, column) for name, column in attributes.items()}
    if problems:
        raise DataError("\n".join(problems))
    if "timestamp" not in table:
        table["attributes"] = as_attributes(pa.table(texts), len(table[next(iter(table))]))
    return pa.table(table)


def unread_value(theirs: pa.ChunkedArray, ours: pa.ChunkedArray) -> str | None:
    """The first value that was there and could not be read, as a person would write it."""
    places = pc.indices_nonzero(pc.and_(pc.is_null(ours), pc.is_valid(theirs)))
    for place in places[:_LOOKED_AT].to_pylist():
        if value := str(theirs[place].as_py()).strip():
            return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    return None


def users_of(interactions: pa.Table) -> pa.Table:
    """A users table where none is given: whoever rated something, of whom nothing else is known."""
    users = pc.unique(interactions["user_id"]).drop_null()
    return pa.table({"user_id": users, "attributes": as_attributes(pa.table({}), len(users))})
