"""From counts to probabilities: how often a guess with such evidence was right.

A raw share is over-confident when it comes from one occurrence or from a short match, and how
often a guess is accepted depends on the verification rule. So every guess falls into a bucket of
(source, tokens matched, occurrences, share), and a bucket's probability is a Beta posterior: a
prior from the share, then what verification said. One calibration serves one rule.
"""

from collections.abc import Sequence

import numpy as np

from retrieval_pools.compiled import Cells, read_only

# Lower ends of the buckets.
_MATCHES = np.array([1, 2, 3, 4, 5, 7, 10, 15, 20])  # tokens
# Occurrences of the parent, in halves: one in relaxed text counts half.
_HALVES = np.array([1, 2, 4, 6, 10, 18, 34, 66, 130])
_SHARES = np.array([0, 3, 6, 10, 20, 30, 45, 60, 75, 90, 97, 100])  # percent of them

# Fitted to 14,690 verified drafts: 45 texts of SmolLM2-135M, each against the other 44, strict.
_PRIOR_WEIGHT = 8.0  # outcomes that the prior is worth
_SHARPNESS = 1.5  # greedy decoding prefers the usual continuation more than its share
# Occurrences that doubt is worth after a match of one token, by source: previous, own, group,
# global. Most of a previous text is expected to be said again.
_DOUBT = (1.0, 4.0, 4.0, 4.0)


class Calibration:
    """P(accepted | parent accepted) of every bucket, learned while the job runs."""

    def __init__(self) -> None:
        match, count, share = np.meshgrid(
            _MATCHES, _HALVES / 2.0, _middle(_SHARES) / 100.0, indexing="ij"
        )
        prior = np.concatenate(
            [expected_acceptance(doubt, match, count, share).ravel() for doubt in _DOUBT]
        )
        self._accepted = _PRIOR_WEIGHT * prior
        self._tested = np.full(len(prior), _PRIOR_WEIGHT)
        self._probability = prior
        offsets = (
            np.arange(len(_DOUBT), dtype=np.int32) * match.size,
            _offsets(_MATCHES, len(_HALVES) * len(_SHARES)),
            _offsets(_HALVES, len(_SHARES)),
            _offsets(_SHARES, 1),
        )
        self.cells = Cells(*(read_only(array) for array in (*offsets, prior)))

    def observe(self, buckets: Sequence[np.ndarray], outcomes: Sequence[np.ndarray]) -> None:
        """Learn from verified nodes: outcomes are 1 accepted, 0 refused, -1 untested."""
        if not buckets:
            return
        bucket, outcome = np.concatenate(buckets), np.concatenate(outcomes)
        size = len(self._tested)
        self._tested += np.bincount(bucket[outcome >= 0], minlength=size)
        self._accepted += np.bincount(bucket[outcome == 1], minlength=size)
        np.divide(self._accepted, self._tested, out=self._probability)


def expected_acceptance(
    doubt: float, match: np.ndarray, count: np.ndarray, share: np.ndarray
) -> np.ndarray:
    """The prior: a power of the share, shrunk unless the match is long or occurs often.

    `match` tokens matched, `count` occurrences, `share` of them in [0, 1].
    """
    return share**_SHARPNESS * count / (count + doubt / match)


def _middle(lower: np.ndarray) -> np.ndarray:
    """Middle of every bucket; the last one is a point."""
    return (lower + np.append(lower[1:], lower[-1])) / 2.0


def _offsets(lower: np.ndarray, stride: int) -> np.ndarray:
    """Offset into the table for every value from 0 to the last bucket's lower end."""
    values = np.arange(lower[-1] + 1)
    bucket = np.searchsorted(lower, values, side="right") - 1
    return (np.maximum(bucket, 0) * stride).astype(np.int32)
