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
stand and each is kept as likely as any other.
"""

import torch

from pipeline.generative.beams import Choice, chosen_by
from pipeline.generative.noise import gumbel, keys_of, uniform
from pipeline.generative.verification import NOT_DRAFTED

_STANDS, _ORDER, _REST = 2, 3, 4  # purposes that numbers are drawn for
_TIER = 1e4  # larger than any log-probability with noise that could be drawn


class Sampling:
    """K continuations drawn without replacement; without a draft, sampled beam search."""

    needs_q = True

    def __init__(self, temperature: float = 1.0) -> None:
        """`temperature` of p and q, the same as the drafter's."""
        self.temperature = temperature

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
        noise = gumbel(keys_of(keys, _REST), log_p.shape[1])
        order = log_p + noise
        if log_q is not None:
            order = self._with_draft(
                order, noise, log_p, self._normalised(log_q, joint), column, keys
            )
        return _by_score(chosen_by(order, joint, width))

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
        count = log_p.shape[1]
        is_drafted = (column != NOT_DRAFTED).flatten(1)
        coin = uniform(keys_of(keys, _STANDS), count).log()
        stands = is_drafted & (coin < log_p - log_q) & (log_p > -torch.inf)
        more = (log_p.exp() - log_q.exp()).clamp(min=0)  # not normalised: the order is the same
        fills = (more > 0) & is_drafted.any(1, keepdim=True)
        order = torch.where(fills, _TIER + more.log() + noise, order)
        return torch.where(stands, 2 * _TIER + uniform(keys_of(keys, _ORDER), count), order)

    def _normalised(self, scores: torch.Tensor, joint: torch.Tensor) -> torch.Tensor:
        """Log-probabilities over all that `joint` (users, k, codes) allows, flat, float64."""
        own = scores.masked_fill(joint == -torch.inf, -torch.inf).flatten(1).double()
        found = torch.log_softmax(own / self.temperature, 1)
        return found.nan_to_num(nan=-torch.inf, neginf=-torch.inf)  # of who has nothing to choose


def _by_score(choice: Choice) -> Choice:
    """The same, the best first."""
    scores, order = choice.scores.sort(dim=1, descending=True, stable=True)
    return Choice(choice.rows.gather(1, order), choice.codes.gather(1, order), scores)
