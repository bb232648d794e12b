"""Which table holds interactions, which users and which items: by whose values occur in whose.

An interaction names a user and an item by ids that stand in a column of their own in the tables
of these, each once. Names of tables and columns decide where values do not.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.column_facts import Column, columns_of
from pipeline.errors import DataError
from pipeline.table_heads import Head
from pipeline.table_words import likeness, means

_HALF = 0.5  # of the distinct values have to occur: fewer are no ids of that table
_SAMPLE = 1_000  # values of a column that tell whether it is worth looking at all
_FEW = 5  # values, such as those of a rating, occur anywhere
_OF_COVER, _OF_NAME, _OF_KIND = 0.3, 0.5, 0.3  # what these weigh beside the share that occurs


@dataclass(frozen=True)
class Table:
    """A table's head with its columns."""

    head: Head
    columns: dict[str, Column]

    @staticmethod
    def of(head: Head) -> "Table":
        """Look at every column of a head."""
        return Table(head, columns_of(head))

    @property
    def listed(self) -> str:
        """Its columns, for a message."""
        return f"{self.head.name} ({', '.join(self.columns)})"


@dataclass(frozen=True)
class Link:
    """A column of the interactions whose values are keys of another table."""

    column: Column
    key: Column
    table: Table
    share: float  # of its distinct values that occur there
    score: float

    @property
    def unknown_rows(self) -> int:
        """Interactions that name what the table lacks."""
        known = pc.is_in(self.column.filled, value_set=self.key.values)
        return len(self.column.filled) - (pc.sum(known).as_py() or 0)

    @property
    def unused(self) -> int:
        """Keys that no interaction names."""
        used = pc.is_in(self.key.values, value_set=self.column.values)
        return self.key.distinct - (pc.sum(used).as_py() or 0)


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
    chains = [
        (log, links)
        for log in ([interactions] if interactions else tables)
        if log is not users and log is not items
        if (links := _links_from(log, [table for table in tables if table is not log]))
    ]
    if not chains:
        raise DataError(_no_links(tables))
    log, links = max(chains, key=_worth)
    to_users, to_items, is_sure = _told_apart(links, users, items)
    used = {id(one) for one in (log, to_items.table, to_users and to_users.table)}
    others = [table for table in tables if id(table) not in used]
    return Roles(log, to_items, to_users, is_sure, others)


def _worth(chain: tuple[Table, Sequence[Link]]) -> float:
    """Two links are better than a good one; a log has times, and may be called one."""
    log, links = chain
    has_time = any(is_time(column) for column in log.columns.values())
    named = _OF_KIND * means(log.head.word, "interaction")
    return 10 * len(links) + 5 * has_time + named + sum(link.score for link in links)


def _links_from(log: Table, others: Sequence[Table]) -> list[Link]:
    """The best links to two of the others, or to one, by columns of their own; [] if none."""
    best: dict[tuple[int, str], Link] = {}
    columns = [column for column in log.columns.values() if _may_link(column)]
    for place, other in enumerate(others):
        for key in [column for column in other.columns.values() if column.is_unique]:
            for column, common in _in_common(columns, key):
                link = _link(column, common, other, key)
                name = (place, column.name)
                if link and (name not in best or best[name].score < link.score):
                    best[name] = link
    pairs = [
        [one, two]
        for (place, name), one in best.items()
        for (other, column), two in best.items()
        if place < other and name != column
    ]
    choices = pairs or [[one] for one in best.values()]
    return max(choices, key=lambda links: sum(link.score for link in links), default=[])


def _may_link(column: Column) -> bool:
    return bool(column.distinct) and not column.is_unique and column.time != "dates"


def _in_common(columns: Sequence[Column], key: Column) -> list[tuple[Column, int]]:
    """How many values of each column are among a key's, of those columns that may have most there.

    Few columns have any: a sample of every one is looked up first. All go at once, because every
    look-up hashes the key anew.
    """
    samples = [column.values[:: max(len(column.values) // _SAMPLE, 1)] for column in columns]
    shares = _counts(samples, key.values)
    likely = [
        column
        for column, sample, count in zip(columns, samples, shares, strict=True)
        if count >= _HALF / 2 * len(sample)
    ]
    counts = _counts([column.values for column in likely], key.values)
    return list(zip(likely, counts, strict=True))


def _counts(texts: Sequence[pa.Array], key: pa.Array) -> list[int]:
    """How many of each of some arrays are among a key's values."""
    found = pc.is_in(pa.chunked_array(texts, pa.string()), value_set=key).to_numpy()
    ends = np.cumsum([0, *(len(some) for some in texts)])
    return [int(found[start:end].sum()) for start, end in pairwise(ends)]


def _link(column: Column, common: int, other: Table, key: Column) -> Link | None:
    """How well the values of a column are keys; None if they are not."""
    share = common / column.distinct
    if share < _HALF:
        return None
    named = max(
        likeness(column.name, key.name), likeness(column.name, f"{other.head.word} {key.name}")
    )
    score = share + _OF_COVER * common / key.distinct + _OF_NAME * named
    for kind in ("user", "item"):
        own, its = means(column.name, kind), means(other.head.word, kind) or means(key.name, kind)
        score += _OF_KIND * (own and its)
    for kind in ("rating", "count", "time"):
        score -= _OF_NAME * (means(column.name, kind) and not means(column.name, "item"))
    return Link(column, key, other, share, score)


def _told_apart(
    links: Sequence[Link], users: Table | None, items: Table | None
) -> tuple[Link | None, Link, bool]:
    """The link to users and the one to items, and whether there is no doubt."""
    if items or users:
        to_items = [
            link for link in links if link.table is items or (not items and link.table is not users)
        ]
        if not to_items:
            raise DataError(
                f"no column of the interactions holds ids of {items.head.name}; {_SAY}"
                if items
                else _no_items(links)
            )
        rest = [link for link in links if link is not to_items[0]]
        return (rest[0] if rest else None), to_items[0], True
    scores = [_likeness_to_items(link) for link in links]
    if len(links) == 1:
        if scores[0] < 0:
            raise DataError(_no_items(links))
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


_SAY = "say which table is what by --interactions, --items and --users"


def _no_items(links: Sequence[Link]) -> str:
    link = links[0]
    return (
        f"{link.table.listed} seems to hold users, and no table holds items: every item needs an "
        "id and a title; give that table too, or, if this is it, say so by --items"
    )


def _no_links(tables: Sequence[Table]) -> str:
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
    stripped = [
        (
            table,
            replace(
                column,
                name=f"{table.head.name}.{column.name}",
                filled=pc.utf8_ltrim(column.values, "0"),
            ),
        )
        for table in tables
        for column in table.columns.values()
        if column.distinct > _FEW
    ]
    for other, key in stripped:
        columns = [one for table, one in stripped if table is not other and not one.is_unique]
        for column, common in _in_common(columns, key) if key.is_unique else ():
            if common > _HALF * column.distinct:
                return f"{column.name} and {key.name}"
    return ""


def is_time(column: Column) -> bool:
    """Whether values are times; ids may be as large, so a name that speaks of ids decides."""
    of_ids = means(column.name, "user") or means(column.name, "item")
    is_id = of_ids and not means(column.name, "time") and column.time != "dates"
    return column.time is not None and not is_id


def columns_but(table: Table, *names: str) -> Mapping[str, Column]:
    """The columns of a table without some."""
    return {name: column for name, column in table.columns.items() if name not in names}
