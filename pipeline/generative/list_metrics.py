"""How good lists are: Recall and NDCG of the one item that came next, with intervals over users."""

from typing import NamedTuple

import numpy as np

_DRAWS = 2000
NOT_FOUND = -1


class Interval(NamedTuple):
    """A mean and where 95 % of its resamples lie."""

    mean: float
    low: float
    high: float


def ranks_of(items: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Place of each target in its list from 0 on, or NOT_FOUND: (n,) int64.

    Args: lists of items (n, k), the best first, padded with -1; targets (n,).
    """
    is_hit = items == targets[:, None]
    return np.where(is_hit.any(1), is_hit.argmax(1), NOT_FOUND)


def recall(ranks: np.ndarray, k: int) -> np.ndarray:
    """Recall@k of every event: (n,) float64. With one target it is HR@k."""
    return ((ranks >= 0) & (ranks < k)).astype(np.float64)


def ndcg(ranks: np.ndarray, k: int) -> np.ndarray:
    """NDCG@k of every event: (n,) float64."""
    return recall(ranks, k) / np.log2(np.maximum(ranks, 0) + 2)


def interval(values: np.ndarray, users: np.ndarray, seed: int) -> Interval:
    """Mean of `values` (n,) over events, resampled by `users` (n,): theirs are not independent.

    Of differences between two ways on the same events it is a paired interval. No event: all NaN.
    """
    if not len(values):
        return Interval(np.nan, np.nan, np.nan)
    _, user = np.unique(users, return_inverse=True)
    sums, counts = np.bincount(user, values), np.bincount(user)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(sums), (_DRAWS, len(sums)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))
