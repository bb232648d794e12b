"""What may be wrong with raw tables: every problem with its count, examples and a remedy.

All problems are collected before anything is raised, so that a data owner repairs a table once.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import UnusableCatalog
from pipeline.raw_tables import RawTables
from pipeline.times import NANOSECONDS, TICKS, is_plausible

_EXAMPLES = 3


@dataclass(frozen=True)
class Problem:
    """A kind of rows that cannot be used."""

    found: str
    examples: str
    remedy: str

    def __str__(self) -> str:
        examples = f" ({self.examples})" if self.examples else ""
        return f"{self.found}{examples}; {self.remedy}"


def validate(raw: RawTables, timestamp_unit: str) -> None:
    """Refuse tables that would give wrong results later.

    Raises:
        UnusableCatalog: lists every kind of problem found.
    """
    problems = [
        *_entity_problems(raw.users, "users", "user_id"),
        *_entity_problems(raw.items, "items", "item_id"),
        *_interaction_problems(raw),
        *_timestamp_problems(raw.interactions, timestamp_unit),
    ]
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        found = [problem.found for problem in problems]
        raise UnusableCatalog(f"the catalog cannot be used:\n{lines}", found)


def _entity_problems(table: pa.Table, name: str, key: str) -> list[Problem]:
    if not table.num_rows:
        return [_no_rows(name)]
    ids = table[key]
    counts = ids.filter(pc.invert(_is_blank(ids))).value_counts()
    repeated = counts.filter(pc.greater(pc.struct_field(counts, "counts"), 1))
    twice = pc.is_in(ids, value_set=pc.struct_field(repeated, "values"))
    return [
        *_rows_where(table, name, _is_blank(ids), f"without {key}", "give each an id or drop it"),
        *_rows_where(
            table, name, twice, f"share their {key} with another row", "keep one row per id"
        ),
        *_rows_where(
            table,
            name,
            pc.fill_null(pc.match_substring(ids, "\0"), False),  # NumPy cuts it off at the end
            f"have a NUL character in their {key}",
            "remove it here and in the interactions, or drop the rows",
        ),
    ]


def _no_rows(name: str) -> Problem:
    return Problem(f"{name}: no rows", "", "check the path")


def _interaction_problems(raw: RawTables) -> list[Problem]:
    table = raw.interactions
    if not table.num_rows:
        return [_no_rows("interactions")]
    problems = []
    for entities, article, name in ((raw.users, "a", "user"), (raw.items, "an", "item")):
        key = f"{name}_id"
        blank = _is_blank(table[key])
        unknown = pc.invert(pc.is_in(table[key], value_set=entities[key]))
        problems += _rows_where(
            table, "interactions", blank, f"without {key}", "fill it or drop the rows"
        )
        problems += _rows_where(
            table,
            "interactions",
            pc.and_(unknown, pc.invert(blank)),
            f"name {article} {name} that the {name}s table lacks",
            f"add the {name}s or drop the rows; ids must be written alike ('007' is not '7')",
        )
    problems += _rows_where(
        table,
        "interactions",
        pc.is_null(table["rating"]),
        "without a rating that is a finite number",
        "fill it or drop the rows",
    )
    return [*problems, *_repeated_problems(table)]


def _repeated_problems(table: pa.Table) -> list[Problem]:
    keys = ["user_id", "item_id", "timestamp"]
    counts = table.group_by(keys).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1))
    if not repeated.num_rows:
        return []
    rows = pc.sum(repeated["count_all"]).as_py()
    examples = _examples(repeated.sort_by([(key, "ascending") for key in keys]), keys)
    found = f"interactions: {rows:,} rows repeat the (user_id, item_id, timestamp) of another"
    return [Problem(found, examples, "keep one of each")]


def _timestamp_problems(table: pa.Table, unit: str) -> list[Problem]:
    times = table["timestamp"]
    negative = pc.fill_null(pc.less(times, 0), False)
    outside = pc.and_(pc.invert(is_plausible(times, TICKS[unit])), pc.invert(negative))
    missing = pc.is_null(times)
    valid = times.filter(pc.invert(missing))
    fits = [other for other, ticks in TICKS.items() if pc.all(is_plausible(valid, ticks)).as_py()]
    remedy = "correct or drop the rows"
    if len(valid) and fits:
        remedy = f"set catalog.timestamp_unit: {fits[0]}, which fits all rows"
    elif len(valid) and pc.all(is_plausible(valid, NANOSECONDS)).as_py():
        remedy = "they fit nanoseconds: divide by 1,000 and set catalog.timestamp_unit: us"
    what = f"have a timestamp outside 1990 to tomorrow when read as {unit}"
    return [
        *_rows_where(
            table,
            "interactions",
            missing,
            "without a readable timestamp",
            "give numbers or ISO dates",
        ),
        *_rows_where(
            table, "interactions", negative, "have a negative timestamp", "correct or drop the rows"
        ),
        *_rows_where(table, "interactions", outside, what, remedy),
    ]


def _is_blank(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(pc.utf8_trim_whitespace(ids), ""), True)


def _rows_where(
    table: pa.Table, name: str, mask: pa.ChunkedArray, what: str, remedy: str
) -> list[Problem]:
    """No problem, or one: how many rows, the first of them, what to do."""
    count = pc.sum(mask).as_py() or 0
    if not count:
        return []
    columns = [column for column in table.column_names if column != "attributes"]
    first = pc.indices_nonzero(mask)[:_EXAMPLES]
    numbers = ", ".join(str(row.as_py() + 1) for row in first)
    examples = _examples(table.take(first), columns)
    found = f"{name}: {count:,} of {table.num_rows:,} rows {what}"
    return [Problem(found, f"rows {numbers}: {examples}", remedy)]


def _examples(table: pa.Table, columns: Sequence[str]) -> str:
    rows = table.slice(0, _EXAMPLES).select(list(columns)).to_pylist()
    return "; ".join(", ".join(f"{key} {value!r}" for key, value in row.items()) for row in rows)
