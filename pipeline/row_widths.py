"""Rows of a text table with more or fewer cells than its header: how many, and in which lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from pipeline.text_marks import Marks, Stream, pieces

_EXAMPLES = 3
_SHOWN = 60  # characters of a row
_RETURN = ord("\r")

ODD_WIDTH = "have more or fewer cells than the header"


@dataclass(frozen=True)
class OddRow:
    """A row that is none of the table, by the line of the file that it begins in, from 1."""

    line: int
    cells: int
    text: str


@dataclass(frozen=True)
class OddRows:
    """All of them in a file, of which the first are known."""

    file: Path
    count: int
    columns: int  # of the header
    first: tuple[OddRow, ...]

    @property
    def lines(self) -> str:
        """Where they are: `in line 7`, or `in lines 7, 9, 12 and 30 more`."""
        numbers = ", ".join(f"{row.line:,}" for row in self.first)
        more = self.count - len(self.first)
        return f"in line{'s' if self.count > 1 else ''} {numbers}" + (
            f" and {more:,} more" * (more > 0)
        )

    @property
    def examples(self) -> str:
        """The first of them in their file, each with what it has."""
        return f"{self.file}: {self.told}"

    @property
    def told(self) -> str:
        """The same without the file."""
        told = "; ".join(f"line {row.line:,} has {row.cells}, {row.text!r}" for row in self.first)
        cells = f"{self.columns} cell{'s' if self.columns != 1 else ''}"
        return f"the header has {cells}, {told}"

    @staticmethod
    def of(
        file: Path, count: int, stream: Stream, delimiter: str, columns: int, is_quoted: bool
    ) -> "OddRows":
        """Find the first of `count` such rows."""
        found = odd_rows(stream, delimiter, columns, is_quoted)
        return OddRows(file, count, columns, tuple(islice(found, _EXAMPLES)))


def odd_rows(
    stream: Stream, delimiter: str, columns: int, is_quoted: bool = True
) -> Iterator[OddRow]:
    """Every row that has not so many cells; an empty line is no row."""
    for piece in pieces(stream, delimiter, is_quoted):
        marks = piece.marks
        starts, ends = _rows(marks, piece.end)
        parting = marks.outside(marks.delimiters)
        cells = np.searchsorted(parting, ends) - np.searchsorted(parting, starts) + 1
        for row in np.flatnonzero((cells != columns) & ~_is_empty(marks.text, starts, ends)):
            text = marks.text[starts[row] : ends[row]].decode("utf-8", "replace").rstrip("\r")
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            line = piece.line + marks.line_of(int(starts[row]))
            yield OddRow(line, int(cells[row]), shown)


def _rows(marks: Marks, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Where rows before `end` begin, and where each ends, at its line break: (rows,) int64."""
    breaks = marks.outside(marks.breaks)
    ends = breaks[breaks < end]
    starts = np.append(0, ends + 1)
    if starts[-1] < end:  # the last row of a file, which no line break ends
        ends = np.append(ends, end)
    return starts[: len(ends)], ends


def _is_empty(text: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Whether a row has nothing but a carriage return, half of a line break: (rows,) bool."""
    if not text:
        return np.zeros(0, bool)
    first = np.frombuffer(text, np.uint8)[np.minimum(starts, len(text) - 1)]
    sizes = ends - starts
    return (sizes == 0) | ((sizes == 1) & (first == _RETURN))
