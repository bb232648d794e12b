"""Which sequences of codes are ids of items, asked of complete ids only.

NEZHA (WWW'26) checks what its head drafts against a set of integers, one per id: codes are the
digits of a number. Here the set is a sorted list; the place of a number in it is its leaf.
"""

import math

import torch

from pipeline.errors import DataError
from pipeline.generative.code_tree import NONE
from pipeline.generative.trie_tensors import TrieTensors


class Membership:
    """The complete ids of a trie as integers."""

    def __init__(self, trie: TrieTensors) -> None:
        """Take the ids of `trie`.

        Raises:
            DataError: an id does not fit an integer of 64 bits.
        """
        codes = _leaf_codes(trie)
        self._first_leaf = trie.first_leaf
        self._sizes = (codes.max(0).values + 1) if len(codes) else codes.new_ones(trie.levels)
        sizes: list[int] = self._sizes.tolist()
        if math.prod(sizes) >= 2**63:
            raise DataError(
                f"ids of levels with {sizes} codes do not fit 64 bits; take fewer levels or "
                "smaller codebooks, or check prefixes level by level"
            )
        # The first code is the highest digit, so numbers ascend as leaves do.
        weights = [math.prod(sizes[level + 1 :]) for level in range(trie.levels)]
        self._weights = torch.tensor(weights, device=codes.device)
        self._numbers = (codes * self._weights).sum(-1)  # (leaves,)

    def leaves(self, codes: torch.Tensor) -> torch.Tensor:
        """Leaf of each id, NONE where no item has it: (..., levels) int64 -> (...) int64."""
        if not len(self._numbers):
            return torch.full(codes.shape[:-1], NONE, device=codes.device)
        number = (codes * self._weights).sum(-1)
        place = torch.searchsorted(self._numbers, number).clamp(max=len(self._numbers) - 1)
        is_digit = ((codes >= 0) & (codes < self._sizes)).all(-1)
        is_item = is_digit & (self._numbers[place] == number)
        return torch.where(is_item, self._first_leaf + place, NONE)


def _leaf_codes(trie: TrieTensors) -> torch.Tensor:
    """Codes of all ids, by leaf: (leaves, levels) int64."""
    nodes = len(trie.child_start) - 1
    every = torch.arange(nodes, device=trie.child_start.device)
    parents = every.repeat_interleave(trie.child_start.diff())  # of nodes 1 and on
    node, codes = every[trie.first_leaf :], []
    for _ in range(trie.levels):
        codes.append(trie.child_code[node - 1])
        node = parents[node - 1]
    return torch.stack(codes[::-1], 1)
