"""DCN-V2, Deep & Cross Network (Wang et al., WWW'21, arXiv 2008.13535).

    x_{l+1} = x_0 * (W_l x_l + b_l) + x_l        (equation 1; `*` by component)

Cross and deep network read the same input side by side: fields, the mean of the history, and
knowledge.
"""

import torch
from torch import Tensor, nn

from features.ctr.models.rows import (
    AddedInput,
    Batch,
    RowInput,
    hidden_layers,
    mean_of_events,
)

_CROSS_LAYERS = 2


class CrossNetwork(nn.Module):
    """The cross layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, first: Tensor) -> Tensor:
        """(rows, width) -> (rows, width)."""
        crossed = first
        for layer in self.layers:
            crossed = first * layer(crossed) + crossed
        return crossed


class DcnV2(nn.Module):
    """Cross and deep network side by side."""

    def __init__(self, rows: RowInput, dim: int, knowledge: AddedInput | None) -> None:
        super().__init__()
        self.rows = rows
        width = rows.width + dim + (knowledge.width if knowledge else 0)
        self.cross = CrossNetwork(width, _CROSS_LAYERS)
        self.deep = hidden_layers(width, dim)
        self.head = nn.Linear(width + 2 * dim, 1)
        self.knowledge = knowledge

    def forward(self, batch: Batch) -> Tensor:
        """Logits (rows,)."""
        embedded = self.rows(batch)
        history = mean_of_events(embedded.events, embedded.is_there)
        inputs = [embedded.fields.flatten(1), history]
        if self.knowledge is not None:
            inputs.append(self.knowledge(batch))
        first = torch.cat(inputs, dim=1)
        return self.head(torch.cat([self.cross(first), self.deep(first)], dim=1)).squeeze(1)
