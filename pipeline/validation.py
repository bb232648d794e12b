"""What may be wrong with raw tables: every problem with its count, examples and a remedy.

All problems are collected before anything is raised, so that a data owner repairs a table once.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import UnusableCatalog
from pipeline.raw_tables import RawTables
from pipeline.repeats import EVENT, is_first, repeats
from pipeline.row_widths import ODD_WIDTH
from pipeline.times import ALL_TICKS, TICKS, better_unit, is_plausible, with_date

_EXAMPLES = 3
_DROP = "correct or drop the rows"


@dataclass(frozen=True)
class Problem:
    """A kind of rows that cannot be used."""

    found: str
    examples: str
    remedy: str
    is_repeat: bool = False  # of a row that can

    def __str__(self) -> str:
        examples = f" ({self.examples})" if self.examples else ""
        return f"{self.found}{examples}; {self.remedy}"

    @property
    def left_out(self) -> str:
        """What is found, for whom goes on without these rows."""
        return f"{self.found}, which is kept" if self.is_repeat else self.found


@dataclass(frozen=True)
class _Fault:
    """What may be wrong with a row, and in which rows of a table it is: (rows,) bool."""

    is_bad: pa.ChunkedArray
    what: str
    remedy: str


def validate(raw: RawTables, timestamp_unit: str) -> None:
    """Refuse tables that would give wrong results later.

    Raises:
        UnusableCatalog: lists every kind of problem found.
    """
    problems = [
        *_odd_problems(raw),
        *_entity_problems(raw, "users", "user_id"),
        *_entity_problems(raw, "items", "item_id"),
        *_interaction_problems(raw, timestamp_unit),
    ]
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        found = [problem.left_out for problem in problems]
        examples = [problem.examples for problem in problems]
        raise UnusableCatalog(f"the catalog cannot be used:\n{lines}", found, examples)


def _odd_problems(raw: RawTables) -> Iterator[Problem]:
    for name, odd in raw.odd.items():
        rows = getattr(raw, name).num_rows + odd.count
        yield Problem(
            f"{name}: {odd.count:,} of {rows:,} rows {ODD_WIDTH}, {odd.lines}",
            odd.examples,
            "quote the cells that hold what parts cells, or drop the rows",
        )


def _entity_problems(raw: RawTables, name: str, key: str) -> list[Problem]:
    table: pa.Table = getattr(raw, name)
    if not table.num_rows:
        return [_no_rows(name)]
    faults = [
        _Fault(_is_blank(table[key]), f"without {key}", "give each an id or drop it"),
        _Fault(
            pc.fill_null(pc.match_substring(table[key], "\0"), False),  # NumPy cuts it off there
            f"have a NUL character in their {key}",
            "remove it here and in the interactions, or drop the rows",
        ),
    ]
    return _problems(raw, name, faults, [key], "keep one row per id")


def _problems(
    raw: RawTables,
    name: str,
    faults: Sequence[_Fault],
    keys: Sequence[str],
    remedy: str,
    per_second: int = 1,
    forgiven: Sequence[_Fault] = (),
) -> list[Problem]:
    """One for every fault that occurs, and one for good rows that repeat an earlier good one.

    `forgiven` faults do not make a row a bad one.
    """
    table: pa.Table = getattr(raw, name)
    found = [_rows_where(raw, name, fault, per_second) for fault in [*faults, *forgiven]]
    again = np.ones(table.num_rows, bool)
    for fault in faults:
        again &= ~fault.is_bad.to_numpy()
    again[again] = ~is_first(table.filter(pa.array(again)), keys)
    is_again = _Fault(pa.chunked_array([pa.array(again)]), repeats(*keys), remedy)
    repeated = _rows_where(raw, name, is_again, per_second)
    return [*chain(*found), *(replace(one, is_repeat=True) for one in repeated)]


def _no_rows(name: str) -> Problem:
    return Problem(f"{name}: no rows", "", "check the path")


def _interaction_problems(raw: RawTables, unit: str) -> list[Problem]:
    table = raw.interactions
    if not table.num_rows:
        return [_no_rows("interactions")]
    faults = []
    for entities, article, name in ((raw.users, "a", "user"), (raw.items, "an", "item")):
        key = f"{name}_id"
        blank = _is_blank(table[key])
        unknown = pc.invert(pc.is_in(table[key], value_set=entities[key]))
        what = f"name {article} {name} that the {name}s table lacks"
        remedy = f"add the {name}s or drop the rows; ids must be written alike ('007' is not '7')"
        faults += [
            _Fault(blank, f"without {key}", "fill it or drop the rows"),
            _Fault(pc.and_(unknown, pc.invert(blank)), what, remedy),
        ]
    is_unrated = pc.is_null(table["rating"])
    what = "without a rating that is a finite number"
    faults.append(
        _Fault(is_unrated, what, "fill it or drop the rows" + _unread("rating", raw, "no number"))
    )
    missing = pc.is_null(table["timestamp"])
    what = "without a readable timestamp"
    remedy = "give numbers, or dates like 2024-05-31" + _unread("timestamp", raw, "neither")
    faults.append(_Fault(missing, what, remedy))
    negative = pc.fill_null(pc.less(table["timestamp"], 0), False)
    faults.append(_Fault(negative, "have a negative timestamp", _DROP))
    outside, is_other_unit = _outside(table["timestamp"], unit)
    certain = faults if is_other_unit else [*faults, outside]
    forgiven = [outside] if is_other_unit else []
    return _problems(raw, "interactions", certain, EVENT, "keep one of each", TICKS[unit], forgiven)


def _unread(column: str, raw: RawTables, what: str) -> str:
    """What is there and cannot be read, if anything is."""
    return f"; {raw.unread[column]!r} is {what}" if column in raw.unread else ""


def _outside(times: pa.ChunkedArray, unit: str) -> tuple[_Fault, bool]:
    """Times that cannot be, and whether that is because most are in another unit."""
    is_out = pc.invert(is_plausible(times, TICKS[unit]))
    is_out = pc.and_(is_out, pc.fill_null(pc.greater_equal(times, 0), False))
    what = f"have a timestamp outside 1990 to tomorrow when read as {unit}"
    known = times.drop_null()
    better = better_unit(known, unit)
    if better is None:
        return _Fault(is_out, what, _remedy_of_few(times.filter(is_out), unit)), False
    other, count = better
    which = "all rows" if count == len(known) else f"{count:,} of {len(known):,} rows"
    remedy = f"set catalog.timestamp_unit: {other}, which fits {which}"
    if other == "ns":
        which = "they fit" if count == len(known) else f"{which} fit"
        remedy = f"{which} nanoseconds: divide by 1,000 and set catalog.timestamp_unit: us"
    return _Fault(is_out, what, remedy), True


def _remedy_of_few(times: pa.ChunkedArray, unit: str) -> str:
    """For times that cannot be, beside others that can."""
    for other, ticks in ALL_TICKS.items():
        if len(times) and pc.all(is_plausible(times, ticks)).as_py():
            return f"in {other} they could be: write them in {unit} as the others, or drop the rows"
    return _DROP


def _is_blank(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(pc.utf8_trim_whitespace(ids), ""), True)


def _rows_where(raw: RawTables, name: str, fault: _Fault, per_second: int) -> list[Problem]:
    """No problem, or one: how many rows, the first of them, what to do."""
    table: pa.Table = getattr(raw, name)
    count = pc.sum(fault.is_bad).as_py() or 0
    if not count:
        return []
    first = pc.indices_nonzero(fault.is_bad)[:_EXAMPLES]
    numbers = ", ".join(f"{row.as_py() + 1:,}" for row in first)
    odd = raw.odd[name].count if name in raw.odd else 0
    where = f"row{'s' if len(first) > 1 else ''} {numbers}"
    where += " of those that can be read" if odd else ""  # whose lines nobody knows
    examples = "; ".join(_shown(row, per_second) for row in table.take(first).to_pylist())
    found = f"{name}: {count:,} of {table.num_rows + odd:,} rows {fault.what}"
    return [Problem(found, f"{where}: {examples}", fault.remedy)]


def _shown(row: dict[str, Any], per_second: int) -> str:
    """A row as an example; a time also as a date."""
    cells = {key: repr(value) for key, value in row.items() if key != "attributes"}
    if isinstance(row.get("timestamp"), int):
        cells["timestamp"] = with_date(row["timestamp"], per_second)
    return ", ".join(f"{key} {cell}" for key, cell in cells.items())
