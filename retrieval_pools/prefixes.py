"""How much neighbours in a sorted suffix array have in common."""

import numpy as np

from retrieval_pools.suffix_array import SEPARATOR


def shared_prefixes(tokens: np.ndarray, suffixes: np.ndarray, limit: int) -> np.ndarray:
    """Tokens that every suffix shares with the one before it, at most `limit`: (n,) int32.

    `tokens` and `suffixes` (n,) as in `suffix_array`. Starts of documents share nothing.
    """
    shared = np.zeros(len(suffixes), np.int32)
    alike = np.arange(1, len(suffixes))  # those that have agreed so far
    for offset in range(limit):
        ours = tokens[suffixes[alike] + offset]
        theirs = tokens[suffixes[alike - 1] + offset]
        alike = alike[(ours == theirs) & (ours != SEPARATOR)]
        shared[alike] += 1
    return shared
