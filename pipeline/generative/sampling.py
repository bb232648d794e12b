"""Relaxed verification by sampling (AtSpeed-R, Lin et al., ICLR'25).

What is drawn are K of all continuations without replacement, by the probabilities p of the model
over whole beams: softmax of summed log-probabilities over a temperature. A drafted continuation
stands if a coin of min(1, p/q) says so. If K or more stand, K of them are kept, whichever; else all
of them and others from norm(max(p - q, 0)).

Deviations from the authors' code: p and q are of the same continuations, those of the beams that
the level above kept (theirs normalises q over all N drafted parents, p over K); where nothing is
left of p - q, the rest is drawn from p (theirs fails); who has nothing drafted draws from p. A
level is accepted if all K have been scored, where theirs goes on only if K coins stand: what fills
up is never something that a coin refused while p - q has any of the rest, and where it has not, the
draft below owes nothing to these coins.

The result follows p for K = N = 1. For more drafted than kept it leans towards q: with p = q all N
stand and each is kept as likely as any other. `common_noise.py` has what is exact for any K and N.
"""

import torch

from pipeline.generative.beams import Choice, chosen_by
from pipeline.generative.common_noise import common_noise, sorted_choice
from pipeline.generative.noise import gumbel, keys_of, uniform
from pipeline.generative.verification import NOT_DRAFTED

_STANDS, _ORDER, _DRAFT = 2, 3, 4  # purposes that numbers are drawn for
_TIER = 1e4  # larger than any log-probability with noise that could be drawn


class Sampling:
    """K continuations drawn without replacement; without a draft, those of `CommonNoise`."""

    needs_q = True

    def __init__(self, temperature: float = 1.0) -> None:
        """`temperature` of p and q."""
        self.temperature = temperature

    def draft_order(self, joint: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """See `Rule`: draws without replacement, by noise that the verification has no part in."""
        noise = gumbel(keys_of(keys, _DRAFT), joint.shape[2])
        return joint.double() / self.temperature + noise

    def choose(
        self,
        joint: torch.Tensor,
        column: torch.Tensor,
        log_q: torch.Tensor | None,
        width: int,
        keys: torch.Tensor,
    ) -> Choice:
        """See `Rule`."""
        log_p = self._normalised(joint, joint)  # (users, k * codes)
        noise = common_noise(keys, joint.shape[2]).flatten(1)
        order = log_p + noise
        if log_q is not None:
            order = self._with_draft(
                order, noise, log_p, self._normalised(log_q, joint), column, keys
            )
        return sorted_choice(chosen_by(order, joint, width))

    def _with_draft(
        self,
        order: torch.Tensor,
        noise: torch.Tensor,
        log_p: torch.Tensor,
        log_q: torch.Tensor,
        column: torch.Tensor,
        keys: torch.Tensor,
    ) -> torch.Tensor:
        """What to keep first: accepted, then what p has more of than q, then the rest by p."""
        num_codes = column.shape[2]
        is_drafted = (column != NOT_DRAFTED).flatten(1)
        coin = uniform(keys_of(keys, _STANDS), num_codes).flatten(1).log()
        stands = is_drafted & (coin < log_p - log_q) & (log_p > -torch.inf)
        more = (log_p.exp() - log_q.exp()).clamp(min=0)  # not normalised: the order is the same
        fills = (more > 0) & is_drafted.any(1, keepdim=True)
        order = torch.where(fills, _TIER + more.log() + noise, order)
        place = uniform(keys_of(keys, _ORDER), num_codes).flatten(1)
        return torch.where(stands, 2 * _TIER + place, order)

    def _normalised(self, scores: torch.Tensor, joint: torch.Tensor) -> torch.Tensor:
        """Log-probabilities over all that `joint` (users, k, codes) allows, flat, float64."""
        own = scores.masked_fill(joint == -torch.inf, -torch.inf).flatten(1).double()
        found = torch.log_softmax(own / self.temperature, 1)
        return found.nan_to_num(nan=-torch.inf, neginf=-torch.inf)  # of who has nothing to choose
