"""Two CTR models, small and plain: DIN (arXiv 1706.06978) and DCN-V2 (arXiv 2008.13535).

Both read ids, attributes and the history; knowledge, if any, joins them as one more input, adapted
(in DIN it bypasses the attention, as in KAR).
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from features.ctr.adaptor import HybridExpertAdaptor
from features.ctr.data import LIKED, CtrData
from features.ctr.join import KnowledgeVectors

_CROSS_LAYERS = 2
_INIT_DEVIATION = 0.05


class Batch(NamedTuple):
    """Some CTR rows."""

    users: Tensor  # (rows,) int64 positions in the catalog
    items: Tensor  # (rows,)
    fields: Tensor  # (rows, fields) int64 codes, those of the user first
    history_items: Tensor  # (rows, history) int64 codes
    history_signals: Tensor  # (rows, history) int64


def make_batch(data: CtrData, rows: np.ndarray) -> Batch:
    """Gather the rows from the arrays."""
    users, items = data.users[rows], data.items[rows]
    codes = np.concatenate([data.user_fields.codes[users], data.item_fields.codes[items]], axis=1)
    arrays = users, items, codes, data.history_items[rows], data.history_signals[rows]
    return Batch(*(torch.from_numpy(array.astype(np.int64)) for array in arrays))


class RowInput(nn.Module):
    """Embeddings of fields and history; code 0 starts as the zero vector."""

    def __init__(self, data: CtrData, dim: int) -> None:
        super().__init__()
        sizes = [*data.user_fields.sizes, *data.item_fields.sizes]
        starts = torch.tensor([0, *np.cumsum(sizes)[:-1]])
        self.starts: Tensor
        self.register_buffer("starts", starts)
        self.item_field = len(data.user_fields.sizes)
        self.codes = _embedding(sum(sizes), dim, starts)
        self.signals = _embedding(LIKED + 1, dim, torch.tensor([0]))
        self.width = len(sizes) * dim

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Embed a batch.

        Returns:
            fields (rows, width), target item (rows, dim), history (rows, history, dim), and which
            events of the history are there (rows, history) bool.
        """
        fields = self.codes(batch.fields + self.starts)  # (rows, fields, dim)
        events = self.codes(batch.history_items + self.starts[self.item_field])
        events = events + self.signals(batch.history_signals)
        return fields.flatten(1), fields[:, self.item_field], events, batch.history_signals > 0


class KnowledgeInput(nn.Module):
    """Knowledge of user and item, adapted; each entity of a batch is adapted once."""

    def __init__(self, vectors: KnowledgeVectors, dim: int) -> None:
        super().__init__()
        self.users: Tensor
        self.items: Tensor
        self.register_buffer("users", torch.tensor(vectors.users), persistent=False)
        self.register_buffer("items", torch.tensor(vectors.items), persistent=False)
        self.adaptor = HybridExpertAdaptor(vectors.users.shape[1], dim)
        self.width = 2 * dim

    def forward(self, batch: Batch) -> Tensor:
        """(rows, width)."""
        users, user_of_row = torch.unique(batch.users, return_inverse=True)
        items, item_of_row = torch.unique(batch.items, return_inverse=True)
        user = self.adaptor("user", self.users[users])[user_of_row]
        item = self.adaptor("item", self.items[items])[item_of_row]
        return torch.cat([user, item], dim=1)


class Din(nn.Module):
    """Deep Interest Network: the history is summed by how much each event bears on the target."""

    def __init__(self, rows: RowInput, dim: int, knowledge: KnowledgeInput | None) -> None:
        super().__init__()
        self.rows = rows
        self.attention = nn.Sequential(nn.Linear(4 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))
        width = rows.width + 2 * dim + (knowledge.width if knowledge else 0)
        self.head = nn.Sequential(*_deep(width, dim), nn.Linear(2 * dim, 1))
        self.knowledge = knowledge

    def forward(self, batch: Batch) -> Tensor:
        """Logits (rows,)."""
        fields, target, events, is_there = self.rows(batch)
        interest = self.interest(target, events, is_there)
        inputs = [fields, interest, interest * target]
        if self.knowledge is not None:
            inputs.append(self.knowledge(batch))
        return self.head(torch.cat(inputs, dim=1)).squeeze(1)

    def interest(self, target: Tensor, events: Tensor, is_there: Tensor) -> Tensor:
        """Attention-weighted sum of the events, equation (3) of DIN: not normalised.

        Args:
            target: (rows, dim).
            events: (rows, history, dim).
            is_there: (rows, history) bool; absent events weigh nothing, so none gives zero.
        """
        query = target.unsqueeze(1).expand_as(events)
        pair = torch.cat([events, query, events - query, events * query], dim=2)
        weights = self.attention(pair).squeeze(2).masked_fill(~is_there, 0.0)  # (rows, history)
        return (weights.unsqueeze(2) * events).sum(dim=1)


class CrossNetwork(nn.Module):
    """Cross layers of DCN-V2: x_{l+1} = x_0 * (W_l x_l + b_l) + x_l, elementwise product."""

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
    """Deep & Cross Network v2, cross and deep side by side; the history is averaged."""

    def __init__(self, rows: RowInput, dim: int, knowledge: KnowledgeInput | None) -> None:
        super().__init__()
        self.rows = rows
        width = rows.width + dim + (knowledge.width if knowledge else 0)
        self.cross = CrossNetwork(width, _CROSS_LAYERS)
        self.deep = nn.Sequential(*_deep(width, dim))
        self.head = nn.Linear(width + 2 * dim, 1)
        self.knowledge = knowledge

    def forward(self, batch: Batch) -> Tensor:
        """Logits (rows,)."""
        fields, _, events, is_there = self.rows(batch)
        inputs = [fields, mean_of_events(events, is_there)]
        if self.knowledge is not None:
            inputs.append(self.knowledge(batch))
        first = torch.cat(inputs, dim=1)
        return self.head(torch.cat([self.cross(first), self.deep(first)], dim=1)).squeeze(1)


def mean_of_events(events: Tensor, is_there: Tensor) -> Tensor:
    """Mean over the events that are there, zero if none: (rows, dim)."""
    total = (events * is_there.unsqueeze(2)).sum(dim=1)
    return total / is_there.sum(dim=1, keepdim=True).clamp(min=1)


MODELS: dict[str, type[Din] | type[DcnV2]] = {"din": Din, "dcnv2": DcnV2}


def _embedding(codes: int, dim: int, zeros: Tensor) -> nn.Embedding:
    embedding = nn.Embedding(codes, dim)
    nn.init.normal_(embedding.weight, std=_INIT_DEVIATION)
    with torch.no_grad():
        embedding.weight[zeros] = 0.0
    return embedding


def _deep(width: int, dim: int) -> list[nn.Module]:
    """Hidden layers of 4 and 2 times the embedding: 128-64 for 32, where KAR takes 200-80."""
    return [nn.Linear(width, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, 2 * dim), nn.ReLU()]
