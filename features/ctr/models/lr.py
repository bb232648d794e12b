"""LR, logistic regression (Richardson et al., WWW'07, "Predicting Clicks").

    logit = b + sum over fields of w[field, value] + mean over events of w[item, signal]

No two inputs meet, so what it reaches is what interactions have to beat. With knowledge a linear
function of the adapted vectors is added.
"""

import torch
from torch import Tensor, nn

from features.ctr.models.rows import (
    SIGNALS,
    AddedInput,
    Batch,
    RowInput,
    embedding,
    mean_of_events,
)

_STEP = 10.0  # one weight has to go as far as all components of a vector do in other models


class LinearTerm(nn.Module):
    """A weight per value of a field and per liked or disliked item; first order of other models."""

    def __init__(self, rows: RowInput, knowledge: AddedInput | None) -> None:
        super().__init__()
        self.starts: Tensor
        self.register_buffer("starts", rows.starts)
        self.values = embedding(sum(rows.sizes), 1, rows.starts)
        self.events = embedding(rows.sizes[rows.item_field] * SIGNALS, 1, torch.tensor([0]))
        self.bias = nn.Parameter(torch.zeros(1))
        self.adapted = nn.Linear(knowledge.width, 1, bias=False) if knowledge else None

    def forward(self, batch: Batch, adapted: Tensor | None) -> Tensor:
        """Logits (rows,); `adapted` is the knowledge of the rows, (rows, width)."""
        values = self.values(batch.fields + self.starts).sum(dim=1)  # (rows, 1)
        events = self.events(batch.history_items * SIGNALS + batch.history_signals)
        logits = self.bias + values + mean_of_events(events, batch.history_signals > 0)
        if self.adapted is not None and adapted is not None:
            logits = logits + self.adapted(adapted)
        return logits.squeeze(1)


class LogisticRegression(nn.Module):
    """The linear term alone; nothing is embedded.

    Adam moves every parameter by the learning rate, so weights are kept in tenths: of all models
    this one would still be on its way when training ends.
    """

    def __init__(self, rows: RowInput, dim: int, knowledge: AddedInput | None) -> None:
        super().__init__()
        self.linear = LinearTerm(rows, knowledge)
        with torch.no_grad():
            for weight in self.linear.parameters():
                weight.div_(_STEP)
        self.knowledge = knowledge

    def forward(self, batch: Batch) -> Tensor:
        """Logits (rows,)."""
        adapted = None if self.knowledge is None else self.knowledge(batch)
        return _STEP * self.linear(batch, adapted)
