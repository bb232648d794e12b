import math

import numpy as np
import pytest
import torch

from retrieval_pools import ranking
from retrieval_pools.edges import Edges, unique_edges
from retrieval_pools.ranking import (
    embedding_scorer,
    evaluate,
    popularity_scorer,
    random_scorer,
    ranking_task,
)


def _edges(pairs):
    users, items = np.array(pairs, np.int64).reshape(-1, 2).T
    return Edges(users, items)


def _table_scorer(scores):
    return lambda users: torch.as_tensor(scores, dtype=torch.float32)[torch.as_tensor(users)]


def _random_case(seed, num_users=30, num_items=40):
    rng = np.random.default_rng(seed)
    pairs = np.stack([rng.integers(0, num_users, 300), rng.integers(0, num_items - 5, 300)], 1)
    edges = unique_edges(_edges(pairs), num_items)
    is_train = rng.random(len(edges)) < 0.6
    scores = rng.permutation(num_users * num_items).reshape(num_users, num_items)
    return edges.select(is_train), edges.select(~is_train), scores


def _by_hand(train, held_out, scores, k):
    """Recall and NDCG from their definitions, one user at a time."""
    warm = set(train.items.tolist())
    recalls, ndcgs = [], []
    for user in range(len(scores)):
        own = set(train.items[train.users == user].tolist())
        wanted = set(held_out.items[held_out.users == user].tolist()) & warm
        if not wanted:
            continue
        ranked = sorted(warm - own, key=lambda item: -scores[user][item])[:k]
        gains = [item in wanted for item in ranked]
        dcg = sum(gain / math.log2(place + 2) for place, gain in enumerate(gains))
        ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(wanted))))
        recalls.append(sum(gains) / len(wanted))
        ndcgs.append(dcg / ideal)
    return np.mean(recalls), np.mean(ndcgs)


def test_recall_and_ndcg_have_their_golden_values():
    # user 0: ranked 3, 1, 2 (0 is own); wanted 1 and 2. user 1: ranked 0, 2, 3; wanted 3
    train = _edges([(0, 0), (1, 1), (2, 2), (2, 3)])
    held_out = _edges([(0, 1), (0, 2), (1, 3)])
    scores = [[9, 2, 1, 3], [4, 9, 3, 2], [0, 0, 0, 0]]
    metrics = evaluate(ranking_task(train, held_out, 4), _table_scorer(scores), k=2)
    assert metrics.recall == pytest.approx((1 / 2 + 0) / 2)
    dcg, ideal = 1 / math.log2(3), 1 + 1 / math.log2(3)
    assert metrics.ndcg == pytest.approx((dcg / ideal + 0) / 2)


@pytest.mark.parametrize("k", [1, 5, 20, 100])
@pytest.mark.parametrize("users_per_batch", [1, 7, 1024])
def test_metrics_agree_with_their_definitions_in_batches_of_any_size(
    k, users_per_batch, monkeypatch
):
    monkeypatch.setattr(ranking, "_MAX_USERS", users_per_batch)
    train, held_out, scores = _random_case(seed=k)
    metrics = evaluate(ranking_task(train, held_out, 40), _table_scorer(scores), k)
    assert (metrics.recall, metrics.ndcg) == pytest.approx(_by_hand(train, held_out, scores, k))


def test_a_batch_never_holds_more_scores_than_allowed(monkeypatch):
    monkeypatch.setattr(ranking, "_MAX_SCORES", 100)
    train, held_out, scores = _random_case(seed=0)
    sizes = []

    def score(users):
        sizes.append(len(users))
        return _table_scorer(scores)(users)

    task = ranking_task(train, held_out, 40)
    evaluate(task, score)
    assert max(sizes) == 2
    assert sum(sizes) == len(task.users)


def test_of_many_users_an_even_share_is_judged(monkeypatch):
    monkeypatch.setattr(ranking, "_MAX_USERS", 2)
    monkeypatch.setattr(ranking, "_MAX_JUDGED", 6)
    train, held_out, scores = _random_case(seed=0)
    task = ranking_task(train, held_out, 40)
    judged = []

    def score(users):
        judged.extend(users.tolist())
        return _table_scorer(scores)(users)

    metrics = evaluate(task, score)
    assert len(judged) == 6 < len(task.users)
    assert all(np.isin(judged, third).any() for third in np.array_split(task.users, 3))
    chosen = np.isin(held_out.users, judged)
    by_hand = _by_hand(train, held_out.select(chosen), scores, 20)
    assert (metrics.recall, metrics.ndcg) == pytest.approx(by_hand)


def test_cold_items_and_training_pairs_are_neither_sought_nor_ranked():
    train = _edges([(0, 0), (1, 1)])
    held_out = _edges([(0, 0), (0, 1), (0, 2)])  # the first is in training, item 2 is cold
    task = ranking_task(train, held_out, 3)
    assert (task.relevant.users.tolist(), task.relevant.items.tolist()) == ([0], [1])
    assert evaluate(task, _table_scorer([[9, 1, 9], [0, 0, 0]]), k=1).recall == 1.0


def test_nothing_to_find_gives_zero():
    task = ranking_task(_edges([(0, 0)]), _edges([]), 2)
    assert evaluate(task, random_scorer(2, seed=0)).recall == 0.0


def test_baselines_rank_by_degree_and_by_chance():
    train = _edges([(0, 1), (1, 1), (1, 2)])
    assert popularity_scorer(train, 3)(np.array([0, 5])).tolist() == [[0, 2, 1]] * 2
    first, again = (random_scorer(3, seed=1)(np.arange(4)) for _ in range(2))
    assert torch.equal(first, again)


def test_embeddings_score_by_inner_product():
    users, items = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[3.0, 1.0], [0.0, 2.0]])
    assert embedding_scorer(users, items)(np.array([1, 0])).tolist() == [[1.0, 2.0], [5.0, 4.0]]
