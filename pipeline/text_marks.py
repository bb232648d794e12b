"""Where rows and cells of a text table begin and end, as Arrow reads them, piece by piece.

Arrow lets a quote open a cell at its start only; within, two quotes are one, and line breaks are
text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

BLOCK = 8 * 2**20  # read at once
_QUOTE, _FEED, _RETURN = b'"\n\r'


class Stream(Protocol):
    """What can be read piece by piece."""

    def read(self, nbytes: int, /) -> bytes:
        """At most `nbytes` bytes, none at the end."""
        ...


def count_lines(stream: Stream) -> int:
    """Lines of a text, whatever ends them, blank ones too."""
    feeds = returns = 0
    last = b""
    while block := stream.read(BLOCK):
        feeds += block.count(b"\n")
        returns += block.count(b"\r")
        last = block[-1:]
    return max(feeds, returns) + (last not in (b"", b"\n", b"\r"))


@dataclass(frozen=True)
class Marks:
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
        ends = self.outside(self.breaks)
        ends = ends[ends < len(self.text) - 1]  # a last \r may be half of \r\n
        return int(ends[-1]) + 1 if len(ends) else 0

    def outside(self, places: np.ndarray) -> np.ndarray:
        """Those of `places` that are in no quoted cell."""
        opened = np.searchsorted(self.opens, places)
        return places[opened == np.searchsorted(self.closes, places)]


def marks_in(text: bytes, delimiter: str, is_quoted: bool = True) -> Marks:
    """Where things are in a text that begins with a row."""
    data = np.frombuffer(text, np.uint8)
    is_feed, is_return = data == _FEED, data == _RETURN
    is_return[:-1] &= ~is_feed[1:]
    breaks = np.flatnonzero(is_feed | is_return)
    mark = ord(delimiter)
    none = np.empty(0, np.int64)
    quotes = _quotes_in(data, mark) if is_quoted else (none, none)
    return Marks(text, breaks, np.flatnonzero(data == mark), *quotes)


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


@dataclass(frozen=True)
class Piece:
    """Some whole rows of a text, and what follows them."""

    marks: Marks
    end: int  # of the rows
    line: int  # of the text, in which they begin; from 1
    is_last: bool


def pieces(stream: Stream, delimiter: str, is_quoted: bool = True) -> Iterator[Piece]:
    """A text in order; what follows the rows of a piece begins the next one."""
    kept, line = b"", 1
    while True:
        block = stream.read(BLOCK)
        marks = marks_in(kept + block, delimiter, is_quoted)
        end = marks.last_row_end() if block else len(marks.text)
        yield Piece(marks, end, line, not block)
        if not block:
            return
        kept, line = marks.text[end:], line + marks.line_of(end)
