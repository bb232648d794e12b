"""Which suffixes of an index are marked: counted over any interval in constant time.

For every 64 suffixes two numbers stand side by side, how many marked ones come before them and a
bit for each of them (Jacobson 1989). An interval takes two look-ups and two population counts,
and a suffix a quarter of a byte. Nothing marked is no numbers at all.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from retrieval_pools.compiled import integer, kernel, marks, read_only

NO_MARKS = read_only(np.empty(0, np.int64))
_WORD = 64  # bits


def make_marks(is_marked: np.ndarray) -> np.ndarray:
    """(suffixes,) bool -> the numbers described above: (2 * words,) int64, or none."""
    if not is_marked.any():
        return NO_MARKS
    words = num_words(len(is_marked)) // 2
    padded = np.zeros((words, _WORD), bool)
    padded.ravel()[: len(is_marked)] = is_marked
    bits = np.packbits(padded, axis=1, bitorder="little").view("<i8").ravel()
    counts = padded.sum(1)
    return read_only(np.stack([np.cumsum(counts) - counts, bits], 1).astype(np.int64).ravel())


def num_words(suffixes: int) -> int:
    """Numbers for so many suffixes: one pair more, for the end of the last interval."""
    return 2 * (suffixes // _WORD + 1)


def _typed(_: Any, word: Any) -> Any:
    """Bits that are set in an int64."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


_population_count: Any = intrinsic(_typed)


@kernel(integer(marks, integer), inline=True)
def _marked_before(marks: np.ndarray, place: int) -> int:
    word, below = 2 * (place >> 6), (1 << (place & 63)) - 1
    return marks[word] + _population_count(marks[word + 1] & below)


@kernel(integer(marks, integer, integer), inline=True)
def marked(marks: np.ndarray, lo: int, hi: int) -> int:
    """How many of the suffixes [lo, hi) are marked."""
    if len(marks) == 0:
        return 0
    return _marked_before(marks, hi) - _marked_before(marks, lo)
