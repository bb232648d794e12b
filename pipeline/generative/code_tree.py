"""Code sequences of one length as a flat prefix tree, immutable, every lookup vectorised.

Nodes are numbered breadth first and, in a level, by their codes; the root is 0. So the children of
a node are consecutive nodes, an edge needs no number of its own, and what lies below a node is one
stretch of the sorted sequences.
"""

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

NONE = -1  # instead of a node: no sequence begins so


class Children(NamedTuple):
    """Edges out of several nodes, node by node, each by ascending code."""

    rows: np.ndarray  # (edges,) int64, which of the nodes asked for
    codes: np.ndarray  # (edges,) int32
    nodes: np.ndarray  # (edges,) int64


def lexicographic_order(codes: np.ndarray) -> np.ndarray:
    """Rows of `codes` (n, levels, none negative) by their codes; equal ones as they stand."""
    widths = [int(width) + 1 for width in codes.max(axis=0, initial=0)]
    if math.prod(widths) >= 2**63:
        return np.lexsort(codes.T[::-1])
    keys = np.zeros(len(codes), np.int64)
    for column, width in zip(codes.T, widths, strict=True):
        keys = keys * width + column
    return np.argsort(keys, kind="stable")


class CodeTree:
    """All prefixes of `codes` (n, levels); equal sequences share a leaf."""

    def __init__(self, codes: np.ndarray) -> None:
        count, levels = codes.shape
        self.levels = levels
        self.order = lexicographic_order(codes)
        ordered = codes[self.order]
        is_new = np.zeros(count, bool)
        is_new[:1] = True
        node = np.zeros(count, np.int64)  # of every sequence, in the level at hand
        starts, parents, edge_codes = [np.zeros(1, np.int64)], [], []
        first = 1  # node of the level
        self.level_start = [0, 1]  # first node of every level, and one past the last
        for level in range(levels):
            is_new[1:] |= ordered[1:, level] != ordered[:-1, level]
            start = np.flatnonzero(is_new)
            parents.append(node[start])
            edge_codes.append(ordered[start, level])
            starts.append(start)
            node = first + np.cumsum(is_new) - 1
            first += len(start)
            self.level_start.append(first)
        parent = np.concatenate(parents or [np.empty(0, np.int64)])
        self.child_code = np.concatenate(edge_codes or [np.empty(0)]).astype(np.int32)
        self.child_start = 1 + np.concatenate(
            [[0], np.cumsum(np.bincount(parent, minlength=first))]
        )
        self.sequence_start = np.concatenate(starts)
        self.sequence_stop = np.concatenate([np.append(own[1:], count) for own in starts])
        self._width = int(self.child_code.max(initial=-1)) + 1
        self._keys = parent * self._width + self.child_code  # ascending
        for array in (self.order, self.child_code, self.child_start, self._keys):
            array.flags.writeable = False

    @property
    def num_nodes(self) -> int:
        """The root included."""
        return len(self.child_code) + 1

    @cached_property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        arrays = (self.order, self.child_code, self.child_start, self._keys)
        return sum(array.nbytes for array in (*arrays, self.sequence_start, self.sequence_stop))

    def children(self, nodes: np.ndarray) -> Children:
        """What may follow each of `nodes` (rows,); of NONE and of leaves, nothing."""
        nodes = np.asarray(nodes, np.int64)
        known = np.maximum(nodes, 0)
        start = self.child_start[known]
        counts = np.where(nodes < 0, 0, self.child_start[known + 1] - start)
        rows = np.repeat(np.arange(len(nodes)), counts)
        before = np.cumsum(counts) - counts
        found = np.arange(len(rows)) - before[rows] + start[rows]
        return Children(rows, self.child_code[found - 1], found)

    def advance(self, nodes: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """The child of each node by its code, NONE where there is none: (rows,) int64."""
        nodes, codes = np.asarray(nodes, np.int64), np.asarray(codes, np.int64)
        may_be = (nodes >= 0) & (codes >= 0) & (codes < self._width)
        if not len(self._keys):
            return np.full(np.broadcast(nodes, codes).shape, NONE, np.int64)
        keys = np.where(may_be, nodes * self._width + codes, NONE)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[place] == keys, place + 1, NONE)

    def walk(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The node that each row of `codes` (rows, any) ends at or NONE, and how far it got."""
        node = np.zeros(len(codes), np.int64)
        depth = np.zeros(len(codes), np.int64)
        for column in np.asarray(codes).T:
            node = self.advance(node, column)
            depth += node != NONE
        return node, depth

    def sequences_under(self, node: int) -> np.ndarray:
        """Rows of the `codes` given whose sequences begin as `node` says, by their codes."""
        if node == NONE:
            return self.order[:0]
        return self.order[self.sequence_start[node] : self.sequence_stop[node]]
