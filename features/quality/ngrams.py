"""Runs of n tokens in texts: which come twice, and which stand in another text too.

Every function takes a KNOWLEDGE column `token_ids`, and does work linear in its tokens, but for
sorting. Runs are compared by 64-bit hashes.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def count_looping(token_ids: pa.ChunkedArray, n: int) -> int:
    """Texts that have some n tokens in a row twice."""
    hashes, rows = _ngrams(token_ids, n)
    order = np.lexsort((hashes, rows))
    return len(np.unique(rows[order][1:][_is_repeated(hashes[order], rows[order])]))


def count_distinct(token_ids: pa.ChunkedArray, n: int) -> tuple[int, int]:
    """Runs of n tokens that differ inside their text, and all runs."""
    hashes, rows = _ngrams(token_ids, n)
    order = np.lexsort((hashes, rows))
    repeated = _is_repeated(hashes[order], rows[order])
    return len(hashes) - int(repeated.sum()), len(hashes)


def count_shared(token_ids: pa.ChunkedArray, n: int) -> tuple[int, int]:
    """Runs of n tokens that also stand in another of these texts, and all runs."""
    hashes, rows = _ngrams(token_ids, n)
    if not len(hashes):
        return 0, 0
    order = np.lexsort((rows, hashes))
    hashes, rows = hashes[order], rows[order]
    first = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
    last = np.append(first[1:], len(hashes)) - 1
    is_shared = rows[first] != rows[last]  # rows are sorted inside a hash
    return int((last - first + 1)[is_shared].sum()), len(hashes)


def _ngrams(token_ids: pa.ChunkedArray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Hash, uint64, and text, int64, of every n tokens in a row inside a text."""
    lengths = pc.list_value_length(token_ids).to_numpy()
    tokens = pc.list_flatten(token_ids).to_numpy().astype(np.uint64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    count = max(len(tokens) - n + 1, 0)
    hashes = np.zeros(count, np.uint64)
    for at in range(n):
        hashes = hashes * _FACTOR + tokens[at : at + count] + np.uint64(1)
    is_inside = rows[:count] == rows[len(rows) - count :]
    return hashes[is_inside], rows[:count][is_inside]


def _is_repeated(hashes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """For all runs but the first, sorted by row and hash, whether it is the one before."""
    return (hashes[1:] == hashes[:-1]) & (rows[1:] == rows[:-1])
