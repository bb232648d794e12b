"""KAR's hybrid-expert adaptor (arXiv 2306.10933, section 3.3): wide text vectors -> narrow inputs.

Users and items have experts of their own and share others. With x a text vector, E_j the experts a
tower may use (shared ones first) and g its gate:

    adapted = sum_j softmax(g(x))_j E_j(x)
"""

import torch
from torch import Tensor, nn

_SHARED, _OWN = 2, 2  # experts


class HybridExpertAdaptor(nn.Module):
    """Two towers, `user` and `item`, over shared and own experts."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.shared = nn.ModuleList(_expert(width, dim) for _ in range(_SHARED))
        self.own = nn.ModuleDict(
            {
                kind: nn.ModuleList(_expert(width, dim) for _ in range(_OWN))
                for kind in ("user", "item")
            }
        )
        self.gate = nn.ModuleDict(
            {kind: nn.Linear(width, _SHARED + _OWN) for kind in ("user", "item")}
        )

    def forward(self, kind: str, vectors: Tensor) -> Tensor:
        """Adapt (entities, width) vectors of a kind to (entities, dim)."""
        experts = [*self.shared, *self.own[kind]]  # pyright: ignore[reportGeneralTypeIssues]
        answers = torch.stack([expert(vectors) for expert in experts], dim=1)
        gate = self.gate[kind](vectors).softmax(dim=1)  # (entities, experts)
        return (gate.unsqueeze(2) * answers).sum(dim=1)  # (entities, dim)


def _expert(width: int, dim: int) -> nn.Module:
    """KAR's 128-32 for dim 32; a ReLU after each layer."""
    return nn.Sequential(nn.Linear(width, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim), nn.ReLU())
