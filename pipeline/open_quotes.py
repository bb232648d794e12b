"""Quotes in a text table that take whole rows into one cell.

Arrow lets a quote open a cell at its start only; within, two quotes are one, and line breaks are
text. So a quote that is never closed takes in all rows up to the next quote, or to the end of the
file, and they are gone without a complaint. Line breaks in a cell are legal, so a cell is doubted
only if its lines, read without the quote, have as many delimiters as rows have, and the quote that
closes it is followed by text, as only a quote that was to open a cell is, or most of their cells
look like the other cells of its own row.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

_BLOCK = 8 * 2**20  # read at once
_LONGEST = 4 * _BLOCK  # no cell is longer; Arrow itself refuses far shorter ones
_QUOTE, _FEED, _RETURN = b'"\n\r'
_BREAK = re.compile("\r\n|\r|\n")


class Stream(Protocol):
    """What can be read piece by piece."""

    def read(self, nbytes: int, /) -> bytes:
        """At most `nbytes` bytes, none at the end."""
        ...


def count_lines(stream: Stream) -> int:
    """Lines of a text, whatever ends them, blank ones too."""
    feeds = returns = 0
    last = b""
    while block := stream.read(_BLOCK):
        feeds += block.count(b"\n")
        returns += block.count(b"\r")
        last = block[-1:]
    return max(feeds, returns) + (last not in (b"", b"\n", b"\r"))


def find_open_quote(stream: Stream, delimiter: str, columns: int) -> str | None:
    """What is wrong with the first quote that takes in rows, with its line; None if none does."""
    kept, line = b"", 1
    while True:
        block = stream.read(_BLOCK)
        marks = _marks_in(kept + block, ord(delimiter))
        end = marks.last_row_end() if block else len(marks.text)
        for cell in marks.doubtful(columns, end):
            if _takes_in_rows(marks.text, cell, delimiter, columns):
                where = f"line {line + cell.line}"
                return f"{where}: a quote opens a cell that takes in whole rows, which are lost"
        if marks.is_open and (not block or len(marks.text) - end > _LONGEST):
            opened = line + marks.line_of(int(marks.opens[-1]))
            return f"line {opened}: a quote opens a cell that takes in all the rest of the file"
        if not block:
            return None
        kept, line = marks.text[end:], line + marks.line_of(end)


@dataclass(frozen=True)
class _Cell:
    """A quoted cell with line breaks: places of its row and its quotes, its column and line."""

    row: int
    opens: int
    closes: int
    row_end: int
    column: int
    line: int


@dataclass(frozen=True)
class _Marks:
    """Where things are in a text that begins with a row: (count,) int64 each."""

    text: bytes
    breaks: np.ndarray
    delimiters: np.ndarray
    opens: np.ndarray
    closes: np.ndarray

    @property
    def is_open(self) -> bool:
        """Whether the text ends inside a quote."""
        return len(self.opens) > len(self.closes)

    def line_of(self, place: int) -> int:
        """Line breaks before a place."""
        return int(np.searchsorted(self.breaks, place))

    def last_row_end(self) -> int:
        """Where the last row ends that is whole whatever follows; 0 if none is."""
        ends = self._outside(self.breaks)
        ends = ends[ends < len(self.text) - 1]  # a last \r may be half of \r\n
        return int(ends[-1]) + 1 if len(ends) else 0

    def doubtful(self, columns: int, end: int) -> Iterator[_Cell]:
        """Quoted cells before `end` whose lines have the delimiters of rows in all."""
        closes = self.closes[self.closes < end]
        opens = self.opens[: len(closes)]
        first = np.searchsorted(self.breaks, opens)
        breaks = np.searchsorted(self.breaks, closes) - first
        opens, closes, first, breaks = (x[breaks > 0] for x in (opens, closes, first, breaks))
        ends = self._outside(self.breaks)
        starts = np.append(0, ends + 1)[np.searchsorted(ends, opens)]
        parting = self._outside(self.delimiters)
        column = np.searchsorted(parting, opens) - np.searchsorted(parting, starts)
        at_break = np.searchsorted(self.delimiters, self.breaks[first])
        before = at_break - np.searchsorted(self.delimiters, opens)
        after = np.searchsorted(self.delimiters, closes) - at_break
        fits = (after == (breaks - 1) * (columns - 1) + column) & (before >= columns - 1 - column)
        row_ends = np.append(ends, len(self.text))[np.searchsorted(ends, closes)]
        fields = (starts, opens, closes, row_ends, column, first)
        for values in zip(*(field[fits].tolist() for field in fields), strict=True):
            yield _Cell(*values)

    def _outside(self, places: np.ndarray) -> np.ndarray:
        """Those of `places` that are in no quoted cell."""
        opened = np.searchsorted(self.opens, places)
        return places[opened == np.searchsorted(self.closes, places)]


def _marks_in(text: bytes, delimiter: int) -> _Marks:
    data = np.frombuffer(text, np.uint8)
    is_feed, is_return = data == _FEED, data == _RETURN
    is_return[:-1] &= ~is_feed[1:]
    breaks = np.flatnonzero(is_feed | is_return)
    return _Marks(text, breaks, np.flatnonzero(data == delimiter), *_quotes_in(data, delimiter))


def _quotes_in(data: np.ndarray, delimiter: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the quotes that open a cell, and of those that close one.

    An even run of quotes changes nothing. An odd one at the start of a cell, or at what looks like
    one inside a quoted cell, opens or closes; any other can only close.
    """
    quotes = np.flatnonzero(data == _QUOTE)
    begins = np.flatnonzero(np.diff(quotes, prepend=-2) > 1)
    lengths = np.diff(np.append(begins, len(quotes)))
    is_odd = lengths % 2 == 1
    first = quotes[begins][is_odd]
    last = first + lengths[is_odd] - 1
    is_start = (first == 0) | np.isin(data[first - 1], (delimiter, _FEED, _RETURN))
    if data[:3].tobytes() == b"\xef\xbb\xbf":
        is_start |= first == 3
    order = np.arange(len(first))
    closed = np.maximum.accumulate(np.where(is_start, -1, order))  # from here on turns count
    is_open = (order - closed) % 2 == 1
    was_open = np.append(False, is_open)[:-1]
    return first[is_open & ~was_open], last[was_open & ~is_open]


def _takes_in_rows(text: bytes, cell: _Cell, delimiter: str, columns: int) -> bool:
    inside = text[cell.opens + 1 : cell.closes].decode("latin-1")
    opened, *whole, tail = (line.split(delimiter) for line in _BREAK.split(inside))
    if len(tail) != cell.column + 1 or any(len(line) != columns for line in whole):
        return False
    left = _cells(text[cell.row : cell.opens], delimiter)[: cell.column]
    rest, *right = _cells(text[cell.closes + 1 : cell.row_end], delimiter)
    if rest.strip() or columns == 1:
        return True
    pairs = [pair for line in whole for pair in zip(left, line, strict=False)]
    pairs += zip(left, tail, strict=False)
    if right:
        for line in (opened, *whole):
            pairs += zip(right, line[-len(right) :], strict=False)
    alike = sum(_shape(ours) == _shape(theirs) for ours, theirs in pairs)
    return len(pairs) > 1 and 2 * alike > len(pairs)


def _cells(text: bytes, delimiter: str) -> list[str]:
    rows = csv.reader([text.decode("latin-1")], delimiter=delimiter)
    return next(rows, [""]) or [""]


def _shape(cell: str) -> tuple[bool, ...]:
    """What tells an id or a number from words."""
    patterns = (r"\d", r"[^\W\d]", r"\s", r"^\s")
    return tuple(re.search(pattern, cell) is not None for pattern in patterns)
