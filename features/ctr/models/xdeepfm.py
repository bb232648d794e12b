"""xDeepFM (Lian et al., KDD'18, arXiv 1803.05170).

    x^k_h = sum over i, j of W^{k,h}_ij (x^{k-1}_i * x^0_j)        (equation 6; `*` by component)
    logit = linear + w_cin [sums over components of all x^k_h] + deep(x^0)        (7 to 9)

The rows of x^0 are the fields: values, the mean of the history, knowledge of user and of item.
"""

from functools import reduce

import torch
from torch import Tensor, nn

from features.ctr.models.lr import LinearTerm
from features.ctr.models.rows import AddedInput, Batch, FieldInput, RowInput, hidden_layers

_FEATURE_MAPS = (16, 16)  # rows of each x^k; the paper takes 100 to 200 on 10^7 samples


class CompressedInteraction(nn.Module):
    """CIN; without an activation, which the paper found best."""

    def __init__(self, fields: int, maps: tuple[int, ...]) -> None:
        super().__init__()
        before = (fields, *maps[:-1])
        self.layers = nn.ModuleList(
            nn.Linear(rows * fields, after, bias=False)
            for rows, after in zip(before, maps, strict=True)
        )

    def forward(self, fields: Tensor) -> Tensor:
        """(rows, fields, dim) -> (rows, feature maps of all layers)."""
        maps, pooled = fields, []
        for weight in self.layers.parameters():  # one a layer: there are no biases
            maps = _compressed(maps, fields, weight)
            pooled.append(maps.sum(dim=2))
        return torch.cat(pooled, dim=1)


def _compressed(maps: Tensor, fields: Tensor, weight: Tensor) -> Tensor:
    """The next maps, (rows, after, dim), map by map: all products at once are fields squared.

    Args:
        maps: (rows, before, dim).
        fields: (rows, fields, dim).
        weight: (after, before * fields).
    """
    weights = weight.unflatten(1, (maps.shape[1], fields.shape[1])).unbind(1)
    each = zip(weights, maps.unbind(1), strict=True)
    mixed = (torch.einsum("hj,rjd->rhd", of, fields) * one.unsqueeze(1) for of, one in each)
    return reduce(torch.add, mixed)


class XDeepFm(nn.Module):
    """Linear term, compressed interactions and deep network."""

    def __init__(self, rows: RowInput, dim: int, knowledge: AddedInput | None) -> None:
        super().__init__()
        self.fields = FieldInput(rows, dim, knowledge)
        self.linear = LinearTerm(rows, None)
        self.interaction = CompressedInteraction(self.fields.total, _FEATURE_MAPS)
        self.deep = hidden_layers(self.fields.total * dim, dim)
        self.head = nn.Linear(sum(_FEATURE_MAPS) + 2 * dim, 1, bias=False)

    def forward(self, batch: Batch) -> Tensor:
        """Logits (rows,)."""
        fields = self.fields(batch)
        inputs = [self.interaction(fields), self.deep(fields.flatten(1))]
        return self.linear(batch, None) + self.head(torch.cat(inputs, dim=1)).squeeze(1)
