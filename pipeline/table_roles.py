"""Which table holds interactions, which users and which items: by whose values occur in whose.

An interaction names a user and an item by ids that stand in a column of their own in the tables
of these, each once. Names of tables and columns decide where values do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.column_facts import Column
from pipeline.errors import DataError
from pipeline.table_links import Link, Table, links_from
from pipeline.table_misfits import no_item_ids, no_items, no_links
from pipeline.table_words import means

_OF_KIND = 0.3  # what a name weighs beside the links of a table

_Chain = tuple[Table, Sequence[Link]]  # what may be interactions, with what they name rows of


@dataclass(frozen=True)
class Roles:
    """Which table is what. Without a link to users there is no table of them."""

    interactions: Table
    to_items: Link
    to_users: Link | None
    is_sure: bool  # that users are not the items
    others: list[Table]


def find_roles(
    tables: Sequence[Table],
    users: Table | None = None,
    items: Table | None = None,
    interactions: Table | None = None,
) -> Roles:
    """The roles of tables, of which some may be given.

    Raises:
        DataError: no table has ids of another, or none is like items.
    """
    may_be = [
        log
        for log in ([interactions] if interactions else tables)
        if log is not users and log is not items
    ]
    chains = _chains(may_be, tables)
    if not chains:
        raise DataError(_wrong_flag(tables, users, items, interactions) or no_links(tables))
    log, links = max(chains, key=_worth)
    to_users, to_items, is_sure = _told_apart(log, links, tables, users, items)
    used = {id(one) for one in (log, to_items.table, to_users and to_users.table)}
    others = [table for table in tables if id(table) not in used]
    return Roles(log, to_items, to_users, is_sure, others)


def _chains(logs: Sequence[Table], tables: Sequence[Table]) -> list[_Chain]:
    return [
        (log, links)
        for log in logs
        if (links := links_from(log, [table for table in tables if table is not log]))
    ]


def _wrong_flag(
    tables: Sequence[Table], users: Table | None, items: Table | None, interactions: Table | None
) -> str:
    """Which table is called what it is not, if without flags one would be interactions."""
    chains = _chains(tables, tables)
    if not chains:
        return ""
    log, links = max(chains, key=_worth)
    holds = " and ".join(
        f"{link.column.name} holds ids of {link.table.head.name}" for link in links
    )
    name = log.head.name
    for flag, table in (("users", users), ("items", items)):
        if table is log:
            return (
                f"--{flag} names {name}, which holds interactions ({holds}); name it by "
                f"--interactions, and by --{flag} the table of {flag}, or leave the flag out"
            )
    if interactions and _has_time(log) and not _has_time(interactions):
        given = interactions.head.name
        return f"--interactions names {given}, but {name} holds them ({holds}); name that one"
    return ""


def _has_time(table: Table) -> bool:
    return any(is_time(column) for column in table.columns.values())


def _worth(chain: _Chain) -> float:
    """Two links are better than a good one; a log has times, and may be called one."""
    log, links = chain
    named = _OF_KIND * means(log.head.word, "interaction")
    return 10 * len(links) + 5 * _has_time(log) + named + sum(link.score for link in links)


def _told_apart(
    log: Table,
    links: Sequence[Link],
    tables: Sequence[Table],
    users: Table | None,
    items: Table | None,
) -> tuple[Link | None, Link, bool]:
    """The link to users and the one to items, and whether there is no doubt."""
    if items or users:
        to_items = [
            link for link in links if link.table is items or (not items and link.table is not users)
        ]
        if not to_items:
            raise DataError(no_item_ids(log, [items]) if items else no_items(log, links, tables))
        rest = [link for link in links if link is not to_items[0]]
        return (rest[0] if rest else None), to_items[0], True
    scores = [_likeness_to_items(link) for link in links]
    if len(links) == 1:
        if scores[0] < 0:
            raise DataError(no_items(log, links, tables))
        return None, links[0], scores[0] > 0
    first, second = links if scores[0] >= scores[1] else reversed(links)
    return second, first, scores[0] != scores[1]


def _likeness_to_items(link: Link) -> int:
    """Above 0 if a table is like items, below if like users."""
    names = [link.table.head.word, link.key.name, link.column.name]
    others = [name for name in link.table.columns if name != link.key.name]
    score = sum(means(name, "item") - means(name, "user") for name in names)
    score += any(means(name, "genre") for name in others)
    return 2 * score + any(means(name, "title") for name in others)


def is_time(column: Column) -> bool:
    """Whether values are times; ids may be as large, so a name that speaks of ids decides."""
    of_ids = means(column.name, "user") or means(column.name, "item")
    is_id = of_ids and not means(column.name, "time") and column.time != "dates"
    return column.time is not None and not is_id


def columns_but(table: Table, *names: str) -> Mapping[str, Column]:
    """The columns of a table without some."""
    return {name: column for name, column in table.columns.items() if name not in names}
