"""What the texts of an index say again and again."""

from dataclasses import dataclass

import numpy as np

from retrieval_pools.prefixes import shared_prefixes
from retrieval_pools.suffix_array import SEPARATOR


@dataclass(frozen=True, eq=False)
class Phrase:
    """Tokens that stand in the texts more than once."""

    token_ids: np.ndarray  # (tokens,) int32
    count: int  # occurrences, overlapping ones too


def top_phrases(
    tokens: np.ndarray, suffixes: np.ndarray, depth: int, count: int, shortest: int = 4
) -> list[Phrase]:
    """The `count` most frequent phrases of `shortest` tokens or more, of equals the longer first.

    `tokens` as `join` gives them, `suffixes` (n,) sorted by `depth` tokens. A phrase is left out
    if one that is listed contains it and occurs as often.
    """
    lo, hi, length = _repeated(shared_prefixes(tokens, suffixes, depth), depth, shortest)
    listed: list[Phrase] = []
    for number in np.lexsort((suffixes[lo], -length, lo - hi)):
        if len(listed) == count:
            break
        places = suffixes[lo[number] : hi[number]].astype(np.int64)
        size = int(length[number])
        if size == depth:  # the order says no more, the texts may
            size = _extended(tokens, places, size)
        phrase = Phrase(tokens[places[0] : places[0] + size], len(places))
        if not any(_contains(other, phrase) for other in listed):
            listed.append(phrase)
    return listed


def _repeated(
    shared: np.ndarray, depth: int, shortest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs of suffixes that share `length` tokens, and not all of them one more: lo, hi, length.

    `shared` (n,) as `shared_prefixes` gives it. Where a phrase is always followed by the same
    token the longer one stands for both.
    """
    found = [np.empty((3, 0), np.int64)]
    for length in range(shortest, depth + 1) if len(shared) else ():
        lo = np.flatnonzero(shared < length)
        within = shared.copy()
        within[lo] = depth + 1  # what a run shares with the one before it does not count
        ends_here = np.minimum.reduceat(within, lo) == length
        hi = np.append(lo[1:], len(shared))
        found.append(np.stack([lo, hi, np.full(len(lo), length)])[:, ends_here])
    lo, hi, length = np.concatenate(found, axis=1)
    return lo, hi, length


def _extended(tokens: np.ndarray, places: np.ndarray, length: int) -> int:
    """Tokens that follow alike at all `places`, where `length` are known to."""
    while True:
        following = tokens[places + length]
        if following[0] == SEPARATOR or (following != following[0]).any():
            return length
        length += 1


def _contains(longer: Phrase, phrase: Phrase) -> bool:
    """Whether `phrase` stands in `longer`, which occurs as often."""
    size = len(phrase.token_ids)
    if longer.count != phrase.count or len(longer.token_ids) < size:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(longer.token_ids, size)
    return bool((windows == phrase.token_ids).all(1).any())
