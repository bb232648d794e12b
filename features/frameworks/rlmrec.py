"""RLMRec (Ren et al., WWW'24, arXiv 2310.15950), its contrastive form.

The LLM answers in JSON, {"summary": who likes what, "reasoning": why}; the summary is encoded, the
reasoning only makes it better. With p a projection for users and one for items,

    L = mean over i of -log( exp(cos(e_i, p(s_i)) / T) / sum over j of exp(cos(e_i, p(s_j)) / T) )

is added: e_i is the CTR model's own vector of entity i of a batch, s_i its profile and p the
projection, both of which learn by it. A projection each is our choice: in the authors' code users
and items share one MLP. Their `cal_infonce_loss` exponentiates before it takes the logarithm, and
contrasts a batch's users with all users, its items with those of the batch; here it is logsumexp,
both inside the batch.
"""

import json
import re
from itertools import islice

from torch import Tensor, nn

from features.frameworks.contrast import Contrast, info_nce
from features.frameworks.framework import Framework, Reading

KD_TEMPERATURE = 0.2  # as in the authors' configuration, where it is 0.1 to 0.2
KD_WEIGHT = 1e-2  # likewise

_DECODER = json.JSONDecoder(strict=False)
_MOST_BRACES = 20  # of an answer are tried
_HALF = re.compile("[\ud800-\udfff]")
_BRACE = re.compile(r"\{")
_BEGUN = re.compile(r'\{\s*"summary"\s*:\s*(?=")')


def read_profile(kind: str, answer: str) -> Reading:
    """The summary of the first profile in `answer`; words and braces around it do no harm.

    Also one whose `reasoning` was cut or cannot be parsed, since of a profile no more than the
    summary is encoded. Malformed: no summary, or a complete object without a `reasoning`.
    """
    for brace in islice(_BRACE.finditer(answer), _MOST_BRACES):
        if summary := _summary_at(answer, brace.start()):
            return Reading(summary, False)
    return Reading(answer, True)


def _summary_at(answer: str, start: int) -> str:
    """Of the object that starts there; "" if it is no profile."""
    try:
        profile = _DECODER.raw_decode(answer, start)[0]
    except (ValueError, RecursionError):  # the latter of brackets without end
        return _begun_at(answer, start)
    is_profile = isinstance(profile.get("reasoning"), str)
    return _usable(profile.get("summary")) if is_profile else ""


def _begun_at(answer: str, start: int) -> str:
    """What an object begins with that cannot be parsed whole; "" if with no whole summary."""
    begun = _BEGUN.match(answer, start)
    try:
        return _usable(_DECODER.raw_decode(answer, begun.end())[0]) if begun else ""
    except ValueError:
        return ""


def _usable(summary: object) -> str:
    """Nothing of what is no text, or has half a character, which has no bytes."""
    if not isinstance(summary, str) or _HALF.search(summary):
        return ""
    return summary.strip()


class DualProjection(nn.Module):
    """A projection for users and one for items: width, (width + dim) / 2, dim."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        middle = (width + dim) // 2
        self.project = nn.ModuleDict(
            {
                kind: nn.Sequential(
                    nn.Linear(width, middle), nn.LeakyReLU(), nn.Linear(middle, dim)
                )
                for kind in ("user", "item")
            }
        )

    def forward(self, kind: str, vectors: Tensor) -> Tensor:
        """Adapt (entities, width) vectors of a kind to (entities, dim)."""
        return self.project[kind](vectors)


class RlmRecLoss(Contrast):
    """The CTR model's vector finds its profile among those of the batch; both learn."""

    def forward(
        self, kind: str, adapted: Tensor, behaviour: Tensor, vector_of: Tensor | None = None
    ) -> Tensor:
        """A scalar; `adapted` (entities, dim), `behaviour` (entities, embedding_dim)."""
        return info_nce(behaviour, self.bridge[kind](adapted), KD_TEMPERATURE, vector_of)


FRAMEWORK = Framework(
    "rlmrec",
    DualProjection,
    learning="dual projection 1, InfoNCE 2",
    read=read_profile,
    reading="summary 2",
    auxiliary=RlmRecLoss,
    auxiliary_weight=KD_WEIGHT,
)
