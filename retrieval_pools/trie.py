"""Search in sorted suffix arrays: a trie without node objects.

A node at depth d is an interval [lo, hi) of suffixes that share d tokens; see `suffix_array`.
"""

import numpy as np
from numba import types

from retrieval_pools.compiled import (
    CHILD,
    Index,
    array,
    flag,
    ids,
    index,
    integer,
    kernel,
)
from retrieval_pools.suffix_array import SEPARATOR


@kernel(integer(ids, integer, ids, integer, integer))
def _compare(text: np.ndarray, place: int, context: np.ndarray, first: int, length: int) -> int:
    """Sign of text[place:] against context[first : first + length], 0 if it begins so."""
    for offset in range(length):
        difference = text[place + offset] - context[first + offset]
        if difference != 0:
            return difference
    return 0


@kernel(integer(index, integer, integer, integer, ids, integer, integer, flag))
def _bound(
    index: Index,
    lo: int,
    hi: int,
    skip: int,
    context: np.ndarray,
    first: int,
    length: int,
    after: bool,
) -> int:
    """First of [lo, hi) not below the context or, with `after`, above all that begin so."""
    while lo < hi:
        middle = (lo + hi) // 2
        order = _compare(index.text, index.suffixes[middle] + skip, context, first, length)
        if order < 0 or (after and order == 0):
            lo = middle + 1
        else:
            hi = middle
    return lo


@kernel(types.UniTuple(integer, 2)(index, integer, integer, integer, ids, integer, integer))
def find(
    index: Index, lo: int, hi: int, skip: int, context: np.ndarray, first: int, length: int
) -> tuple[int, int]:
    """The part of [lo, hi) that after `skip` tokens goes on with context[first:][:length].

    All suffixes of [lo, hi) must share their first `skip` tokens.
    """
    text, suffixes = index.text, index.suffixes
    begin = _bound(index, lo, hi, skip, context, first, length, False)
    after, probe, step = begin, begin, 1  # strides, because most parts are small
    while probe < hi and _compare(text, suffixes[probe] + skip, context, first, length) == 0:
        after = probe + 1
        probe += step
        step *= 2
    return begin, _bound(index, after, min(probe, hi), skip, context, first, length, True)


@kernel(types.UniTuple(integer, 3)(index, integer, integer, ids, integer, integer, integer))
def longest_match(
    index: Index, lo: int, hi: int, context: np.ndarray, first: int, end: int, hint: int
) -> tuple[int, int, int]:
    """Longest suffix of context[first:end] that occurs in [lo, hi): its length and interval.

    `end - first` must not exceed the depth that suffixes are sorted by. What occurs at one length
    occurs at every shorter one, so the length is found by bisection, `hint` tried first.
    """
    shortest, longest, begin, after = 0, end - first, lo, lo
    while shortest < longest:
        length = hint if shortest < hint <= longest else (shortest + longest + 1) // 2
        place, beyond = find(index, lo, hi, 0, context, end - length, length)
        if place < beyond:
            shortest, begin, after = length, place, beyond
            hint = length + 1 if length == hint else 0
        else:
            longest = length - 1
    return shortest, begin, after


@kernel(integer(index, integer, integer, integer, integer))
def run_end(index: Index, start: int, hi: int, depth: int, token: int) -> int:
    """End of the run of suffixes, from `start` below `hi`, whose token at `depth` is `token`."""
    text, suffixes = index.text, index.suffixes
    if text[suffixes[hi - 1] + depth] == token:
        return hi
    step = 1
    while start + step < hi and text[suffixes[start + step] + depth] == token:
        start += step
        step *= 2
    beyond = min(start + step, hi - 1)
    while beyond - start > 1:
        middle = (start + beyond) // 2
        if text[suffixes[middle] + depth] == token:
            start = middle
        else:
            beyond = middle
    return beyond


@kernel(integer(index, integer, integer, integer, integer, array(CHILD)))
def children(index: Index, lo: int, hi: int, depth: int, probes: int, found: np.ndarray) -> int:
    """Write the distinct next tokens of a node into `found`, ascending; return how many.

    The suffixes of [lo, hi) must share `depth` tokens and be sorted by one more. Those that end
    here lead nowhere. `found` (probes or more,) CHILD. The work is bounded by `probes`, not by
    the interval: a child whose share is 1 / probes or more is found; all counts are exact.
    """
    text, suffixes = index.text, index.suffixes
    if lo < hi and text[suffixes[lo] + depth] == SEPARATOR:
        lo = run_end(index, lo, hi, depth, SEPARATOR)
    stride = max(1, -((lo - hi) // probes))
    count, seen, probe = 0, lo, lo + stride - 1
    while probe < hi:
        token = text[suffixes[probe] + depth]
        begin, last = seen, probe  # the child begins between what was seen and the probe
        while begin < last:
            middle = (begin + last) // 2
            if text[suffixes[middle] + depth] < token:
                begin = middle + 1
            else:
                last = middle
        seen = run_end(index, probe, hi, depth, token)
        child = found[count]
        child.token = token
        child.lo = begin
        child.hi = seen
        child.place = suffixes[begin]
        count += 1
        probe = seen + stride - 1
    return count
