"""Code sequences of one length as a flat prefix tree, immutable, every lookup vectorised.

Nodes are numbered breadth first and, in a level, by their codes; the root is 0. So the children of
a node are consecutive nodes, an edge needs no number of its own, and what lies below a node is one
stretch of the sorted sequences.

Two arrays are the tree: of every edge the number (parent, code), ascending, which says the code,
the parent and, by its place, the child; and of every node that is no leaf its first child. A third
says where the sequences of each leaf start. All are of the narrowest type that holds them.
"""

import math
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


def narrow(numbers: np.ndarray) -> np.ndarray:
    """The same whole numbers as int32, or as int64 if one does not fit."""
    fits = numbers.max(initial=0) < 2**31 and numbers.min(initial=0) >= -(2**31)
    return numbers.astype(np.int32 if fits else np.int64)


class CodeTree:
    """All prefixes of `codes` (n, levels); equal sequences share a leaf."""

    def __init__(self, codes: np.ndarray) -> None:
        """`codes` stand in `lexicographic_order`."""
        count, self.levels = codes.shape
        self._width = int(codes.max(initial=0)) + 1
        self.level_start = [0, 1]  # first node of every level, and one past the last
        is_new = np.zeros(count, bool)
        is_new[:1] = True
        node = np.zeros(count, np.int32)  # of every sequence, in the level at hand
        keys, first_child, leaf_start = [], [], np.zeros(0, np.int64)
        for level in range(self.levels):
            is_new[1:] |= codes[1:, level] != codes[:-1, level]
            leaf_start = np.flatnonzero(is_new)
            parent = node[leaf_start]
            keys.append(_key(parent, codes[leaf_start, level], self._width))
            first = self.level_start[-1]
            is_first = np.ones(len(parent), bool)
            is_first[1:] = parent[1:] != parent[:-1]
            first_child.append(narrow(first + np.flatnonzero(is_first)))
            np.cumsum(is_new, out=node)
            node += first - 1
            self.level_start.append(first + len(parent))
        ends = np.full(2 if count else 3, self.level_start[-1], np.int32)  # no root is a leaf
        self._keys = np.concatenate(keys)  # of the edge to node n + 1, ascending
        self._first_child = np.concatenate([*first_child, ends])  # of all leaves one
        self._leaf_start = narrow(np.append(leaf_start, count))  # (leaves + 1,)
        for array in self._arrays:
            array.flags.writeable = False

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self._keys, self._first_child, self._leaf_start

    @property
    def num_nodes(self) -> int:
        """The root included."""
        return len(self._keys) + 1

    @property
    def first_leaf(self) -> int:
        """Node of the first whole sequence; all later ones are leaves too."""
        return self.level_start[self.levels]

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        return sum(array.nbytes for array in self._arrays)

    @property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """First child of every node and one more, (nodes + 1,); code of node n + 1, (nodes - 1,).

        Made anew for who asks.
        """
        start = np.full(self.num_nodes + 1, self.num_nodes, self._first_child.dtype)
        start[: self.first_leaf] = self._first_child[: self.first_leaf]
        return start, (self._keys % self._width).astype(np.int32)

    def children(self, nodes: np.ndarray) -> Children:
        """What may follow each of `nodes` (rows,); of NONE and of leaves, nothing."""
        nodes = np.asarray(nodes, np.int64)
        known = np.minimum(np.maximum(nodes, 0), self.first_leaf)
        start = self._first_child[known].astype(np.int64)
        counts = np.where(nodes < 0, 0, self._first_child[known + 1] - start)
        rows = np.repeat(np.arange(len(nodes)), counts)
        before = np.cumsum(counts) - counts
        found = np.arange(len(rows)) + (start - before)[rows]
        least = (nodes * self._width).astype(self._keys.dtype)  # any, where there are no children
        codes = self._keys[found - 1] - least[rows]
        return Children(rows, codes.astype(np.int32), found)

    def advance(self, nodes: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """The child of each node by its code, NONE where there is none: (rows,) int64."""
        nodes, codes = np.asarray(nodes, np.int64), np.asarray(codes, np.int64)
        may_be = (nodes >= 0) & (nodes < self.first_leaf) & (codes >= 0) & (codes < self._width)
        if not len(self._keys):
            return np.full(may_be.shape, NONE, np.int64)
        # Of the type of the keys, or all of these would be converted.
        keys = np.where(may_be, nodes * self._width + codes, 0).astype(self._keys.dtype)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(may_be & (self._keys[place] == keys), place + 1, NONE)

    def walk(
        self, codes: np.ndarray, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The node that each row of `codes` (rows, any) ends at or NONE, and how far it got.

        Of nodes only those are stepped on that `among` (nodes,) marks, if it is given.
        """
        node = np.zeros(len(codes), np.int64)
        depth = np.zeros(len(codes), np.int64)
        for column in np.asarray(codes).T:
            node = self.advance(node, column)
            if among is not None:
                node[~among[node]] = NONE  # NONE itself reads the last mark, and stays NONE
            depth += node != NONE
        return node, depth

    def sequences_under(self, node: int) -> slice:
        """Where the sequences stand that begin as `node` says; nowhere for NONE."""
        if node == NONE:
            return slice(0, 0)
        first, last = node, node
        while first < self.first_leaf:
            first, last = int(self._first_child[first]), int(self._first_child[last + 1]) - 1
        places = self._leaf_start[[first - self.first_leaf, last + 1 - self.first_leaf]]
        return slice(*places.tolist())

    def sequences_at(self, leaves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the sequences of each leaf start, and where they stop: (leaves,) int64 both."""
        place = np.asarray(leaves, np.int64) - self.first_leaf
        start, stop = self._leaf_start[place], self._leaf_start[place + 1]
        return start.astype(np.int64), stop.astype(np.int64)

    def leaves(self, rows: np.ndarray) -> np.ndarray:
        """Leaf of each of the sequences, numbered as given: (rows,) int64."""
        wanted = np.asarray(rows).astype(self._leaf_start.dtype)
        return np.searchsorted(self._leaf_start, wanted, side="right") - 1 + self.first_leaf

    def codes_of(self, leaves: np.ndarray) -> np.ndarray:
        """The sequences that end at some leaves: (leaves, levels) int32."""
        codes = np.empty((len(leaves), self.levels), np.int32)
        node = np.asarray(leaves, np.int64)
        for level in reversed(range(self.levels)):
            node, codes[:, level] = np.divmod(self._keys[node - 1], self._width)
        return codes

    def marked_above(self, leaves: np.ndarray) -> np.ndarray:
        """Nodes that lead to a marked leaf, `leaves` (leaves,) bool, and these: (nodes,) bool."""
        marks = np.zeros(self.num_nodes, bool)
        marks[self.first_leaf :] = leaves
        for level in reversed(range(self.levels)):
            first, stop = self.level_start[level], self.level_start[level + 1]
            below = marks[stop : self.level_start[level + 2]]
            if len(below):
                start = self._first_child[first:stop] - stop
                marks[first:stop] = np.logical_or.reduceat(below, start)
        return marks


def _key(parent: np.ndarray, code: np.ndarray, width: int) -> np.ndarray:
    """Numbers of edges, as uint32 where they fit."""
    keys = parent.astype(np.int64) * width + code
    return keys.astype(np.uint32) if keys.max(initial=0) < 2**32 else keys
