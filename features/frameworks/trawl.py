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
from pipeline.templates import Domain, Templates

EXPERTS = 4  # LASER tries 1 to 6
TEMPERATURE = 0.07  # LASER's
LAMBDA = 0.1  # weight of the contrastive loss; LASER tries 0 to 2

_DOMAINS = {
    "movie": Domain("viewer", "genre, director and cast, plot and theme, acclaim"),
    "book": Domain("reader", "genre, author and style, plot and theme, acclaim"),
}
_GENERAL = Domain("user", "type and purpose, maker, style, quality")

_USER_TEXT = """\
Find out which kinds of {{ domain }} a {{ person }} likes. The {{ domain }} titles that the \
{{ person }} has rated are listed, each with its category. Use what you know about them, and leave \
out what does not help to recommend. Consider: {{ factors }}. \
Write 3-4 sentences of plain text.

{% if attributes or not history %}
{{ person | capitalize }}: {{ attributes | join(", ") or "nothing is known" }}
{% endif %}
{% if history %}
Rated titles with category, oldest first:
{% for title, stars in history %}
{{ title }}{{ " (" ~ categories[loop.index0] ~ ")" if categories[loop.index0] }}, {{ stars }}
{% endfor %}
{% endif %}

Describe this {{ person }}'s {{ domain }} preferences now."""

_ITEM_TEXT = """\
Write what helps to recommend {{ "an" if domain[:1] in "aeiouAEIOU" else "a" }} {{ domain }}. \
Use the text about it and what you know, and leave out the rest. Cover: {{ factors }}. \
Write 3-4 sentences of plain text.

Title: {{ title or "untitled" }}
{% if attributes %}
Text about it:
{% for attribute in attributes %}
{{ attribute }}
{% endfor %}
{% endif %}

Describe this {{ domain }} now."""


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
    Templates(_USER_TEXT, _ITEM_TEXT, _DOMAINS, _GENERAL),
    GatedMixtureAdaptor,
    learning="gated mixture 1, InfoNCE 2",
    auxiliary=TrawlLoss,
    auxiliary_weight=LAMBDA,
)
