"""Sampled beam search, drafted and verified without a change to any list: common random numbers.

K draws without replacement from p are the K largest of log p + Gumbel noise (Kool et al., ICML'19).
Here the noise of a continuation follows from the user's seed and its codes alone. So beams that are
drawn are the best by a score that is settled beforehand, and a drafter that has the seed ranks by
its own log q + the same noise. Then all K have to be among the N drafted, as in strict
verification, and lists are those of sampled beam search with that seed, whatever is drafted.

Relaxed verification (`sampling.py`) tosses its own coins over what another noise drafted; its lists
follow p for K = N = 1 only.
"""

import torch

from pipeline.generative.beams import Choice, chosen_by
from pipeline.generative.noise import gumbel, keys_of

_NOISE = 1  # purpose that these numbers are drawn for


class CommonNoise:
    """K continuations drawn without replacement, the same ones whatever has been drafted."""

    needs_q = False

    def __init__(self, temperature: float = 1.0) -> None:
        """`temperature` of p and q."""
        self.temperature = temperature

    def draft_order(self, joint: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Sums over the temperature with noise, (users, n, codes) float64; see `Rule`.

        p is the softmax over all continuations of a user. What normalises it is the same for all of
        them and changes no order, so it is left out.
        """
        return joint.double() / self.temperature + common_noise(keys, joint.shape[2])

    def choose(
        self,
        joint: torch.Tensor,
        column: torch.Tensor,
        log_q: torch.Tensor | None,
        width: int,
        keys: torch.Tensor,
    ) -> Choice:
        """See `Rule`."""
        order = self.draft_order(joint, keys)
        return sorted_choice(chosen_by(order.flatten(1), joint, width))


def common_noise(keys: torch.Tensor, num_codes: int) -> torch.Tensor:
    """Gumbel noise of all continuations of paths: keys (users, n) -> (users, n, codes) float64."""
    return gumbel(keys_of(keys, _NOISE), num_codes)


def sorted_choice(choice: Choice) -> Choice:
    """The same, the most probable first."""
    scores, order = choice.scores.sort(dim=1, descending=True, stable=True)
    return Choice(choice.rows.gather(1, order), choice.codes.gather(1, order), scores)
