"""DIN, Deep Interest Network (Zhou et al., KDD'18, arXiv 1706.06978).

    interest(target) = sum over events of a(event, target) * event        (equation 3)

`a` is a small network and is not normalised. Fields, interest and knowledge go to a deep network;
knowledge bypasses the attention, as in KAR.
"""

import torch
from torch import Tensor, nn

from features.ctr.models.rows import AddedInput, Batch, RowInput, hidden_layers


class Din(nn.Module):
    """The history is summed by how much each event bears on the target."""

    def __init__(self, rows: RowInput, dim: int, knowledge: AddedInput | None) -> None:
        super().__init__()
        self.rows = rows
        self.attention = nn.Sequential(nn.Linear(4 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))
        width = rows.width + 2 * dim + (knowledge.width if knowledge else 0)
        self.head = nn.Sequential(*hidden_layers(width, dim), nn.Linear(2 * dim, 1))
        self.knowledge = knowledge

    def forward(self, batch: Batch) -> Tensor:
        """Logits (rows,)."""
        embedded = self.rows(batch)
        interest = self.interest(embedded.target, embedded.events, embedded.is_there)
        inputs = [embedded.fields.flatten(1), interest, interest * embedded.target]
        if self.knowledge is not None:
            inputs.append(self.knowledge(batch))
        return self.head(torch.cat(inputs, dim=1)).squeeze(1)

    def interest(self, target: Tensor, events: Tensor, is_there: Tensor) -> Tensor:
        """Attention-weighted sum of the events.

        Args:
            target: (rows, dim).
            events: (rows, history, dim).
            is_there: (rows, history) bool; absent events weigh nothing, so none gives zero.
        """
        query = target.unsqueeze(1).expand_as(events)
        pair = torch.cat([events, query, events - query, events * query], dim=2)
        weights = self.attention(pair).squeeze(2).masked_fill(~is_there, 0.0)  # (rows, history)
        return (weights.unsqueeze(2) * events).sum(dim=1)
