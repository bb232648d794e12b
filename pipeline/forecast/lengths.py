"""Rows end at different times: how full a batch is when there are only so many rows for it."""

import heapq
from collections.abc import Sequence

import numpy as np


def mean_rows(lengths: Sequence[float], slots: int) -> float:
    """Rows in an average step, if a row that ends makes room for the next of `lengths`."""
    ends = [0.0] * min(slots, len(lengths))
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return float(np.sum(lengths)) / max(ends)


def longest_over_mean(deviation: float, rows: int) -> float:
    """Expected longest of `rows` rows over the mean, were lengths normal: 1 and more."""
    return 1.0 + deviation * float(np.sqrt(2.0 * np.log(max(rows, 1))))
