"""AutoInt (Song et al., CIKM'19, arXiv 1810.11921).

    a^h_mk = softmax over k of <W^h_query e_m, W^h_key e_k>        (equation 5)
    e_m   <- ReLU(concat over h of [sum over k of a^h_mk W^h_value e_k] + W_res e_m)        (6 to 8)
    logit  = w [all e_m] + b        (equation 9)

The fields e_m are values, the mean of the history (equation 4), knowledge of user and of item.
"""

import torch
from torch import Tensor, nn

from features.ctr.models.rows import AddedInput, Batch, FieldInput, RowInput

_LAYERS, _HEADS = 2, 2


class InteractingLayer(nn.Module):
    """Every field attends to all fields, in several heads."""

    def __init__(self, width: int, head_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.residual = (
            nn.Linear(width, heads * head_dim, bias=False) for _ in range(4)
        )

    def forward(self, fields: Tensor) -> Tensor:
        """(rows, fields, width) -> (rows, fields, heads * head_dim)."""
        query, key, value = (
            layer(fields).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )  # (rows, heads, fields, head_dim)
        weights = (query @ key.transpose(2, 3)).softmax(dim=3)
        attended = (weights @ value).transpose(1, 2).flatten(2)
        return torch.relu(attended + self.residual(fields))


class AutoInt(nn.Module):
    """Interacting layers over the fields, without a deep network beside them."""

    def __init__(self, rows: RowInput, dim: int, knowledge: AddedInput | None) -> None:
        super().__init__()
        self.fields = FieldInput(rows, dim, knowledge)
        widths = (dim, *[_HEADS * dim] * (_LAYERS - 1))
        self.layers = nn.Sequential(*(InteractingLayer(width, dim, _HEADS) for width in widths))
        self.head = nn.Linear(self.fields.total * _HEADS * dim, 1)

    def forward(self, batch: Batch) -> Tensor:
        """Logits (rows,)."""
        return self.head(self.layers(self.fields(batch)).flatten(1)).squeeze(1)
