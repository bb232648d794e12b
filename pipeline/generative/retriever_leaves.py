"""Items as leaves of the trie: whole ids as a batch of users drafts them."""

from dataclasses import dataclass

import numpy as np
import torch

from pipeline.generative.code_tree import NONE
from pipeline.generative.item_trie import ItemTrie


@dataclass(frozen=True)
class Leaves:
    """All complete ids of a trie, in the order of its leaves."""

    first: int  # node of leaf 0 in the trie
    codes: torch.Tensor  # (leaves, levels) int64
    prefixes: torch.Tensor  # (levels + 1, leaves) int64, node of each one's beginning of a length
    warm_depth: torch.Tensor  # (leaves,) int64, of the longest beginning that a warm item has too
    items: torch.Tensor  # (most, leaves) int64, who share the id; NONE for no more

    @property
    def levels(self) -> int:
        """Codes of an id."""
        return self.codes.shape[1]

    @property
    def is_warm(self) -> torch.Tensor:
        """Whether the recommender has trained on the id: (leaves,) bool."""
        return self.warm_depth == self.levels

    def of_items(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores of items (users, items) as scores of ids, of who share one the best's."""
        found = scores[:, self.items[0]]
        for more in self.items[1:]:
            other = scores[:, more.clamp(min=0)].masked_fill(more == NONE, -torch.inf)
            found = torch.maximum(found, other)
        return found


def leaves_of(trie: ItemTrie, device: torch.device | str) -> Leaves:
    """The complete ids of `trie` on a device."""
    start, code = trie.edges
    parent = np.concatenate([[NONE], np.repeat(np.arange(trie.num_nodes), np.diff(start))])
    leaf = np.arange(trie.first_leaf, trie.num_nodes)
    prefixes, codes = [leaf], []
    for _ in range(trie.levels):
        codes.append(code[prefixes[-1] - 1])
        prefixes.append(parent[prefixes[-1]])
    ids = np.stack(codes[::-1], 1)
    shared = trie.items_at(leaf, 1)
    while shared.shape[1] < len(trie) and (shared[:, -1] != NONE).any():
        shared = trie.items_at(leaf, 2 * shared.shape[1])

    def move(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array.astype(np.int64), device=device)

    used = max(int((shared != NONE).any(0).sum()), 1)
    return Leaves(
        trie.first_leaf,
        move(ids),
        move(np.stack(prefixes[::-1])),
        move(trie.warm_depth(ids)),
        move(shared[:, :used].T),
    )
