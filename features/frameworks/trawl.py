"""TRAWL (Luo et al., CIKM'24, arXiv 2403.06642): extraction, gated mixture, contrastive adapter.

The prompt shows raw text about the entity (of a user: the category of every title beside it) and
asks for what bears on recommending, by few factors. The whole answer is encoded. Users and items
share one gated mixture of experts, which is trained with the CTR loss and with

    L = mean over i of -log( exp(s(t_i, v_i) / T) / sum over j of exp(s(t_i, v_j) / T) )

where t_i is the adapted text of entity i of a batch, v_i the CTR model's own vector of it, which
gets no gradient, and s the cosine. That text is contrasted with behaviour is the paper's; cosine,
pairs and stopped gradient are a choice. LASER's code draws positives from co-occurrence, over all
interactions: it sees the test part, so that is not done here.
"""

import torch
from torch import Tensor, nn

from features.frameworks.contrast import Contrast, info_nce
from features.frameworks.framework import Framework

EXPERTS = 4  # LASER tries 1 to 6
TEMPERATURE = 0.07  # LASER's
LAMBDA = 0.1  # weight of the contrastive loss; LASER tries 0 to 2


class GatedMixtureAdaptor(nn.Module):
    """Experts and gate that users and items share: sum over j of softmax(G x)_j E_j(x)."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
            for _ in range(EXPERTS)
        )
        self.gate = nn.Linear(width, EXPERTS)

    def forward(self, kind: str, vectors: Tensor) -> Tensor:
        """Adapt (entities, width) vectors to (entities, dim)."""
        answers = torch.stack([expert(vectors) for expert in self.experts], dim=1)
        gate = self.gate(vectors).softmax(dim=1)  # (entities, experts)
        return (gate.unsqueeze(2) * answers).sum(dim=1)


class TrawlLoss(Contrast):
    """Text finds its entity's vector among those of the batch; the vectors stay where they are."""

    def forward(
        self, kind: str, adapted: Tensor, behaviour: Tensor, vector_of: Tensor | None = None
    ) -> Tensor:
        """A scalar; `adapted` (entities, dim), `behaviour` (entities, embedding_dim)."""
        return info_nce(self.bridge[kind](adapted), behaviour.detach(), TEMPERATURE, vector_of)


FRAMEWORK = Framework(
    "trawl",
    GatedMixtureAdaptor,
    learning="gated mixture 1, InfoNCE 2",
    auxiliary=TrawlLoss,
    auxiliary_weight=LAMBDA,
)
