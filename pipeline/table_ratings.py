"""Which column of the interactions is a rating, and where there is none why not."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.column_facts import Column, shortened
from pipeline.columns import as_ratings
from pipeline.table_choice import Choice, rivals
from pipeline.table_words import means

_MOST_RATINGS = 101  # distinct values, where the name says nothing
PLAIN_SCALE = 11  # of a rating whose name says nothing


@dataclass(frozen=True)
class Rating:
    """The rating if there is one, else why not; and a doubt about there being none."""

    choice: Choice | None
    why_none: str = ""
    doubt: str = ""


def find_rating(columns: Mapping[str, Column]) -> Rating:
    """The rating among columns that are neither ids nor the time."""
    likely = {name: column for name, column in columns.items() if _may_be_rating(column)}
    counted = [name for name in likely if means(name, "count")]
    named = [name for name in likely if means(name, "rating") and name not in counted]
    plain = [name for name in likely if is_scale(likely[name].ratings) and name not in counted]
    names = list(dict.fromkeys([*named, *plain, *counted]))
    unread = "" if named else _unread(columns)
    if not names:
        return Rating(None, "no column holds numbers of a few kinds", unread)
    chosen = likely[names[0]]
    if chosen.distinct == 1:
        return Rating(None, f"{names[0]} is {chosen.example} in every row", unread)
    seen = f"{chosen.distinct} different values, {_range(chosen)}"
    others = names[1:]
    why = ""
    if named:
        others = named[1:]
    elif names[0] in counted:
        others, why = [], "a count rather than a rating?"
    else:
        why = "its name does not say so"
    why = "; ".join(part for part in (why, unread) if part)
    return Rating(Choice(names[0], seen, rivals(others, why)))


def _may_be_rating(column: Column) -> bool:
    """Whether values can be read as ratings, and are few or called so; true and false only if so.

    Numbers that are times are none, whatever they are called.
    """
    if column.ratings is None or column.time:
        return False
    is_named = means(column.name, "rating")
    return is_named or (column.distinct <= _MOST_RATINGS and not column.is_flag)


def _unread(columns: Mapping[str, Column]) -> str:
    """A column that is called a rating and cannot be read as one, for a doubt."""
    for name, column in columns.items():
        is_named = means(name, "rating") and not means(name, "count")
        if is_named and column.distinct and column.ratings is None and not column.time:
            values = pa.chunked_array([column.values])
            odd = values.filter(pc.is_null(as_ratings(values, name)))[0].as_py()
            return (
                f"{name} seems to be a rating and cannot be read, such as {shortened(odd)!r}: "
                "write numbers, such as 4 or 4.5"
            )
    return ""


def _range(column: Column) -> str:
    values = [0.0] if column.ratings is None else column.ratings.to_pylist()
    return f"{min(values):g} to {max(values):g}"


def is_scale(numbers: pa.ChunkedArray | None) -> bool:
    """Whether numbers look like a rating whatever the name: a few steps, none below zero."""
    values = [] if numbers is None else numbers.unique().to_pylist()
    return 1 < len(values) <= PLAIN_SCALE and min(values) >= 0 and max(values) <= 100
