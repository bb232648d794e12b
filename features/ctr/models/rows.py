"""What every CTR model reads: ids, attributes and history as embeddings, and adapted knowledge.

An event of the history that is not there weighs nothing in any model, whatever its padding holds.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from features.ctr.adaptor import HybridExpertAdaptor
from features.ctr.data import LIKED, CtrData
from features.ctr.join import KnowledgeVectors

SIGNALS = LIKED + 1  # codes of what a user thought of an event; 0 is padding
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


class Embedded(NamedTuple):
    """A batch as vectors."""

    fields: Tensor  # (rows, fields, dim)
    target: Tensor  # (rows, dim), the id of the item: one of the fields
    events: Tensor  # (rows, history, dim)
    is_there: Tensor  # (rows, history) bool, which events there are


class RowInput(nn.Module):
    """Embeddings of fields and history; code 0 starts as the zero vector.

    While training, `dropout` is the share of the components of fields that are left out.
    """

    def __init__(self, data: CtrData, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes = (*data.user_fields.sizes, *data.item_fields.sizes)
        self.starts: Tensor
        self.register_buffer("starts", torch.tensor([0, *np.cumsum(self.sizes)[:-1]]))
        self.item_field = len(data.user_fields.sizes)
        self.codes = embedding(sum(self.sizes), dim, self.starts)
        self.signals = embedding(SIGNALS, dim, torch.tensor([0]))
        self.dropout = nn.Dropout(dropout)
        self.width = len(self.sizes) * dim

    def forward(self, batch: Batch) -> Embedded:
        """Embed a batch."""
        fields = self.codes(batch.fields + self.starts)
        events = self.codes(batch.history_items + self.starts[self.item_field])
        events = events + self.signals(batch.history_signals)
        target = fields[:, self.item_field]
        return Embedded(self.dropout(fields), target, events, batch.history_signals > 0)


class AddedInput(nn.Module):
    """One more input of a model: two vectors of one length for every row, side by side."""

    width: int  # of both

    def __call__(self, batch: Batch) -> Tensor:
        """(rows, width)."""
        return super().__call__(batch)


class KnowledgeInput(AddedInput):
    """Knowledge of user and item, adapted; each entity of a batch is adapted once.

    While training, `dropout` is the share of the components that are left out.
    """

    def __init__(
        self,
        vectors: KnowledgeVectors,
        dim: int,
        adaptor: Callable[[int, int], nn.Module] = HybridExpertAdaptor,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.users: Tensor
        self.items: Tensor
        # Not copied: they are as large as the catalog, and nobody writes to them.
        self.register_buffer("users", _shared(vectors.users), persistent=False)
        self.register_buffer("items", _shared(vectors.items), persistent=False)
        self.adaptor = adaptor(vectors.users.shape[1], dim)
        self.dropout = nn.Dropout(dropout)
        self.width = 2 * dim

    def forward(self, batch: Batch) -> Tensor:
        """(rows, width)."""
        users, user_of_row = torch.unique(batch.users, return_inverse=True)
        items, item_of_row = torch.unique(batch.items, return_inverse=True)
        user = self.adaptor("user", self.users[users])[user_of_row]
        item = self.adaptor("item", self.items[items])[item_of_row]
        return self.dropout(torch.cat([user, item], dim=1))


def _shared(vectors: np.ndarray) -> Tensor:
    """A tensor over the same memory, be it read-only (as arrays of Ray's object store are)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(vectors)


class FieldInput(nn.Module):
    """All inputs as vectors of one length, for models that let fields interact.

    The history is one field, the mean of its events, as multi-valued fields are in these models;
    adapted knowledge of user and item is a field each (KAR), brought to the length of the others.
    """

    def __init__(self, rows: RowInput, dim: int, knowledge: AddedInput | None) -> None:
        super().__init__()
        self.rows = rows
        self.knowledge = knowledge
        self.total = len(rows.sizes) + 1
        if knowledge is not None:
            self.to_fields = nn.Linear(knowledge.width // 2, dim, bias=False)
            self.total += 2

    def forward(self, batch: Batch) -> Tensor:
        """(rows, total, dim)."""
        embedded = self.rows(batch)
        fields = [embedded.fields, mean_of_events(embedded.events, embedded.is_there).unsqueeze(1)]
        if self.knowledge is not None:
            fields.append(self.to_fields(self.knowledge(batch).unflatten(1, (2, -1))))
        return torch.cat(fields, dim=1)


def mean_of_events(events: Tensor, is_there: Tensor) -> Tensor:
    """Mean over the events that are there, zero if none: (rows, dim)."""
    total = (events * is_there.unsqueeze(2)).sum(dim=1)
    return total / is_there.sum(dim=1, keepdim=True).clamp(min=1)


def embedding(codes: int, dim: int, zeros: Tensor) -> nn.Embedding:
    """Small random vectors, zero at the codes `zeros`."""
    table = nn.Embedding(codes, dim)
    nn.init.normal_(table.weight, std=_INIT_DEVIATION)
    with torch.no_grad():
        table.weight[zeros] = 0.0
    return table


def hidden_layers(width: int, dim: int) -> nn.Sequential:
    """Hidden layers of 4 and 2 times the embedding: 128-64 for 32, where KAR takes 200-80."""
    return nn.Sequential(
        nn.Linear(width, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, 2 * dim), nn.ReLU()
    )
