"""What lists of recommendations say of a row, as an input of CTR models."""

import torch
from torch import Tensor, nn

from features.ctr.candidates import WIDTH, CandidateLists
from features.ctr.models.rows import AddedInput, Batch


class CandidateInput(AddedInput):
    """Whether, where and how well an item is listed, through one hidden layer.

    While training, `dropout` is the share of the components that are left out.
    """

    def __init__(self, lists: CandidateLists, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_items = lists.num_items
        self.keys: Tensor
        self.values: Tensor
        # The last entry is of pairs that are in no list.
        keys = torch.from_numpy(lists.keys.copy())
        end = torch.full((1,), torch.iinfo(torch.int64).max)
        values = torch.from_numpy(lists.values.copy())
        self.register_buffer("keys", torch.cat([keys, end]), persistent=False)
        self.register_buffer("values", torch.cat([values, torch.zeros(1, WIDTH)]), persistent=False)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, dim), nn.ReLU(), nn.Linear(dim, 2 * dim), nn.Dropout(dropout)
        )
        self.width = 2 * dim

    def told(self, batch: Batch) -> Tensor:
        """What lists say of each row: (rows, WIDTH)."""
        key = batch.users * self.num_items + batch.items
        place = torch.searchsorted(self.keys, key)
        is_listed = self.keys[place] == key
        return self.values[torch.where(is_listed, place, len(self.keys) - 1)]

    def forward(self, batch: Batch) -> Tensor:
        """(rows, width)."""
        return self.layers(self.told(batch))
