"""What to say where tables do not fit together, or not as they were called."""

from collections.abc import Sequence

from pipeline.column_facts import Column
from pipeline.table_links import HALF, Link, Table
from pipeline.table_near_misses import alike_but_for

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
    if near := alike_but_for([log, *tables]):
        return near
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
    """What was looked at, and ids that are alike but for how they are written."""
    looked = "; ".join(table.listed for table in tables)
    if near := alike_but_for(tables):
        return f"{near}. Looked at: {looked}"
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
