"""What retrievers are trained by, and how well they find held-out items."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

_RECALL_AT = 50


def log_popularity(counts: np.ndarray, is_warm: torch.Tensor) -> torch.Tensor:
    """Logarithm of every warm item's share of the events, one added to each; -inf for all others.

    Added to the scores of a softmax over all items (logQ), it stands for what items get for being
    popular, as in-batch negatives do that come up as often as they are popular. So the cosines
    themselves need not hold it, and a new item is not behind for having no events yet.
    """
    smooth = torch.as_tensor(counts + 1.0, dtype=torch.float32, device=is_warm.device)
    shares = smooth.masked_fill(~is_warm, 0)
    return (shares / shares.sum()).log()


def ranking_loss(
    users: torch.Tensor,
    items: torch.Tensor,
    targets: torch.Tensor,
    prior: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """Cross-entropy of the targets among all items that may be one.

    Args:
        users: unit vectors (n, dim).
        items: unit vectors (items, dim).
        targets: rows of `items`, (n,).
        prior: added to the scores, (items,); -inf for who is no target ever.
        temperature: of cosines.
    """
    return cross_entropy(users @ items.T / temperature + prior, targets)


def contrastive_loss(
    users: torch.Tensor,
    items: torch.Tensor,
    targets: torch.Tensor,
    groups: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """In-batch InfoNCE: each history is to find its own next item among those of all others.

    What is no true negative is left out of the denominator: the same item once more, and items of
    the same user's window. (A score of 0 in its place would still count as exp(0).)

    Args:
        users: unit vectors of histories, (n, dim).
        items: unit vectors of their next items, (n, dim).
        targets: numbers of these items, (n,).
        groups: number of each one's window, (n,).
        temperature: of cosines.
    """
    scores = users @ items.T / temperature
    is_out = (targets == targets[:, None]) | (groups == groups[:, None])
    is_out.fill_diagonal_(False)
    own = torch.arange(len(users), device=users.device)
    return cross_entropy(scores.masked_fill(is_out, -torch.inf), own)


def recall(
    users: torch.Tensor, items: torch.Tensor, targets: torch.Tensor, is_warm: torch.Tensor
) -> float:
    """Share of targets among the 50 nearest warm items: (n, dim), (items, dim), (n,), (items,).

    Of few items it is the nearest quarter: a figure that is always 1 tells no epoch from another.
    """
    nearest = min(_RECALL_AT, max(int(is_warm.sum()) // 4, 1))
    cosines = (users @ items.T).masked_fill(~is_warm, -torch.inf)
    above = cosines > cosines.gather(1, targets[:, None])
    is_found = above.sum(1) < nearest
    return float(is_found.double().mean()) if len(targets) else 0.0
