"""What keeps tables from fitting together, though they nearly do: ids, and separators."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.column_facts import Column, shortened
from pipeline.foreign_files import one_column
from pipeline.table_links import HALF, Table, in_common

_FEW = 5  # values, such as those of a rating, occur anywhere
_CHANGES: dict[str, Callable[[pa.Array], pa.Array]] = {
    "blanks around them": pc.utf8_trim_whitespace,
    "capital letters": pc.utf8_lower,
    "leading zeros": lambda values: pc.utf8_ltrim(values, "0"),  # last: other ids may be so too
}


def alike_but_for(tables: Sequence[Table]) -> str:
    """Two columns whose values are alike but for how they are written, and what to do; or ""."""
    found = (_alike(tables, what, change) for what, change in _CHANGES.items())
    return next(filter(None, found), "")


def _alike(tables: Sequence[Table], what: str, change: Callable[[pa.Array], pa.Array]) -> str:
    columns = [
        (table, column, replace(column, filled=change(column.values)))
        for table in tables
        for column in table.columns.values()
        if column.distinct > _FEW
    ]
    for keys, key, changed_key in columns:
        if not changed_key.is_unique:
            continue
        for table, column, changed in columns:
            if table is keys or changed.is_unique:
                continue
            if _are_ids(changed, changed_key) and not _are_ids(column, key):
                one = f"{table.head.name}.{column.name.strip()}"
                other = f"{keys.head.name}.{key.name.strip()}"
                return f"{one} and {other} are alike but for {what}; write them alike in both"
    return ""


def _are_ids(column: Column, key: Column) -> bool:
    return any(common > HALF * one.distinct for one, common in in_common([column], key))


def unparted(tables: Sequence[Table]) -> str:
    """Tables that have one column only, as if something else parted them, and what to do; or ""."""
    return "; ".join(hint for table in tables if (hint := _unparted(table)))


def _unparted(table: Table) -> str:
    names = table.head.table.column_names
    if len(names) > 1 or names[0].isidentifier():
        return ""
    return f"{table.head.name} {one_column(shortened(names[0]))}"
