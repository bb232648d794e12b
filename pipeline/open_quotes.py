"""Quotes in a text table that take whole rows into one cell.

A quote that is never closed takes in all rows up to the next quote, or to the end of the file, and
they are gone without a complaint. Line breaks in a cell are legal, so a cell is doubted only if its
lines, read without the quote, have as many delimiters as rows have, and the quote that closes it is
followed by text, as only a quote that was to open a cell is, or most of their cells look like the
other cells of its own row.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.text_marks import BLOCK, Marks, Stream, pieces

_LONGEST = 4 * BLOCK  # no cell is longer; Arrow itself refuses far shorter ones
_BREAK = re.compile("\r\n|\r|\n")


def find_open_quote(stream: Stream, delimiter: str, columns: int) -> str | None:
    """What is wrong with the first quote that takes in rows, with its line; None if none does."""
    for piece in pieces(stream, delimiter):
        marks = piece.marks
        for cell in _doubtful(marks, columns, piece.end):
            if _takes_in_rows(marks.text, cell, delimiter, columns):
                where = f"line {piece.line + cell.line}"
                return f"{where}: a quote opens a cell that takes in whole rows, which are lost"
        if marks.is_open and (piece.is_last or len(marks.text) - piece.end > _LONGEST):
            opened = piece.line + marks.line_of(int(marks.opens[-1]))
            return f"line {opened}: a quote opens a cell that takes in all the rest of the file"
    return None


@dataclass(frozen=True)
class _Cell:
    """A quoted cell with line breaks: places of its row and its quotes, its column and line."""

    row: int
    opens: int
    closes: int
    row_end: int
    column: int
    line: int


def _doubtful(marks: Marks, columns: int, end: int) -> Iterator[_Cell]:
    """Quoted cells before `end` whose lines have the delimiters of rows in all."""
    closes = marks.closes[marks.closes < end]
    opens = marks.opens[: len(closes)]
    first = np.searchsorted(marks.breaks, opens)
    breaks = np.searchsorted(marks.breaks, closes) - first
    opens, closes, first, breaks = (x[breaks > 0] for x in (opens, closes, first, breaks))
    ends = marks.outside(marks.breaks)
    starts = np.append(0, ends + 1)[np.searchsorted(ends, opens)]
    parting = marks.outside(marks.delimiters)
    column = np.searchsorted(parting, opens) - np.searchsorted(parting, starts)
    at_break = np.searchsorted(marks.delimiters, marks.breaks[first])
    before = at_break - np.searchsorted(marks.delimiters, opens)
    after = np.searchsorted(marks.delimiters, closes) - at_break
    fits = (after == (breaks - 1) * (columns - 1) + column) & (before >= columns - 1 - column)
    row_ends = np.append(ends, len(marks.text))[np.searchsorted(ends, closes)]
    fields = (starts, opens, closes, row_ends, column, first)
    for values in zip(*(field[fits].tolist() for field in fields), strict=True):
        yield _Cell(*values)


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
