"""How far a drafter is from the model it guesses (AtSpeed, Lin et al., ICLR'25).

All divergences are of one place each, over the codes of its level: log-probabilities (..., codes)
of the drafter q and of the model p in, (...) out. They are of probabilities as they are: the
authors divide logits by 0.001 first, and the gradient vanishes.
"""

from collections.abc import Callable

import torch

Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_TOP_K = 20  # codes that AtSpeed-S compares


def forward_kl(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """KL(p || q): all that the model may choose is covered."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def reverse_kl(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """KL(q || p): nothing is drafted that the model would not choose."""
    return (log_q.exp() * (log_q - log_p)).sum(-1)


def atspeed_s(log_q: torch.Tensor, log_p: torch.Tensor, top_k: int = _TOP_K) -> torch.Tensor:
    """Strict alignment: KL(q || p) over the drafter's `top_k` codes, and p_K times q's entropy.

    Both are normalised over those codes. p_K is the probability of the model's own K-th code, what
    a code must exceed to be kept; the authors' code takes that of the drafter's K-th.
    """
    count = min(top_k, log_q.shape[-1])
    own, codes = log_q.topk(count, dim=-1)
    log_q_k = torch.log_softmax(own, -1)
    log_p_k = torch.log_softmax(log_p.gather(-1, codes), -1)
    entropy = -(log_q_k.exp() * log_q_k).sum(-1)
    threshold = log_p.topk(count, dim=-1).values[..., -1].exp()
    return reverse_kl(log_q_k, log_p_k) + threshold * entropy


def total_variation(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """Relaxed alignment (AtSpeed-R): the share of one draft that sampling would refuse."""
    return 0.5 * (log_q.exp() - log_p.exp()).abs().sum(-1)


DIVERGENCES: dict[str, Divergence] = {
    "atspeed_s": atspeed_s,
    "atspeed_r": total_variation,
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
}


def mean_over_beams(
    divergence: Divergence,
    log_q: list[torch.Tensor],
    log_p: list[torch.Tensor],
    is_real: torch.Tensor,
) -> torch.Tensor:
    """Mean over the places of all beams.

    Args:
        divergence: of one place.
        log_q: of the drafter, first the end of the history, (n, 1, codes), then level by level of
            the codes after each beam's, (n, beams, codes).
        log_p: the same of the model.
        is_real: beams that are there, (n, beams) bool.
    """
    found = [divergence(q, p) for q, p in zip(log_q, log_p, strict=True)]
    weights = is_real / is_real.sum().clamp(min=1)  # the end of a history counts as every beam's
    return torch.stack([(own * weights).sum() for own in found]).mean()


def combined(recommendation: torch.Tensor, alignment: torch.Tensor, alpha: float) -> torch.Tensor:
    """(1 - alpha) of the loss of what was liked, alpha of the distance to the model."""
    return (1 - alpha) * recommendation + alpha * alignment
