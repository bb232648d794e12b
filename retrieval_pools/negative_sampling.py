"""Triplets of user, liked item and another item, for pairwise ranking losses such as BPR."""

import numpy as np
import torch

from retrieval_pools.edges import Edges


class TripletSampler:
    """Pairs every training edge with an item that its user does not have, uniformly.

    No rejection: of the user's f free items the r-th is looked up directly, r uniform below f. With
    s_0 < s_1 < ... the user's own items, s_j - j free items come before s_j, hence free item r is
    r + |{j: s_j - j <= r}|. Edges of users that have every item are left out.
    """

    def __init__(self, train: Edges, num_users: int, num_items: int) -> None:
        """`train` holds no pair twice."""
        train = Edges(*np.divmod(np.sort(train.keys(num_items)), num_items))
        counts = np.bincount(train.users, minlength=num_users)
        starts = np.cumsum(counts) - counts
        ranks = np.arange(len(train)) - starts[train.users]
        self._num_items = num_items
        self._starts = torch.as_tensor(starts)
        self._free = torch.as_tensor(num_items - counts)
        self._free_before = torch.as_tensor(train.keys(num_items) - ranks)  # ascending
        usable = train.select(counts[train.users] < num_items)
        self._users, self._items = torch.as_tensor(usable.users), torch.as_tensor(usable.items)

    def epoch(self, generator: torch.Generator) -> torch.Tensor:
        """All usable edges in random order: (3, edges) int64 of user, item, free item."""
        order = torch.randperm(len(self._users), generator=generator)
        users = self._users[order]
        return torch.stack([users, self._items[order], self._free_items(users, generator)])

    def _free_items(self, users: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        chance = torch.rand(len(users), generator=generator, dtype=torch.float64)
        rank = (chance * self._free[users]).long()
        own_before = torch.searchsorted(
            self._free_before, users * self._num_items + rank, right=True
        )
        return rank + own_before - self._starts[users]
