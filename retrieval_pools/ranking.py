"""Recall@k and NDCG@k of any scorer, against all items, in batches of users.

Conventions (they move the numbers, so they are fixed here): every item with a training edge is a
candidate, except those that the user has in training; a held-out edge to an item without a
training edge is left out, as no collaborative scorer can find it; users without any held-out edge
are skipped; the denominator of recall is the number of held-out items, the ideal DCG is cut at k.
Of more than 16,384 users as many are judged, in batches spread evenly over all of them: the score
of every user for every item would be quadratic in the catalog.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from retrieval_pools.edges import Edges, unique_edges

Scorer = Callable[[np.ndarray], torch.Tensor]  # users (n,) -> scores (n, num_items)

_MAX_SCORES = 2**25  # per batch: 128 MB of float32, whatever the size of the catalog
_MAX_USERS = 1024  # per batch
_MAX_JUDGED = 2**14  # users in all batches


@dataclass(frozen=True)
class RankingTask:
    """What has to be found, for users that have something to find."""

    users: np.ndarray  # (n,) int64, ascending
    seen: Edges  # training edges of these users; `users` holds rows 0..n-1, ascending
    relevant: Edges  # edges to be found, in the same form
    cold_items: np.ndarray  # (c,) int64, items without a training edge
    num_items: int


@dataclass(frozen=True)
class RankingMetrics:
    """Means over the judged users of a task; 0 where there are none."""

    recall: float
    ndcg: float


def ranking_task(train: Edges, held_out: Edges, num_items: int) -> RankingTask:
    """Prepare the search for `held_out`; pairs that are in `train` too are left out."""
    held_out = unique_edges(held_out, num_items)
    degrees = np.bincount(train.items, minlength=num_items)
    is_new = ~np.isin(held_out.keys(num_items), train.keys(num_items))
    relevant = held_out.select(is_new & (degrees[held_out.items] > 0))
    users = np.unique(relevant.users)
    seen = train.select(np.isin(train.users, users))
    return RankingTask(
        users,
        _by_row(seen, users),
        _by_row(relevant, users),
        np.flatnonzero(degrees == 0),
        num_items,
    )


@torch.no_grad()
def evaluate(task: RankingTask, score: Scorer, k: int = 20) -> RankingMetrics:
    """Recall@k and NDCG@k of `score`; at most `_MAX_SCORES` scores exist at a time."""
    batch = max(1, min(_MAX_USERS, _MAX_SCORES // task.num_items))
    sums, judged = np.zeros(2), 0
    for start in _spread(range(0, len(task.users), batch), max(1, _MAX_JUDGED // batch)):
        stop = min(start + batch, len(task.users))
        judged += stop - start
        scores = score(task.users[start:stop])  # (batch, items)
        seen, relevant = _slice(task.seen, start, stop), _slice(task.relevant, start, stop)
        scores = scores.index_fill(
            1, torch.as_tensor(task.cold_items).to(scores.device), -torch.inf
        )
        scores[_as_index(seen, scores.device)] = -torch.inf
        is_relevant = torch.zeros_like(scores, dtype=torch.bool)
        is_relevant[_as_index(relevant, scores.device)] = True
        sums += _recall_and_ndcg(scores, is_relevant, k)
    recall, ndcg = sums / max(1, judged)
    return RankingMetrics(float(recall), float(ndcg))


def embedding_scorer(user_vectors: torch.Tensor, item_vectors: torch.Tensor) -> Scorer:
    """Inner products of user (users, d) and item (items, d) vectors."""

    def score(users: np.ndarray) -> torch.Tensor:
        return user_vectors[torch.as_tensor(users).to(user_vectors.device)] @ item_vectors.T

    return score


def popularity_scorer(train: Edges, num_items: int) -> Scorer:
    """The same order for everybody: number of training edges."""
    degrees = torch.as_tensor(np.bincount(train.items, minlength=num_items), dtype=torch.float32)
    return lambda users: degrees.expand(len(users), num_items)


def random_scorer(num_items: int, seed: int) -> Scorer:
    """Chance."""
    generator = torch.Generator().manual_seed(seed)
    return lambda users: torch.rand(len(users), num_items, generator=generator)


def _spread(starts: range, most: int) -> Iterable[int]:
    """All of them or, if they are more than `most`, the middles of as many equal stretches."""
    if len(starts) <= most:
        return starts
    return (starts[(2 * number + 1) * len(starts) // (2 * most)] for number in range(most))


def _recall_and_ndcg(scores: torch.Tensor, is_relevant: torch.Tensor, k: int) -> np.ndarray:
    """Sums over users: scores (users, items) float, is_relevant (users, items) bool -> (2,)."""
    k = min(k, scores.shape[1])
    top = scores.topk(k, dim=1).indices  # (users, k)
    hits = is_relevant.gather(1, top).double()  # (users, k)
    wanted = is_relevant.sum(1)  # (users,)
    discounts = 1 / torch.log2(torch.arange(2, k + 2, dtype=torch.float64, device=scores.device))
    ideal = discounts.cumsum(0)[wanted.clamp(max=k) - 1]  # (users,)
    recall = (hits.sum(1) / wanted).sum()
    ndcg = (hits @ discounts / ideal).sum()
    return np.array([recall.item(), ndcg.item()])


def _by_row(edges: Edges, users: np.ndarray) -> Edges:
    """The same edges with positions in `users` for user numbers, sorted by position."""
    rows = np.searchsorted(users, edges.users)
    order = np.argsort(rows, kind="stable")
    return Edges(rows[order], edges.items[order])


def _slice(edges: Edges, start: int, stop: int) -> Edges:
    """Edges of the rows from `start` to `stop`, counted from `start`."""
    low, high = np.searchsorted(edges.users, [start, stop])
    return Edges(edges.users[low:high] - start, edges.items[low:high])


def _as_index(edges: Edges, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(edges.users).to(device), torch.as_tensor(edges.items).to(device)
