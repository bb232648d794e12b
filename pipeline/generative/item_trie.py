"""Semantic IDs of the items that may be recommended: what a prefix may go on with, and to whom.

A trie never changes. Who adds or withdraws items gets a new one with another `version`, so a
request that holds the old one stays consistent.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from pipeline.errors import DataError
from pipeline.generative.code_tree import NONE, Children, CodeTree

__all__ = ["NONE", "ROOT", "Children", "ItemTrie"]

ROOT = 0  # the node of the empty prefix


class ItemTrie:
    """Items by their codes.

    Items are numbers of the caller's choice, such as rows of ITEMS. Items may share an id (the
    collision policy `bucket`). Nodes are those of this trie only, never of another version.
    """

    def __init__(self, items: np.ndarray, codes: np.ndarray, is_warm: np.ndarray) -> None:
        """Args: numbers (n,), codes (n, levels) and whether the recommender has trained on each.

        Raises:
            DataError: an item stands twice, or a code is negative.
        """
        self._build(items, codes, codes[np.asarray(is_warm, bool)])

    def _build(self, items: np.ndarray, codes: np.ndarray, warm_codes: np.ndarray) -> "ItemTrie":
        self._items = np.array(items, np.int64)
        self._codes = np.array(codes, np.int32)
        self._warm_codes = np.array(warm_codes, np.int32)
        _require_sound(self._items, self._codes)
        self._tree, self._warm = CodeTree(self._codes), CodeTree(self._warm_codes)
        return self

    @property
    def levels(self) -> int:
        """Codes of an id."""
        return self._codes.shape[1]

    @property
    def num_nodes(self) -> int:
        """Distinct prefixes, the empty one included."""
        return self._tree.num_nodes

    @property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """First child of every node and one more, (nodes + 1,); code of node n + 1, (nodes - 1,).

        Children of a node are consecutive.
        """
        return self._tree.child_start, self._tree.child_code

    @property
    def first_leaf(self) -> int:
        """Node of the first complete id; all later ones are complete too."""
        return self._tree.level_start[self.levels]

    def items_at(self, leaves: np.ndarray, most: int) -> np.ndarray:
        """Items of complete ids, more than one where they share it: (leaves, most), -1 for none."""
        start = self._tree.sequence_start[leaves][:, None] + np.arange(most)
        is_own = start < self._tree.sequence_stop[leaves][:, None]
        rows = self._tree.order[np.minimum(start, len(self._items) - 1)]
        return np.where(is_own, self._items[rows], -1)

    def leaves_of(self, items: np.ndarray) -> np.ndarray:
        """Node of each item's complete id, NONE for who is not in the trie: (items,) int64."""
        by_item = np.argsort(self._items)
        place = np.searchsorted(self._items, items, sorter=by_item)
        row = by_item[np.minimum(place, len(self._items) - 1)]
        leaf = self._tree.walk(self._codes[row])[0]
        return np.where(self._items[row] == items, leaf, NONE)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        own = self._items.nbytes + self._codes.nbytes + self._warm_codes.nbytes
        return own + self._tree.nbytes + self._warm.nbytes

    def __len__(self) -> int:
        return len(self._items)

    @cached_property
    def version(self) -> str:
        """A hash of the items, their codes and the warm prefixes, in whatever order they came."""
        digest = hashlib.sha256()
        by_item = np.argsort(self._items)
        arrays = (
            self._items[by_item],
            self._codes[by_item],
            np.unique(self._warm_codes, axis=0) if len(self._warm_codes) else self._warm_codes,
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
        warm = np.concatenate([self._warm_codes, codes[np.asarray(is_warm, bool)]])
        return self._with(
            np.concatenate([self._items, items]), np.concatenate([self._codes, codes]), warm
        )

    def without(self, items: Sequence[int] | np.ndarray) -> "ItemTrie":
        """This trie less what is withdrawn; who is not there is not missed.

        What a recommender has trained on it still knows, so `warm_depth` stays as it was.
        """
        stays = ~np.isin(self._items, np.asarray(items, np.int64))
        return self._with(self._items[stays], self._codes[stays], self._warm_codes)

    def _with(self, items: np.ndarray, codes: np.ndarray, warm: np.ndarray) -> "ItemTrie":
        return ItemTrie.__new__(ItemTrie)._build(items, codes, warm)

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
        return node >= self._tree.level_start[self.levels]

    def items_under(self, node: int) -> np.ndarray:
        """Numbers of the items whose ids begin with the prefix of a node, by their codes."""
        return self._items[self._tree.sequences_under(int(node))]

    def warm_depth(self, codes: np.ndarray) -> np.ndarray:
        """Length of the longest prefix that a warm item has too: (rows,) int64.

        So far the recommender has seen such ids. Takes any codes (rows, levels), also those of
        items that are not in the trie; of a warm item it is all levels, withdrawn or not.
        """
        return self._warm.walk(codes)[1]


def _require_sound(items: np.ndarray, codes: np.ndarray) -> None:
    if len(np.unique(items)) < len(items):
        numbers, counts = np.unique(items, return_counts=True)
        raise DataError(f"items stand twice in a trie, such as {numbers[counts > 1][:3].tolist()}")
    if codes.min(initial=0) < 0:
        row = int(np.flatnonzero((codes < 0).any(axis=1))[0])
        raise DataError(f"item {items[row]} has a negative code: {codes[row].tolist()}")
