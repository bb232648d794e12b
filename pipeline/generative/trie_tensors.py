"""The item trie on the model's device: what may follow the beams of a batch of users."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from pipeline.generative.code_tree import NONE
from pipeline.generative.item_trie import ItemTrie


@dataclass(frozen=True)
class TrieTensors:
    """Edges of an `ItemTrie`. Nodes are those of the trie."""

    child_start: torch.Tensor  # (nodes + 1,) int64, first child
    child_code: torch.Tensor  # (nodes - 1,) int64, code of node n + 1
    first_leaf: int
    num_codes: int
    levels: int
    is_constraint: bool  # or only tells what is an item and what is not
    # Nodes that lead to nothing the user may get, (users, nodes) bool.
    excluded: torch.Tensor | None = None

    def children(self, nodes: torch.Tensor) -> torch.Tensor:
        """Node that each code leads to, NONE if none or excluded: (users, n) -> (users, n, codes).

        `nodes` may be NONE.
        """
        flat = nodes.flatten()
        known = flat.clamp(min=0)
        start = self.child_start[known]
        counts = torch.where(flat < 0, 0, self.child_start[known + 1] - start)
        rows = torch.arange(len(flat), device=flat.device).repeat_interleave(counts)
        offset = torch.arange(len(rows), device=flat.device) - (counts.cumsum(0) - counts)[rows]
        child = start[rows] + offset
        found = torch.full((len(flat), self.num_codes), NONE, device=flat.device)
        found[rows, self.child_code[child - 1]] = child
        found = found.view(*nodes.shape, self.num_codes)
        if self.excluded is None:
            return found
        is_out = self.excluded.gather(1, found.clamp(min=0).flatten(1)).view(found.shape)
        return found.masked_fill(is_out, NONE)

    def narrow(self, rows: torch.Tensor) -> "TrieTensors":
        """For some of the users only."""
        if self.excluded is None:
            return self
        return replace(self, excluded=self.excluded[rows])

    def without(self, excluded: torch.Tensor) -> "TrieTensors":
        """For users who never get some leaves, (users, leaves) bool.

        Nor do they get a prefix below which nothing else is: a beam that cannot be completed would
        take the place of one that can, and lists would be short without need.
        """
        start, stop = self._leaves_below()
        left = nn.functional.pad((~excluded).cumsum(1, dtype=torch.int32), (1, 0))
        return replace(self, excluded=left[:, start] == left[:, stop])

    def _leaves_below(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Leaves below every node, which are consecutive: first and one past the last, (nodes,)."""
        first = last = torch.arange(len(self.child_start) - 1, device=self.child_start.device)
        for _ in range(self.levels):
            first = torch.where(first < self.first_leaf, self.child_start[first], first)
            last = torch.where(last < self.first_leaf, self.child_start[last + 1] - 1, last)
        return first - self.first_leaf, last + 1 - self.first_leaf


def trie_tensors(
    trie: ItemTrie, num_codes: int, device: torch.device | str, is_constraint: bool = True
) -> TrieTensors:
    """Move the edges of a trie to a device."""
    start, code = trie.edges

    def move(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array.astype(np.int64), device=device)

    return TrieTensors(
        move(start), move(code), trie.first_leaf, num_codes, trie.levels, is_constraint
    )
