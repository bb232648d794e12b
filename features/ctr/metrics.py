"""AUC, GAUC, logloss and calibration of the scores of one fit."""

import math

import numpy as np
from sklearn.metrics import roc_auc_score

_LEAST_PROBABILITY = 1e-7
_CALIBRATION_BINS = 10


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve; NaN if only one label occurs."""
    if len(np.unique(labels)) < 2:
        return math.nan
    return float(roc_auc_score(labels, scores))


def row_logloss(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """-log of the probability given to what happened: (rows,) float64."""
    given = np.where(labels > 0, probabilities, 1.0 - probabilities.astype(np.float64))
    return -np.log(np.clip(given, _LEAST_PROBABILITY, 1.0))


def logloss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean negative log-likelihood in nats."""
    return float(row_logloss(labels, probabilities).mean())


def auc_by_user(labels: np.ndarray, scores: np.ndarray, users: np.ndarray) -> np.ndarray:
    """AUC among the rows of each user, ties half; NaN where all of them have one label.

    Args:
        labels: (rows,) 0 or 1.
        scores: (rows,).
        users: (rows,) any integer per user.

    Returns:
        (users,) in ascending order of their integers.
    """
    order = np.lexsort((scores, users))
    _, owners, sizes = np.unique(users[order], return_inverse=True, return_counts=True)
    ordered, is_positive = scores[order], labels[order] > 0
    is_new = (owners[1:] != owners[:-1]) | (ordered[1:] != ordered[:-1])
    starts = np.flatnonzero(np.r_[True, is_new])
    ends = np.r_[starts[1:], len(order)]
    ranks = np.repeat((starts + ends - 1) / 2, ends - starts)  # of ties the middle one
    ranks -= (np.cumsum(sizes) - sizes)[owners]  # from 0 within a user
    positives = np.bincount(owners, weights=is_positive)
    won = np.bincount(owners, weights=ranks * is_positive) - positives * (positives - 1) / 2
    pairs = positives * (sizes - positives)
    return np.divide(won, pairs, out=np.full(len(sizes), math.nan), where=pairs > 0)


def gauc(labels: np.ndarray, scores: np.ndarray, users: np.ndarray) -> float:
    """Mean AUC of the users with both labels, by their rows; NaN if there is none (DIN, eq. 6)."""
    aucs = auc_by_user(labels, scores, users)
    sizes = np.unique(users, return_counts=True)[1]
    counts = ~np.isnan(aucs)
    return float(np.average(aucs[counts], weights=sizes[counts])) if counts.any() else math.nan


def gauc_coverage(labels: np.ndarray, users: np.ndarray) -> dict[str, float]:
    """Share of the rows, and of the users, that GAUC speaks of: users with both labels."""
    counts = ~np.isnan(auc_by_user(labels, labels, users))
    sizes = np.unique(users, return_counts=True)[1]
    return {"rows": float(sizes[counts].sum() / sizes.sum()), "users": float(counts.mean())}


def calibration_ratio(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Predicted likes for each that happened, 1 at best; NaN if none happened."""
    happened = float(labels.sum())
    return float(probabilities.sum(dtype=np.float64)) / happened if happened else math.nan


def calibration_error(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean distance of predicted from observed share, over ten bins of equally many rows (ECE).

    Where a bin ends among rows of one probability, each of them counts with the share that all of
    them liked, so that the order of rows is nothing.
    """
    values, of_row, counts = np.unique(probabilities, return_inverse=True, return_counts=True)
    liked = np.bincount(of_row, weights=labels) / counts
    gaps = np.repeat(values.astype(np.float64) - liked, counts)  # in order of probability
    bins = np.array_split(gaps, min(_CALIBRATION_BINS, len(gaps)))
    return float(np.average([abs(rows.mean()) for rows in bins], weights=[len(r) for r in bins]))
