"""What the columns of a user's own tables are: ids, title, rating, time, attributes.

Only looks at the heads of tables, and proposes; every choice comes with what was seen, and where
it could be another with a doubt.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.column_facts import Column
from pipeline.errors import DataError
from pipeline.personal_columns import why_personal
from pipeline.table_choice import Choice, rivals
from pipeline.table_links import Table
from pipeline.table_ratings import PLAIN_SCALE, Rating, find_rating, is_scale
from pipeline.table_roles import Roles, columns_but, is_time
from pipeline.table_times import find_time
from pipeline.table_words import likeness_to_title, means

_LONG_TITLE, _LONG_TEXT = 150, 300  # characters
_FEW_PER_GROUP = 3  # entities of a value, in the mean
_MOST_GROUPS = 50
_GROUPED_BY = 2  # attributes, at most
_PERSONAL = 0.8  # of the users have another value: it names them rather than describes them


@dataclass(frozen=True)
class Attributes:
    """What is kept of the columns of an entity's table, and what not."""

    kept: list[Choice]
    left_out: list[Choice]
    grouped: list[str] = field(default_factory=list)  # most important first


@dataclass(frozen=True)
class Guess:
    """What the three tables are, by the names of their columns."""

    roles: Roles
    user_id: Choice  # of the interactions
    item_id: Choice
    rating: Rating
    timestamp: Choice
    unit: str
    title: Choice
    user_attributes: Attributes
    item_attributes: Attributes


def guess_tables(roles: Roles) -> Guess:
    """Say what the columns are.

    Raises:
        DataError: there is no title, no time, or no column that could name users.
    """
    log, items, users = roles.interactions, roles.to_items, roles.to_users
    item_id = Choice(items.column.name, _seen_ids(items.column, items.key, items.table))
    known = [item_id.column, *([users.column.name] if users else [])]
    timestamp = find_time(columns_but(log, *known), log.head.path)
    if users:
        user_id = Choice(users.column.name, _seen_ids(users.column, users.key, users.table))
    else:
        user_id = _user_id(log, columns_but(log, item_id.column, timestamp.column))
    rest = columns_but(log, item_id.column, user_id.column, timestamp.column)
    title = _title(items.table, columns_but(items.table, items.key.name))
    facts = columns_but(items.table, items.key.name, title.column)
    told = columns_but(users.table, users.key.name) if users else {}
    unit = log.columns[timestamp.column].time
    return Guess(
        roles=roles,
        user_id=user_id,
        item_id=item_id,
        rating=find_rating(rest),
        timestamp=timestamp,
        unit="s" if unit in (None, "dates") else unit,
        title=title,
        user_attributes=_attributes(told, is_user=True),
        item_attributes=_attributes(facts, is_user=False),
    )


def _seen_ids(column: Column, key: Column, table: Table) -> str:
    found = f"{column.distinct:,} distinct"
    return f"{found}, looked up in {table.head.name}, column {key.name}"


def _user_id(log: Table, columns: Mapping[str, Column]) -> Choice:
    """Who did it, where no table of users says so."""
    likely = {
        name: column
        for name, column in columns.items()
        if 1 < column.distinct < 0.9 * len(column.filled) and not is_time(column)
    }
    named = [name for name in likely if means(name, "user")]
    names = sorted(named or likely, key=lambda name: -likely[name].distinct)
    if not names:
        raise DataError(
            f"{log.listed}: no column names users (the same value in several rows, and not the "
            "item, the rating or the time); add one, or say by --interactions which table is them"
        )
    doubt = "" if len(named) == 1 else rivals(names[1:], "no table of users tells")
    return Choice(names[0], f"{likely[names[0]].distinct:,} distinct", doubt)


def _title(table: Table, columns: Mapping[str, Column]) -> Choice:
    texts = {
        name: column
        for name, column in columns.items()
        if column.distinct and column.numbers is None and not (column.time or column.is_link)
    }
    named = [name for name in columns if likeness_to_title(name) and columns[name].distinct]
    named.sort(key=likeness_to_title, reverse=True)
    spread = {name: column.distinct / len(column.filled) for name, column in texts.items()}
    others = [
        name
        for name, column in texts.items()
        if spread[name] > 0.5 and column.length <= _LONG_TITLE and not means(name, "genre")
    ]
    others.sort(key=lambda name: (means(name, "maker"), -spread[name]))
    best = [name for name in named if name in others]
    called = [name for name in columns if means(name, "title") and columns[name].distinct]
    names = list(dict.fromkeys([*best, *named, *others, *called]))
    if not names:
        raise DataError(
            f"{table.listed}: no column is a title, a text of its own for nearly every item; an "
            "item needs one. Add such a column, or say by --items which table the items are"
        )
    chosen = columns[names[0]]
    seen = f"{chosen.distinct:,} distinct texts, such as {chosen.example!r}"
    missing = chosen.rows - len(chosen.filled)
    seen += f"; {missing:,} items have none" if missing else ""
    others = [name for name in names[1:] if name in named] if named else names[1:]
    why = "" if names[0] in named else _why_no_title(names[0])
    return Choice(names[0], seen, rivals(others, why))


def _why_no_title(name: str) -> str:
    if means(name, "maker"):
        return "names who made it rather than the item?"
    return "names a kind of items rather than the item?" if means(name, "genre") else ""


def _attributes(columns: Mapping[str, Column], is_user: bool) -> Attributes:
    kept, left_out = [], []
    for name, column in columns.items():
        why_not = _why_no_attribute(column, is_user)
        if why_not:
            left_out.append(Choice(name, why_not))
        else:
            kept.append(Choice(name, _seen_values(column)))
    return Attributes(kept, left_out, _to_group_by(columns, [choice.column for choice in kept]))


def _why_no_attribute(column: Column, is_user: bool) -> str:
    if column.distinct < 2:
        return f"always {column.example!r}" if column.distinct else "empty"
    if is_user and (why := why_personal(column)):
        return why
    if column.is_link:
        return "addresses"
    if column.time and (column.time == "dates" or not is_scale(column.numbers)):
        return "a time"
    if column.distinct <= _PERSONAL * len(column.filled):
        return ""
    if is_user:
        return "nearly every user has another value, so it may be personal and says little"
    if column.numbers is not None:
        return "nearly every item has another number"
    return f"long texts, {column.length:.0f} characters" if column.length > _LONG_TEXT else ""


def _seen_values(column: Column) -> str:
    empty = 1 - column.filled_share
    seen = f"{column.distinct:,} distinct" + (f", {empty:.0%} empty" if empty >= 0.005 else "")
    seen += f", such as {column.example!r}"
    if column.parted_by:
        seen += f"; cells hold several, parted by {column.parted_by!r}, and count as one value"
    return seen


def _to_group_by(columns: Mapping[str, Column], names: Sequence[str]) -> list[str]:
    """Attributes of a few values that most entities have; a genre first, then the fewest values."""
    good = [
        name
        for name in names
        if columns[name].distinct * _FEW_PER_GROUP <= len(columns[name].filled)
        and columns[name].distinct <= _MOST_GROUPS
        and columns[name].filled_share > 0.5
        and not (columns[name].numbers is not None and columns[name].distinct > PLAIN_SCALE)
    ]
    good.sort(key=lambda name: (not means(name, "genre"), columns[name].distinct))
    return good[:_GROUPED_BY]
