"""Documents -> a sorted suffix array: a trie of token n-grams without node objects.

All documents stand in one array, each behind a separator that marks its start; one more separator
closes the array. A suffix ends where its document ends. The suffixes that share their first d
tokens are neighbours, so a trie node at depth d is an interval of the array, its count is the
interval's length, and the documents' starts are the interval of the separator.

12 bytes a token and 12 a document, with an index per group and one over everything; suffix trees
take 250 and more.
"""

from collections.abc import Sequence

import numpy as np

SEPARATOR = -1  # token ids are never negative


def join(documents: Sequence[np.ndarray]) -> np.ndarray:
    """One array of all documents, each behind a separator, closed by one: (n + 1,) int32."""
    separator = np.array([SEPARATOR], np.int32)
    pieces = [piece for document in documents for piece in (separator, document)]
    return np.concatenate([*pieces, separator]).astype(np.int32, copy=False)


def sort_suffixes(tokens: np.ndarray, depth: int) -> np.ndarray:
    """Start positions sorted by their first `depth` tokens, then by position: (n,) int32.

    `tokens` (n + 1,) int32 as `join` gives them. The closing separator starts no suffix. Prefix
    doubling (Manber & Myers 1993): the order by 2k tokens follows from the order by k, so log2
    of the depth rounds do, and each round sorts only what is still tied.
    """
    count = len(tokens) - 1
    to_end = _distance_to_end(tokens)
    rank = tokens[:-1].astype(np.int64) + 2  # 0 stands for "ended", 1 for a document's start
    order = np.argsort(rank, kind="stable")
    rank = _dense_rank(rank, order)
    sorted_length = 1
    while sorted_length < depth:
        step = min(sorted_length, depth - sorted_length)
        tied = _tied(rank[order])
        if not tied.any():
            break
        rest = order[tied]
        follower = np.where(to_end[rest] > step, rank[np.minimum(rest + step, count - 1)], 0)
        key = rank[rest] * (count + 1) + follower
        inner = np.argsort(key, kind="stable")  # stable: what stays tied stays in text order
        order[tied] = rest[inner]
        rank = _refine(rank, order, tied, key[inner])
        sorted_length += step
    return order.astype(np.int32)


def _distance_to_end(tokens: np.ndarray) -> np.ndarray:
    """Distance of every position but the last to the next separator after it: (n,) int64."""
    separators = np.flatnonzero(tokens == SEPARATOR)
    next_separator = np.repeat(separators[1:], np.diff(separators))
    return next_separator - np.arange(len(tokens) - 1)


def _dense_rank(key: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Rank >= 1 of every position, equal for equal keys."""
    ordered = key[order]
    rank = np.empty_like(key)
    rank[order] = np.cumsum(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(key)])
    return rank


def _tied(ordered_rank: np.ndarray) -> np.ndarray:
    """Which places of the order share their rank with a neighbour: (n,) bool."""
    tied = np.zeros(len(ordered_rank), bool)
    equal = ordered_rank[1:] == ordered_rank[:-1]
    tied[1:] |= equal
    tied[:-1] |= equal
    return tied


def _refine(
    rank: np.ndarray, order: np.ndarray, tied: np.ndarray, sorted_key: np.ndarray
) -> np.ndarray:
    """Dense ranks after the tied places were sorted by `sorted_key`."""
    is_new = np.ones(len(order), bool)  # untied places stand alone
    is_new[tied] = np.concatenate([[True], sorted_key[1:] != sorted_key[:-1]])
    refined = np.empty_like(rank)
    refined[order] = np.cumsum(is_new)
    return refined
