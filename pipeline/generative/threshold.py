"""What SpecGR (Ding et al., AAAI'26) accepts: whole items that are likely enough as they stand.

V of an item is the mean log-probability of its codes given the history, over all of them if the
recommender has trained on the id. An unseen item's last codes tell it from others in a way that
nobody could learn, so they are left out: the last one as first published, or all that no warm item
begins with, as in the release of the AAAI paper.
"""

from typing import Literal, NamedTuple

import torch

from pipeline.generative.beams import Beams, TreeScores
from pipeline.generative.retriever_draft import Candidates, Paths
from pipeline.generative.retriever_leaves import Leaves

Unseen = Literal["drop_last", "warm_prefix"]


class Pool(NamedTuple):
    """All that has been drafted for a batch of users so far."""

    leaves: torch.Tensor  # (users, n) int64, rows of `Leaves`
    values: torch.Tensor  # (users, n) float32, V; -inf for nobody
    is_accepted: torch.Tensor  # (users, n) bool

    def plus(self, more: "Pool") -> "Pool":
        """With what another round brought."""
        return Pool(*(torch.cat(pair, 1) for pair in zip(self, more, strict=True)))

    def narrow(self, rows: torch.Tensor) -> "Pool":
        """Of some users only."""
        return Pool(*(own[rows] for own in self))


def empty_pool(users: int, device: torch.device) -> Pool:
    """Nothing has been drafted yet."""
    nothing = torch.zeros(users, 0, dtype=torch.int64, device=device)
    return Pool(nothing, nothing.float(), nothing.bool())


def scored_depths(leaves: Leaves, unseen: Unseen, least: int) -> torch.Tensor:
    """How many codes of each id V is the mean of: (leaves,) int64, at least 1.

    Args:
        leaves: all ids.
        unseen: rule for ids that the recommender has not trained on: all codes but the last, or
            the longest beginning that a warm item has too.
        least: with `warm_prefix`, so many codes count whether a warm item has them or not.
    """
    depth = leaves.warm_depth.clamp(min=min(least, leaves.levels))
    if unseen == "drop_last":
        depth = torch.full_like(depth, leaves.levels - 1)
    return torch.where(leaves.is_warm, leaves.levels, depth).clamp(min=1)


def code_log_probs(
    candidates: Candidates,
    paths: Paths,
    scores: TreeScores,
    steps: torch.Tensor,
    leaves: Leaves,
) -> torch.Tensor:
    """Log-probability of every code of candidates given those before: (users, n, levels).

    Args:
        candidates: drafted items.
        paths: where they stand in the tree.
        scores: what the model says of the tree.
        steps: log-probabilities of the codes of the beams it hangs from, (users, k, codes so far).
        leaves: all ids.
    """
    codes = leaves.codes[candidates.leaves]  # (users, n, levels)
    if not codes.shape[1]:
        return codes.float()
    done = steps.shape[2]
    found = [steps.gather(1, paths.columns[0][..., None].expand(-1, -1, done))]
    for column, log_probs, code in zip(
        paths.columns, scores.log_probs, codes[..., done:].unbind(2), strict=True
    ):
        flat = column * log_probs.shape[2] + code
        found.append(log_probs.flatten(1).gather(1, flat)[..., None])
    return torch.cat(found, 2)


def accept(
    candidates: Candidates, log_probs: torch.Tensor, depths: torch.Tensor, threshold: float
) -> Pool:
    """V of candidates, and whether it is above the threshold.

    Args:
        candidates: drafted items.
        log_probs: of their codes, (users, n, levels).
        depths: codes that count, see `scored_depths`.
        threshold: gamma of the paper, in nats a code.
    """
    leaves, is_real = candidates
    depth = depths[leaves]
    levels = torch.arange(log_probs.shape[2], device=leaves.device)
    counted = log_probs.masked_fill(levels >= depth[..., None], 0)
    values = (counted.sum(2) / depth).masked_fill(~is_real, -torch.inf)
    return Pool(leaves, values, is_real & (values > threshold))


class Ranked(NamedTuple):
    """A list for each user, the best first."""

    leaves: torch.Tensor  # (users, k) int64, rows of `Leaves`
    values: torch.Tensor  # (users, k) float32, -inf for nobody
    is_accepted: torch.Tensor  # (users, k) bool, by the threshold, and not filled in


def final_lists(
    pool: Pool, beams: Beams, leaves: Leaves, most: int, only_accepted: bool = False
) -> Ranked:
    """The accepted by V; then, as long as there is room, what was rejected and complete beams.

    These are merged by V and score per code. An item that was drafted and stands in a beam as well
    counts as drafted. If more than `most` are accepted, those of the highest V stay, as in the
    first release; the later one keeps whatever was drafted first.

    Args:
        pool: drafted items.
        beams: of all users; what is no complete id of an item is passed over.
        leaves: all ids.
        most: items of a list.
        only_accepted: rejected items are left out, and accepted ones are merged with the beams.
    """
    values = pool.values.masked_fill(~pool.is_accepted, -torch.inf) if only_accepted else None
    values = pool.values if values is None else values
    own = beams.nodes - leaves.first
    score = beams.scores / leaves.levels
    is_drafted = (own[..., None] == pool.leaves[:, None]) & (values > -torch.inf)[:, None]
    score = score.masked_fill((own < 0) | is_drafted.any(2), -torch.inf)
    every = Pool(
        torch.cat([pool.leaves, own.clamp(min=0)], 1),
        torch.cat([values, score], 1),
        torch.cat([pool.is_accepted, torch.zeros_like(own, dtype=torch.bool)], 1),
    )
    order = every.values.argsort(dim=1, descending=True, stable=True)
    if not only_accepted:
        rank = every.is_accepted.gather(1, order).int()
        order = order.gather(1, rank.argsort(dim=1, descending=True, stable=True))
    order = order[:, :most]
    ranked = Ranked(*(part.gather(1, order) for part in every))
    return _padded(
        ranked._replace(is_accepted=ranked.is_accepted & (ranked.values > -torch.inf)), most
    )


def _padded(ranked: Ranked, most: int) -> Ranked:
    room = most - ranked.leaves.shape[1]
    pad = torch.nn.functional.pad
    return Ranked(
        pad(ranked.leaves, (0, room)),
        pad(ranked.values, (0, room), value=-torch.inf),
        pad(ranked.is_accepted, (0, room)),
    )
