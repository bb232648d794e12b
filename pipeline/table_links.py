"""Columns of a table whose values are keys of another: in which they stand, each once."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.column_facts import Column, columns_of
from pipeline.table_heads import Head
from pipeline.table_words import likeness, means

HALF = 0.5  # of the distinct values have to occur: fewer are no ids of that table
_SAMPLE = 1_000  # values of a column that tell whether it is worth looking at all
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


def links_from(log: Table, others: Sequence[Table]) -> list[Link]:
    """The best links to two of the others, or to one, by columns of their own; [] if none."""
    best: dict[tuple[int, str], Link] = {}
    columns = [column for column in log.columns.values() if _may_link(column)]
    for place, other in enumerate(others):
        for key in [column for column in other.columns.values() if column.is_unique]:
            for column, common in in_common(columns, key):
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


def in_common(columns: Sequence[Column], key: Column) -> list[tuple[Column, int]]:
    """How many values of each column are among a key's, of those columns that may have most there.

    Few columns have any: a sample of every one is looked up first. All go at once, because every
    look-up hashes the key anew.
    """
    samples = [column.values[:: max(len(column.values) // _SAMPLE, 1)] for column in columns]
    shares = _counts(samples, key.values)
    likely = [
        column
        for column, sample, count in zip(columns, samples, shares, strict=True)
        if count >= HALF / 2 * len(sample)
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
    if share < HALF:
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
