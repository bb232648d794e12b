"""DeepFM (Guo et al., IJCAI'17, arXiv 1703.04247).

    logit = linear + sum over pairs of fields of <v_i, v_j> + deep(fields)        (equations 1 to 4)

The mean of the history is one more field. Knowledge enters the linear term and the deep network,
not the pairs, as in KAR.
"""

import torch
from torch import Tensor, nn

from features.ctr.models.lr import LinearTerm
from features.ctr.models.rows import (
    AddedInput,
    Batch,
    RowInput,
    hidden_layers,
    mean_of_events,
)


def pairwise(fields: Tensor) -> Tensor:
    """Sum of the inner products of all pairs of fields: (rows, fields, dim) -> (rows,).

    In time linear in the fields, since the pairs sum to (|sum of all|^2 - sum of |each|^2) / 2.
    """
    of_sum = fields.sum(dim=1).square().sum(dim=1)
    return (of_sum - fields.square().sum(dim=(1, 2))) / 2


class DeepFm(nn.Module):
    """Factorisation machine and deep network over the same embeddings."""

    def __init__(self, rows: RowInput, dim: int, knowledge: AddedInput | None) -> None:
        super().__init__()
        self.rows = rows
        self.linear = LinearTerm(rows, knowledge)
        width = rows.width + dim + (knowledge.width if knowledge else 0)
        self.deep = nn.Sequential(*hidden_layers(width, dim), nn.Linear(2 * dim, 1))
        self.knowledge = knowledge

    def forward(self, batch: Batch) -> Tensor:
        """Logits (rows,)."""
        embedded = self.rows(batch)
        history = mean_of_events(embedded.events, embedded.is_there).unsqueeze(1)
        fields = torch.cat([embedded.fields, history], dim=1)
        adapted = None if self.knowledge is None else self.knowledge(batch)
        inputs = [fields.flatten(1)] if adapted is None else [fields.flatten(1), adapted]
        deep = self.deep(torch.cat(inputs, dim=1)).squeeze(1)
        return self.linear(batch, adapted) + pairwise(fields) + deep
