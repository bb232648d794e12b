"""What to say where tables do not fit together, or not as they were called."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.compute as pc

from pipeline.column_facts import Column
from pipeline.table_links import HALF, Link, Table, in_common

_FEW = 5  # values, such as those of a rating, occur anywhere

SAY = "say which table is what by --interactions, --items and --users"


def no_items(log: Table, links: Sequence[Link], tables: Sequence[Table]) -> str:
    """No table that the interactions name rows of is one of items; others may be."""
    linked = [log, *(link.table for link in links)]
    rest = [table for table in tables if not any(table is one for one in linked)]
    likely = [table for table in rest if _may_be_items(table)]
    if likely:
        return no_item_ids(log, likely)
    table = links[0].table
    return (
        f"{table.listed} seems to hold users, and no table holds items: every item needs an "
        "id and a title; give that table too, or, if this is it, say so by --items"
    )


def no_item_ids(log: Table, tables: Sequence[Table]) -> str:
    """The interactions lack a column of ids of what are items."""
    names = " or ".join(table.head.name for table in tables)
    return f"no column of the interactions holds ids of {names}; add one to {log.listed}, or {SAY}"


def _may_be_items(table: Table) -> bool:
    """Whether there is an id, and a text that could be a title beside it."""
    columns = table.columns.values()
    return any(
        one.is_unique and two is not one and _may_be_title(two)
        for one in columns
        for two in columns
    )


def _may_be_title(column: Column) -> bool:
    is_text = column.numbers is None and not (column.time or column.is_link)
    return is_text and column.distinct > HALF * column.rows


def no_links(tables: Sequence[Table]) -> str:
    """What was looked at, and ids that are alike but for the zeros before them."""
    looked = "; ".join(table.listed for table in tables)
    cut = _alike_without_zeros(tables)
    if cut:
        return (
            f"{cut} are alike but for leading zeros; write them alike in both. Looked at: {looked}"
        )
    keys = [
        f"{table.head.name}: {', '.join(names) or 'none'}"
        for table in tables
        for names in [[name for name, column in table.columns.items() if column.is_unique]]
    ]
    return (
        "no table names rows of another: interactions need a column whose values occur in a column "
        f"of the items that has another value in each row. Looked at: {looked}; columns with "
        f"another value in each row: {'; '.join(keys)}. "
        "Give all of interactions, items and (if there are any) users, as a whole rather than as "
        "samples of their own"
    )


def _alike_without_zeros(tables: Sequence[Table]) -> str:
    """Two columns whose values are alike if zeros before them are cut off, and only then."""
    columns = [
        (table, column, replace(column, filled=pc.utf8_ltrim(column.values, "0")))
        for table in tables
        for column in table.columns.values()
        if column.distinct > _FEW
    ]
    for keys, key, cut_key in columns:
        if not cut_key.is_unique:
            continue
        for table, column, cut in columns:
            if table is keys or cut.is_unique:
                continue
            if _are_ids(cut, cut_key) and not _are_ids(column, key):
                return f"{table.head.name}.{column.name} and {keys.head.name}.{key.name}"
    return ""


def _are_ids(column: Column, key: Column) -> bool:
    return any(common > HALF * one.distinct for one, common in in_common([column], key))
