"""Attention of packed rows on a CPU in float32: every query over just the keys it may see.

A masked call over padded rows computes as many queries for each row as the widest draft tree has,
and as many keys as the longest context; here nothing is padded. Scores and sums are written so that
the compiler can vectorise them: four keys at a time, the head dimension innermost.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange

from pipeline.engine.lines import Line, see_ancestors

_BLOCK = 16  # queries of one task, so that long prompts are shared out to threads
_LOG2_E = np.float32(1.4426950408889634)


@dataclass(frozen=True)
class PackedRows:
    """The rows of a step as flat arrays; a task is some queries of one row."""

    tasks: np.ndarray  # (tasks, 3) int64: row, first and last (exclusive) query in it
    rows: np.ndarray  # (rows, 4) int64: slot, packed index of its first token, cached, its mask
    positions: np.ndarray  # (tokens,) int64
    sees: np.ndarray  # (sum of squares of the rows' tokens,) bool: (query, key), row after row


def plan_rows(lines: list[Line]) -> PackedRows:
    """Lay out what is the same for all layers."""
    tasks, rows, masks, place = [], [], [], 0
    for number, line in enumerate(lines):
        size = len(line)
        rows.append((line.slot, line.start, line.cached, place))
        tasks += [(number, q, min(q + _BLOCK, size)) for q in range(0, size, _BLOCK)]
        masks.append(see_ancestors(line.parents).ravel())
        place += size * size
    positions = np.concatenate([line.positions for line in lines]).astype(np.int64)
    return PackedRows(np.array(tasks), np.array(rows), positions, np.concatenate(masks))


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: PackedRows,
    window: int,
    scaling: float,
) -> torch.Tensor:
    """Queries (tokens, heads, dim) over the arena (rows, length, kv_heads, dim), all float32.

    `window` is 0 for full attention. Returns (tokens, heads, dim).
    """
    output = torch.empty(query.shape)
    _attend(
        query.contiguous().numpy(),
        key.numpy(),
        value.numpy(),
        rows.tasks,
        rows.rows,
        rows.positions,
        rows.sees,
        window or np.iinfo(np.int32).max,
        np.float32(scaling),
        output.numpy(),
    )
    return output


@njit(cache=True, parallel=True, nogil=True, fastmath=True)
def _attend(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    tasks: np.ndarray,
    rows: np.ndarray,
    positions: np.ndarray,
    sees: np.ndarray,
    window: int,
    scaling: np.float32,
    output: np.ndarray,
) -> None:
    kv_heads = key.shape[2]
    fold = query.shape[1] // kv_heads
    for task in prange(len(tasks) * kv_heads):
        head = task % kv_heads
        number, first, last = tasks[task // kv_heads]
        slot, start, cached, mask = rows[number]
        size = (rows[number + 1, 1] if number + 1 < len(rows) else len(query)) - start
        keys, values = key[slot, :, head], value[slot, :, head]
        scores = np.empty((fold, cached + size), np.float32)
        for token in range(first, last):
            oldest = max(0, positions[start + token] - window + 1)
            visible = sees[mask + token * size : mask + (token + 1) * size]
            seen = cached + token + 1  # no query sees a token packed behind it
            lo = min(oldest, cached)
            for each in range(fold):
                row = scores[each]
                _score(query[start + token, head * fold + each], keys, lo, seen, scaling, row)
                for other in range(token + 1):
                    if not visible[other] or positions[start + other] < oldest:
                        row[cached + other] = -np.inf
                total = _exponentiate(row, lo, seen)
                _weigh(row, values, lo, seen, total, output[start + token, head * fold + each])


@njit(inline="always", fastmath=True)
def _score(
    query: np.ndarray, keys: np.ndarray, lo: int, hi: int, scaling: np.float32, row: np.ndarray
) -> None:
    """Scaled products of a query (dim,) with keys [lo, hi) (length, dim)."""
    four = lo + (hi - lo) // 4 * 4
    for place in range(lo, four, 4):
        a = b = c = d = np.float32(0.0)
        for i in range(len(query)):
            a += query[i] * keys[place, i]
            b += query[i] * keys[place + 1, i]
            c += query[i] * keys[place + 2, i]
            d += query[i] * keys[place + 3, i]
        row[place] = a * scaling
        row[place + 1] = b * scaling
        row[place + 2] = c * scaling
        row[place + 3] = d * scaling
    for place in range(four, hi):
        a = np.float32(0.0)
        for i in range(len(query)):
            a += query[i] * keys[place, i]
        row[place] = a * scaling


@njit(inline="always", error_model="numpy")
def _exponentiate(row: np.ndarray, lo: int, hi: int) -> np.float32:
    """Replace row[lo:hi] by exp(row - max), and return the sum.

    exp(x) = 2^n 2^f with a polynomial for 2^f, |f| <= 0.5 (relative error 2e-7): unlike a call of
    exp it can be vectorised.
    """
    top = np.float32(-np.inf)
    for place in range(lo, hi):
        top = max(top, row[place])
    bits = row.view(np.int32)
    total = np.float32(0.0)
    for place in range(lo, hi):
        x = max((row[place] - top) * _LOG2_E, np.float32(-126.0))
        n = np.floor(x + np.float32(0.5))
        f = x - n
        p = np.float32(1.5403530e-4)
        p = p * f + np.float32(1.3333558e-3)
        p = p * f + np.float32(9.6181291e-3)
        p = p * f + np.float32(5.5504109e-2)
        p = p * f + np.float32(2.4022651e-1)
        p = p * f + np.float32(6.9314718e-1)
        row[place] = p * f + np.float32(1.0)
        bits[place] += np.int32(n) << 23
        total += row[place]
    return total


@njit(inline="always", fastmath=True)
def _weigh(
    weights: np.ndarray,
    values: np.ndarray,
    lo: int,
    hi: int,
    total: np.float32,
    output: np.ndarray,
) -> None:
    """Mean of values [lo, hi) (length, dim) by weights that sum to `total`: (dim,)."""
    dim = len(output)
    output[:] = np.float32(0.0)
    four = lo + (hi - lo) // 4 * 4
    for place in range(lo, four, 4):
        a, b, c, d = weights[place], weights[place + 1], weights[place + 2], weights[place + 3]
        for i in range(dim):
            output[i] += (
                a * values[place, i]
                + b * values[place + 1, i]
                + c * values[place + 2, i]
                + d * values[place + 3, i]
            )
    for place in range(four, hi):
        for i in range(dim):
            output[i] += weights[place] * values[place, i]
    for i in range(dim):
        output[i] /= total
