"""Draft trees as LASER's published code grows them, depth first; see `published`."""

from typing import Any

import numpy as np

from pipeline.engine.types import ROOT
from retrieval_pools.compiled import (
    CHILD,
    Index,
    array,
    index,
    integer,
    kernel,
    nothing,
)
from retrieval_pools.trie import children

QUERY = 2  # tokens
DEPTH = 12  # levels; a match with fewer tokens, the root included, is too small
SIZE = 64  # tokens of a tree, the root included

# A node: the suffixes [lo, hi) that lead over it, its token, its depth and its parent in the tree.
SPOT = np.dtype([(name, "i4") for name in ("lo", "hi", "token", "depth", "parent")], align=True)


@kernel(integer(array(SPOT), integer, integer, integer, array(CHILD), integer, integer, integer))
def _insert(
    spots: Any,
    first: int,
    end: int,
    last: int,
    found: np.ndarray,
    number: int,
    depth: int,
    parent: int,
) -> int:
    """Insert child `number` into spots[first:end], most frequent first; return the new end.

    Never beyond `last`: where there is no room the least frequent falls out.
    """
    child = found[number]
    count = child.hi - child.lo
    if end == last:
        if first == last or spots[end - 1].hi - spots[end - 1].lo >= count:
            return end
        end -= 1
    place = end
    while place > first and spots[place - 1].hi - spots[place - 1].lo < count:
        spots[place] = spots[place - 1]
        place -= 1
    spot = spots[place]
    spot.lo = child.lo
    spot.hi = child.hi
    spot.token = child.token
    spot.depth = depth
    spot.parent = parent
    return end + 1


@kernel(integer(index, integer, integer, integer, integer, array(SPOT), array(CHILD)))
def _least_count(
    index: Index, lo: int, hi: int, match: int, depth: int, spots: Any, found: np.ndarray
) -> int:
    """Occurrences of the `SIZE`-th most frequent node below [lo, hi), 1 if there are fewer.

    No node is more frequent than its parent, so the most frequent are found from the root down.
    """
    end, place, level = 0, 0, 0
    while True:
        if level < depth:
            count = children(index, lo, hi, match + level, len(found), found)
            for number in range(count):
                end = _insert(spots, 0, end, SIZE, found, number, level + 1, ROOT)
        if place == end:
            break
        lo, hi, level = spots[place].lo, spots[place].hi, spots[place].depth
        place += 1
    return spots[SIZE - 1].hi - spots[SIZE - 1].lo if end == SIZE else 1


@kernel(nothing(array(SPOT), integer, integer))
def _reverse(spots: Any, first: int, end: int) -> None:
    spare = len(spots) - 1  # the stack never reaches it
    for offset in range((end - first) // 2):
        spots[spare] = spots[first + offset]
        spots[first + offset] = spots[end - 1 - offset]
        spots[end - 1 - offset] = spots[spare]


@kernel(
    integer(
        index,
        integer,
        integer,
        integer,
        integer,
        integer,
        array(SPOT),
        array(CHILD),
        array(SPOT),
        integer,
    )
)
def flatten(
    index: Index,
    lo: int,
    hi: int,
    match: int,
    depth: int,
    most: int,
    spots: Any,
    found: np.ndarray,
    trees: np.ndarray,
    begin: int,
) -> int:
    """Write the tree below [lo, hi), which share `match` tokens, from `begin` on; return its end.

    `spots` is a stack: the next node to write lies on top.
    """
    least = _least_count(index, lo, hi, match, depth, spots, found)
    top, end, level, parent = 0, begin, 0, ROOT
    while True:
        if level < depth:
            first, last = top, top + most - (end - begin)
            count = children(index, lo, hi, match + level, len(found), found)
            for number in range(count):
                if found[number].hi - found[number].lo >= least:
                    top = _insert(spots, first, top, last, found, number, level + 1, parent)
            _reverse(spots, first, top)
        if top == 0 or end - begin == most:
            return end
        top -= 1
        trees[end] = spots[top]
        lo, hi, level = spots[top].lo, spots[top].hi, spots[top].depth
        parent = end - begin
        end += 1
