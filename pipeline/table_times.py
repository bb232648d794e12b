"""Which column of the interactions is the time, and what to do with one that cannot be read."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.column_facts import Column, shortened
from pipeline.errors import DataError
from pipeline.table_choice import Choice, rivals
from pipeline.table_roles import is_time
from pipeline.table_words import means
from pipeline.times import ALL_TICKS, TICKS, with_date

_NEARLY_ALL = 0.95
_AS_ISO = "write them as 2024-05-31, or 2024-05-31 12:30:00"
_ALSO_ISO = "dates in another form"
_DAY, _MONTH = "(0?[1-9]|[12][0-9]|3[01])", "(0?[1-9]|1[0-2])"
_OTHER_DATES = {  # what cells are, by how they begin; a time of day may follow
    r"^(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])$": "days without dashes",
    rf"^{_DAY}[.]{_MONTH}[.]([0-9]{{2}}|[0-9]{{4}})\b": "days before months",
    r"^([0-9]{1,2}/){2}([0-9]{2}|[0-9]{4})\b": "dates whose year comes last",
    r"^([0-9]{1,2}-){2}([0-9]{2}|[0-9]{4})\b": "dates whose year comes last",
    rf"^[0-9]{{4}}([-/.]){_MONTH}([-/.]){_DAY}\b": _ALSO_ISO,
}


def find_time(columns: Mapping[str, Column], file: Path | str) -> Choice:
    """The time among columns of `file` that name no user and no item.

    Raises:
        DataError: there is none; what was looked at, the likely one and what to do with it.
    """
    usable = {name: one for name, one in columns.items() if is_time(one) and one.time != "ns"}
    if not usable:
        looked = "; ".join(f"{name} ({column.example!r})" for name, column in columns.items())
        raise DataError(
            f"{file}: no column of the interactions is a time from 1990 to tomorrow: numbers of s, "
            "ms or us since 1970, or dates whose year comes first, like 2024-05-31, 2024/5/1 or "
            "2024-05-31 12:30:00; looked at " + "; ".join([looked, *_likely(columns)[:1]])
        )
    named = [name for name in usable if means(name, "time")]
    names = [*named, *(name for name in usable if name not in named)]
    chosen = usable[names[0]]
    what = "dates" if chosen.time == "dates" else f"numbers that are times in {chosen.time}"
    seen = f"{what}, such as {_shown(chosen)}"
    unread = "" if named else "; ".join(_likely(columns)[:1])
    return Choice(names[0], seen, rivals(names[1:], unread) if len(named) != 1 else "")


def _shown(column: Column) -> str:
    """An example, a number also as a date."""
    number = column.example.split(".")[0]
    is_number = column.time != "dates" and number.isascii() and number.isdigit()
    return with_date(int(number), TICKS[column.time or "s"]) if is_number else column.example


def _likely(columns: Mapping[str, Column]) -> list[str]:
    """Columns that are times in a form that is not read, each with what to do; the named first."""
    found = {name: hint for name, column in columns.items() if (hint := _hint(column))}
    hints = [f"{name} {found[name]}" for name in sorted(found, key=lambda name: not _called(name))]
    called = [name for name in columns if _called(name) and not is_time(columns[name])]
    return hints or [f"{name} is called a time: {_AS_ISO}" for name in called]


def _called(name: str) -> bool:
    return means(name, "time")


def _hint(column: Column) -> str:
    """What a column that is no time yet is like, and what to do."""
    if column.time == "ns":
        return "is in ns: divide it by 1,000"
    if column.time or not column.distinct:
        return ""
    for pattern, what in _OTHER_DATES.items():
        if _share(column, pattern) >= _NEARLY_ALL:
            return f"holds {what}: {_AS_ISO}"
    parts = {unit: share for unit, share in column.time_shares.items() if share}
    others: dict[str, float] = {}
    firsts = {unit: column.first_time(unit) for unit in parts}
    for pattern, what in _OTHER_DATES.items():
        if what != _ALSO_ISO and (share := _share(column, pattern)):
            others[what] = others.get(what, 0.0) + share
            firsts.setdefault(what, _first(column, pattern))
    others = {} if set(parts) & ALL_TICKS.keys() and "dates" not in parts else others
    if len(parts | others) < 2 or sum((parts | others).values()) < _NEARLY_ALL:
        return ""
    told = " and ".join(f"{what} ({firsts[what]!r})" for what in sorted(parts | others))
    return f"mixes {told}: {_AS_ISO if others else 'write all of them alike'}"


def _share(column: Column, pattern: str) -> float:
    return pc.mean(_matches(column, pattern).cast("int8")).as_py()


def _first(column: Column, pattern: str) -> str:
    return shortened(column.filled.filter(_matches(column, pattern))[0].as_py())


def _matches(column: Column, pattern: str) -> pa.ChunkedArray:
    return pc.match_substring_regex(pc.utf8_trim_whitespace(column.filled), pattern)
