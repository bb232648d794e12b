"""Own and previous texts of the rows in flight, and where each of their tokens stood before.

All texts lie in one array, each with room to grow and a separator at its end. `earlier` leads from
every place to the latest one before it, in the same text, with the same token: the chains of LZ77.
So whoever asks where a row's last token stands looks at these places only, and a step costs what
it has added. A table per text, hashed by token, knows the latest place of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.engine.types import RowView
from retrieval_pools.compiled import ROW, array, ids, integer, kernel, nothing, read_only
from retrieval_pools.suffix_array import SEPARATOR

NOWHERE = -1

_TAIL = 16  # tokens that must stand where they stood, or the text is read anew
_ODD = 2_654_435_761  # spreads token ids over 32 bits (Knuth, golden ratio)
_BITS = 32
_LOW = (1 << _BITS) - 1

# Tokens to write at [begin, end) of the text that has [first, first + room).
_ADDITION = np.dtype([(name, "i8") for name in ("first", "room", "begin", "end")], align=True)


@kernel(integer(ids, ids, integer, integer, integer))
def _slot(text: np.ndarray, tables: np.ndarray, first: int, room: int, token: int) -> int:
    """Where the table of the text at `first` has the latest place of `token`, or would have it."""
    begin, size = 2 * first, 2 * room
    slot = ((token * _ODD & _LOW) * size) >> _BITS
    while tables[begin + slot] != NOWHERE and text[tables[begin + slot]] != token:
        slot = slot + 1 if slot + 1 < size else 0
    return begin + slot


@kernel(nothing(array(_ADDITION, readonly=True), ids, *[array(np.int32)] * 3))
def _write(
    additions: Any, tokens: np.ndarray, text: np.ndarray, earlier: np.ndarray, tables: np.ndarray
) -> None:
    """Write the tokens of all additions, one after the other, and link them."""
    read = 0
    for number in range(len(additions)):
        addition = additions[number]
        for place in range(addition.begin, addition.end):
            slot = _slot(text, tables, addition.first, addition.room, tokens[read])
            text[place] = tokens[read]
            earlier[place] = tables[slot]
            tables[slot] = place
            read += 1
        text[addition.end] = SEPARATOR


@kernel(nothing(array(ROW), ids, ids, ids))
def _locate(rows: Any, text: np.ndarray, earlier: np.ndarray, tables: np.ndarray) -> None:
    """Find where the last token of every row stands with another behind it, in both texts."""
    for number in range(len(rows)):
        row = rows[number]
        row.own_latest = row.previous_latest = NOWHERE
        if row.own_end == row.own_first:
            continue
        last, first, end = row.own_end - 1, row.previous_first, row.previous_end
        row.own_latest = earlier[last]
        if first < end:
            place = tables[_slot(text, tables, first, end - first + 1, text[last])]
            row.previous_latest = earlier[place] if place == end - 1 else place


@dataclass(slots=True)
class _Seat:
    """Where the texts of a row stand."""

    row: RowView  # held, so that no other row gets its identity
    first: int
    output_first: int
    room: int
    previous_first: int
    previous_end: int
    size: int = 0  # tokens of the own text that have been written
    tail: bytes = b""  # the last of them

    def holds(self, tokens: np.ndarray) -> bool:
        """Whether `tokens` go on where the own text ends, and have room."""
        size = self.size
        return (
            size <= len(tokens) < self.room
            and tokens[max(0, size - _TAIL) : size].tobytes() == self.tail
        )


class RowTexts:
    """The texts of the rows of the latest step; others are forgotten.

    A row is known by its identity. One that comes back, or whose text has shrunk or ends otherwise
    than it did, is read anew.
    """

    def __init__(self, with_previous: bool) -> None:
        """Hold own texts and, `with_previous`, those that an entity had before."""
        self._with_previous = with_previous
        self._clear(0)

    def place(self, rows: Sequence[RowView]) -> np.ndarray:
        """Take in what rows have got since the last step: (rows,) ROW, with its texts filled in."""
        tokens = [row.tokens for row in rows]
        additions: list[tuple[int, ...]] = []
        pieces: list[np.ndarray] = []
        places: list[tuple[int, ...]] = []
        for seat, text in zip(self._seated(rows, tokens), tokens, strict=True):
            first, end = seat.first, seat.first + len(text)
            additions.append((first, seat.room, first + seat.size, end))
            pieces.append(text[seat.size :])
            own = (first, seat.output_first, end, NOWHERE)
            places.append((*own, seat.previous_first, seat.previous_end, NOWHERE, 0, 0, 0))
            seat.size, seat.tail = len(text), text[-_TAIL:].tobytes()
        self._add(additions, pieces)
        located = np.array(places, ROW)
        _locate(located, self.text, self.earlier, self._tables)
        return located

    def _seated(self, rows: Sequence[RowView], tokens: Sequence[np.ndarray]) -> list[_Seat]:
        """The seat of every row; others lose theirs.

        There are no holes to be filled: when the arrays are full the rows in flight move to new
        ones, twice as large as they need. So a text is read twice on average, at most.
        """
        known, self._seats = self._seats, {}
        new: list[tuple[RowView, np.ndarray]] = []
        for row, text in zip(rows, tokens, strict=True):
            seat = known.get(id(row))
            if seat is not None and seat.holds(text):
                self._seats[id(row)] = seat
            else:
                new.append((row, text))
        if new and self._used + self._needed(new) > len(self.text):
            new = list(zip(rows, tokens, strict=True))
            self._clear(2 * self._needed(new))
        for row, text in new:
            self._seats[id(row)] = self._new_seat(row, text)
        return [self._seats[id(row)] for row in rows]

    def _new_seat(self, row: RowView, tokens: np.ndarray) -> _Seat:
        """Room for a row's texts; the previous one is read here, and never again."""
        previous, room = self._previous(row), _room(row, tokens)
        first = self._used
        after = first + room
        end = after + len(previous)
        self._used = end + 1
        self._add([(after, end + 1 - after, after, end)], [previous])
        return _Seat(row, first, first + len(row.request.prompt_ids), room, after, end)

    def _needed(self, pairs: Sequence[tuple[RowView, np.ndarray]]) -> int:
        """Room for all texts of these rows."""
        return sum(_room(row, tokens) + len(self._previous(row)) + 1 for row, tokens in pairs)

    def _previous(self, row: RowView) -> np.ndarray:
        previous = row.request.previous_ids
        return _NO_TEXT if previous is None or not self._with_previous else previous

    def _add(self, additions: Sequence[tuple[int, ...]], pieces: Sequence[np.ndarray]) -> None:
        tokens = read_only(np.concatenate(pieces, dtype=np.int32))
        rows = read_only(np.array(additions, _ADDITION))
        _write(rows, tokens, self._text, self._earlier, self._tables)

    def _clear(self, size: int) -> None:
        """Forget all rows, and make room for `size` tokens and separators."""
        self._seats: dict[int, _Seat] = {}
        self._used = 0
        self._text, self._earlier = np.empty(size, np.int32), np.empty(size, np.int32)
        self._tables = np.full(2 * size, NOWHERE, np.int32)
        self.text, self.earlier = read_only(self._text), read_only(self._earlier)


_NO_TEXT = read_only(np.empty(0, np.int32))


def _room(row: RowView, tokens: np.ndarray) -> int:
    """For all that a row may write, and a separator."""
    return max(len(row.request.prompt_ids) + row.request.max_new_tokens, len(tokens)) + 1
