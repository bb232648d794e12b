"""What can be seen of a column of which nothing is known but its name."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pipeline.columns import as_numbers, as_ratings, as_text, as_timestamps
from pipeline.errors import DataError
from pipeline.table_heads import Head
from pipeline.times import ALL_TICKS, is_plausible

_NEARLY_ALL = 0.95
_LINK = r"^(https?://|www\.)|^[^@\s]+@[^@\s]+\.[a-z]+$"
_PARTS = ("|", ";", ",", "/")  # between several values of a cell
_SOME = 0.2
_LARGEST = 9e18  # of the numbers that may be times
_LONG = 60  # characters of an example
_TRUTH, _FLAGS = {"true", "false"}, 9  # spellings at most: True, TRUE, ...


@dataclass(frozen=True)
class Column:
    """One column: its values as stored, and as text without the blank ones."""

    name: str
    raw: pa.ChunkedArray  # (rows,)
    filled: pa.ChunkedArray  # (filled values,) string

    @cached_property
    def values(self) -> pa.Array:
        """Distinct values that are not blank."""
        return pc.unique(self.filled)

    @property
    def rows(self) -> int:
        """Rows, blank ones too."""
        return len(self.raw)

    @property
    def distinct(self) -> int:
        """How many distinct values there are."""
        return len(self.values)

    @property
    def filled_share(self) -> float:
        """Share of the rows that have a value."""
        return len(self.filled) / max(self.rows, 1)

    @property
    def is_unique(self) -> bool:
        """Whether nearly every row has a value of its own, as a table's key has."""
        return self.filled_share > _NEARLY_ALL and self.distinct > _NEARLY_ALL * len(self.filled)

    @cached_property
    def numbers(self) -> pa.ChunkedArray | None:
        """Values as numbers, if nearly all are some."""
        return self._nearly_all(as_numbers)

    @cached_property
    def ratings(self) -> pa.ChunkedArray | None:
        """Values as a run would read ratings, if nearly all are some."""
        return self._nearly_all(as_ratings)

    def _nearly_all(self, read: Callable[..., pa.ChunkedArray]) -> pa.ChunkedArray | None:
        try:
            numbers = pc.drop_null(read(self.filled, self.name))
        except DataError:
            return None
        return numbers if 0 < _NEARLY_ALL * len(self.filled) <= len(numbers) else None

    @cached_property
    def is_flag(self) -> bool:
        """Whether values are true and false."""
        return {value.strip().lower() for value in self.values[:_FLAGS].to_pylist()} <= _TRUTH

    @cached_property
    def length(self) -> float:
        """Mean characters of a value."""
        return pc.mean(pc.utf8_length(self.filled)).as_py() or 0.0

    @cached_property
    def is_link(self) -> bool:
        """Whether values are addresses on the web or of mail."""
        found = pc.mean(pc.match_substring_regex(self.values, _LINK).cast(pa.int8())).as_py()
        return (found or 0.0) > _NEARLY_ALL

    @cached_property
    def time(self) -> str | None:
        """s, ms, us or ns since 1970, or `dates`; None if it is no time."""
        if pt.is_timestamp(self.raw.type) or pt.is_date(self.raw.type):
            return "dates"
        shares = self.time_shares
        return next((unit for unit in shares if shares[unit] >= _NEARLY_ALL), None)

    @cached_property
    def time_shares(self) -> dict[str, float]:
        """Share of the values that are times in s, ms, us, ns, or dates."""
        total = max(len(self.filled), 1)
        return {unit: (pc.sum(own).as_py() or 0) / total for unit, own in self._times.items()}

    def first_time(self, unit: str) -> str:
        """The first value that is a time in a unit, or one of the dates."""
        return shortened(self.filled.filter(self._times[unit])[0].as_py())

    @cached_property
    def _times(self) -> dict[str, pa.ChunkedArray]:
        """Which of the values are times in s, ms, us, ns, or dates: (filled values,) bool each."""
        numbers = as_numbers(self.filled, self.name)
        whole = pc.floor(pc.min_element_wise(numbers, _LARGEST)).cast(pa.int64(), safe=False)
        whole = pc.if_else(pc.is_valid(numbers), whole, 0)  # which is before 1990
        found = {unit: is_plausible(whole, ticks) for unit, ticks in ALL_TICKS.items()}
        texts = pc.if_else(pc.is_null(numbers), self.filled, pa.scalar(None, self.filled.type))
        dates = as_timestamps(texts, "s", self.name)
        return found | {"dates": pc.and_(pc.is_null(numbers), pc.is_valid(dates))}

    @cached_property
    def parted_by(self) -> str | None:
        """What stands between the values of cells that hold several, which recur in other cells."""
        for mark in _PARTS:
            has_mark = pc.match_substring(self.values, mark)
            if (pc.mean(has_mark.cast(pa.int8())).as_py() or 0.0) < _SOME:
                continue
            parts = pc.list_flatten(pc.split_pattern(self.values, mark))
            if 2 * pc.count_distinct(pc.utf8_trim_whitespace(parts)).as_py() <= len(parts):
                return mark
        return None

    @property
    def example(self) -> str:
        """One value; the beginning of a long one."""
        return shortened(self.values[0].as_py()) if self.distinct else ""


def shortened(value: str) -> str:
    """A value as an example."""
    return value if len(value) <= _LONG else f"{value[:_LONG]}..."


def columns_of(head: Head) -> dict[str, Column]:
    """Every column that can be read as text, by name."""
    found = {}
    for name in head.table.column_names:
        raw = head.table[name]
        try:
            text = as_text(raw, f"{head.path}, column {name}")
        except DataError:  # a struct, or bytes
            continue
        filled = text.filter(pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(text), ""), False))
        found[name] = Column(name, raw, filled)
    return found
