"""Which continuations a drafter that searches drafts, for the rule that will verify them.

As published the N largest by the drafter's own sums (AtSpeed, Lin et al., ICLR'25). But a node is
of use only if all above it are kept, and where beams are drawn a parent that was not may be far
more probable than those that were: its children push out those of beams. So with K known nodes are
ranked by how wrong the drafter has to be for the model to keep them: by how much a node falls short
of the K-th of its level, and those above it of theirs, summed. What the drafter itself would keep
lacks nothing and comes first, so a drafter that is right has every level accepted, whatever N is.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from pipeline.generative.beams import Beams, Choice, chosen_by
from pipeline.generative.noise import longer_keys, path_keys
from pipeline.generative.verification import Rule

_LOWEST = torch.finfo(torch.float64).min


class Drafted(NamedTuple):
    """What a level is ranked by besides scores: its paths."""

    keys: torch.Tensor  # (users, n) int64, of seed and codes
    short: torch.Tensor  # (users, n) float64, 0 for what the drafter would keep, else below


@dataclass(frozen=True)
class Ranking:
    """N of all continuations, level by level."""

    rule: Rule  # that will verify
    drafted: int  # N
    kept: int | None = None  # K; None: ranked as published

    def begin(self, seeds: torch.Tensor, beams: Beams) -> Drafted:
        """At the beams that drafts begin with; seeds (users,) int64."""
        keys = path_keys(seeds, beams.codes, beams.depth)
        return Drafted(keys, torch.zeros_like(beams.scores, dtype=torch.float64))

    def choose(self, joint: torch.Tensor, above: Drafted) -> tuple[Choice, Drafted]:
        """N continuations, or all if there are fewer, of `joint` (users, n, codes)."""
        order = self.rule.draft_order(joint, above.keys).double()
        if self.kept is not None:
            order = _shortfalls(order, above.short, self.kept)
        order = order.flatten(1)
        choice = chosen_by(order, joint, min(self.drafted, order.shape[1]))
        short = order.gather(1, choice.rows * joint.shape[2] + choice.codes)
        return choice, Drafted(longer_keys(above.keys.gather(1, choice.rows), choice.codes), short)


def _shortfalls(order: torch.Tensor, above: torch.Tensor, kept: int) -> torch.Tensor:
    """Of every continuation (users, n, codes) below parents that lack `above` (users, n)."""
    likely = order.masked_fill((above < 0)[..., None], -torch.inf).flatten(1)
    least = likely.topk(min(kept, likely.shape[1])).values[:, -1].clamp(min=_LOWEST)
    return above[..., None] + (order - least[:, None, None]).clamp(max=0)
