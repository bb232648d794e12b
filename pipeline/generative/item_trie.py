"""Semantic IDs of the items that may be recommended: what a prefix may go on with, and to whom.

A trie never changes. Who adds or withdraws items gets a new one with another `version`, so a
request that holds the old one stays consistent.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pipeline.errors import DataError
from pipeline.generative.code_tree import NONE, Children, CodeTree, lexicographic_order, narrow

__all__ = ["NONE", "ROOT", "Children", "ItemTrie"]

ROOT = 0  # the node of the empty prefix


class ItemTrie:
    """Items by their codes.

    Items are numbers of the caller's choice, such as rows of ITEMS. Items may share an id (the
    collision policy `bucket`). Nodes are those of this trie only, never of another version.

    Rows are in the order of ids, so codes need not be stored: the tree tells them. A million items
    with 2.2 prefixes each take 32 bytes an item, are built in 0.8 s, and are withdrawn from in
    0.4 s: what is left stays in order.
    """

    def __init__(self, items: np.ndarray, codes: np.ndarray, is_warm: np.ndarray) -> None:
        """Args: numbers (n,), codes (n, levels) and whether the recommender has trained on each.

        Raises:
            DataError: an item stands twice, or a code is negative.
        """
        codes = np.asarray(codes, np.int32)
        self._fill(np.asarray(items), codes, np.asarray(is_warm, bool), codes[:0])

    def _fill(
        self, items: np.ndarray, codes: np.ndarray, is_warm: np.ndarray, taught: np.ndarray
    ) -> "ItemTrie":
        """`taught` (any, levels): more ids that the recommender knows."""
        _require_sound(items, codes)
        order = lexicographic_order(codes)
        return self._build(items[order], codes[order], is_warm[order], taught)

    def _build(
        self, items: np.ndarray, codes: np.ndarray, is_warm: np.ndarray, taught: np.ndarray
    ) -> "ItemTrie":
        """As `_fill`, of sound rows in the order of their codes."""
        self._items = narrow(items)
        self._tree = CodeTree(codes)
        leaf = self._tree.walk(taught)[0] - self._tree.first_leaf
        is_gone = leaf < 0
        is_known = np.zeros(self._tree.num_nodes - self._tree.first_leaf, bool)
        is_known[self._tree.leaves(np.flatnonzero(is_warm)) - self._tree.first_leaf] = True
        is_known[leaf[~is_gone]] = True
        self._known = self._tree.marked_above(is_known)
        gone = taught[is_gone]
        self._gone = CodeTree(gone[lexicographic_order(gone)])  # known, but of no item any more
        return self

    @property
    def _codes(self) -> np.ndarray:
        """Of every row: (n, levels) int32."""
        return self._tree.codes_of(self._leaves)

    @property
    def _leaves(self) -> np.ndarray:
        return self._tree.leaves(np.arange(len(self)))

    @property
    def _gone_codes(self) -> np.ndarray:
        return self._gone.codes_of(np.arange(self._gone.first_leaf, self._gone.num_nodes))

    @property
    def levels(self) -> int:
        """Codes of an id."""
        return self._tree.levels

    @property
    def num_nodes(self) -> int:
        """Distinct prefixes, the empty one included."""
        return self._tree.num_nodes

    @property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """First child of every node and one more, (nodes + 1,); code of node n + 1, (nodes - 1,).

        Children of a node are consecutive. Made anew for who asks.
        """
        return self._tree.edges

    @property
    def first_leaf(self) -> int:
        """Node of the first complete id; all later ones are complete too."""
        return self._tree.first_leaf

    def items_at(self, leaves: np.ndarray, most: int) -> np.ndarray:
        """Items of complete ids, more than one where they share it: (leaves, most), -1 for none."""
        start, stop = self._tree.sequences_at(leaves)
        rows = start[:, None] + np.arange(most)
        items = self._items[np.minimum(rows, len(self._items) - 1)].astype(np.int64)
        return np.where(rows < stop[:, None], items, -1)

    def leaves_of(self, items: np.ndarray) -> np.ndarray:
        """Node of each item's complete id, NONE for who is not in the trie: (items,) int64."""
        items = np.asarray(items, np.int64)
        numbers, rows = self._by_item
        if not len(rows):
            return np.full(len(items), NONE, np.int64)
        wanted = items.astype(numbers.dtype)  # or all numbers would be converted
        place = np.minimum(np.searchsorted(numbers, wanted), len(rows) - 1)
        return np.where(numbers[place] == items, self._tree.leaves(rows[place]), NONE)

    @cached_property
    def _by_item(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of items, ascending, and the row of each."""
        rows = np.argsort(self._items, kind="stable")
        return self._items[rows], narrow(rows)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, those included that `leaves_of` makes when it is first asked."""
        own = self._items.nbytes + self._known.nbytes + sum(one.nbytes for one in self._by_item)
        return own + self._tree.nbytes + self._gone.nbytes

    def __len__(self) -> int:
        return len(self._items)

    @cached_property
    def version(self) -> str:
        """A hash of the items, their codes and the warm prefixes, in whatever order they came."""
        digest = hashlib.sha256()
        numbers, rows = self._by_item
        known = self._tree.first_leaf + np.flatnonzero(self._known[self._tree.first_leaf :])
        taught = np.concatenate([self._tree.codes_of(known), self._gone_codes])
        arrays = (
            numbers.astype(np.int64),
            self._codes[rows],
            np.unique(taught, axis=0) if len(taught) else taught,
        )
        for array in arrays:
            digest.update(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def with_items(self, items: np.ndarray, codes: np.ndarray, is_warm: np.ndarray) -> "ItemTrie":
        """This trie and more items.

        Raises:
            DataError: an item is there already, or its id has another length.
        """
        codes = np.asarray(codes, np.int32)
        if codes.shape[1] != self.levels:
            raise DataError(
                f"ids of {codes.shape[1]} codes do not go into a trie of {self.levels} levels; "
                "assign them with the codebooks and the collision policy of the others"
            )
        numbers = np.concatenate([self._items, items])
        whole = np.concatenate([self._codes, codes])
        warm = np.concatenate([self._known[self._leaves], np.asarray(is_warm, bool)])
        return ItemTrie.__new__(ItemTrie)._fill(numbers, whole, warm, self._gone_codes)

    def without(self, items: Sequence[int] | np.ndarray) -> "ItemTrie":
        """This trie less what is withdrawn; who is not there is not missed.

        What a recommender has trained on it still knows, so `warm_depth` stays as it was.
        """
        stays = ~np.isin(self._items, np.asarray(items, np.int64))
        codes, warm = self._codes, self._known[self._leaves]
        taught = np.concatenate([self._gone_codes, codes[warm & ~stays]])
        rest = self._items[stays], codes[stays], warm[stays]
        return ItemTrie.__new__(ItemTrie)._build(*rest, taught)

    def allowed(self, nodes: np.ndarray) -> Children:
        """Codes that may follow the prefix of each node (rows,), and the nodes they lead to."""
        return self._tree.children(nodes)

    def mask(self, nodes: np.ndarray, num_codes: int) -> np.ndarray:
        """Which codes 0..num_codes-1 may follow each node: (rows, num_codes) bool."""
        found = self.allowed(nodes)
        mask = np.zeros((len(nodes), num_codes), bool)
        mask[found.rows, found.codes] = True
        return mask

    def advance(self, nodes: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """The node after one more code each, NONE where no item goes on so: (rows,) int64."""
        return self._tree.advance(nodes, codes)

    def contains(self, codes: np.ndarray) -> np.ndarray:
        """Whether each row of `codes` (rows, levels) is the id of an item: (rows,) bool."""
        codes = np.asarray(codes)
        if codes.shape[1] != self.levels:
            return np.zeros(len(codes), bool)
        node = self._tree.walk(codes)[0]
        return node >= self.first_leaf

    def items_under(self, node: int) -> np.ndarray:
        """Numbers of the items whose ids begin with the prefix of a node, by their codes."""
        return self._items[self._tree.sequences_under(int(node))].astype(np.int64)

    def warm_depth(self, codes: np.ndarray) -> np.ndarray:
        """Length of the longest prefix that a warm item has too: (rows,) int64.

        So far the recommender has seen such ids. Takes any codes (rows, levels), also those of
        items that are not in the trie; of a warm item it is all levels, withdrawn or not.
        """
        depth = self._tree.walk(codes, self._known)[1]
        if self._gone.num_nodes == 1:
            return depth
        return np.maximum(depth, self._gone.walk(codes)[1])


def _require_sound(items: np.ndarray, codes: np.ndarray) -> None:
    numbers = np.sort(items)  # np.unique hashes, which takes ten times as long
    twice = numbers[1:][numbers[1:] == numbers[:-1]]
    if len(twice):
        raise DataError(f"items stand twice in a trie, such as {np.unique(twice)[:3].tolist()}")
    if codes.min(initial=0) < 0:
        row = int(np.flatnonzero((codes < 0).any(axis=1))[0])
        raise DataError(f"item {items[row]} has a negative code: {codes[row].tolist()}")
