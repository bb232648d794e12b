import math

import numpy as np
import pytest

from pipeline.generative.list_metrics import interval, ndcg, ranks_of, recall


def test_ranks_recall_and_ndcg_by_hand():
    lists = np.array([[4, 2, 7], [1, 2, 3], [9, -1, -1]])
    ranks = ranks_of(lists, np.array([7, 5, 9]))
    assert ranks.tolist() == [2, -1, 0]
    assert recall(ranks, 3).tolist() == [1, 0, 1]
    assert recall(ranks, 2).tolist() == [0, 0, 1]
    assert ndcg(ranks, 3).tolist() == pytest.approx([1 / math.log2(4), 0, 1])
    assert ndcg(ranks, 2).tolist() == [0, 0, 1]


def test_an_interval_is_over_users_not_events():
    rng = np.random.default_rng(0)
    by_user = rng.normal(size=100)
    many = interval(np.repeat(by_user, 50), np.repeat(np.arange(100), 50), 1)
    one = interval(by_user, np.arange(100), 1)
    assert many == pytest.approx(one)
    assert one.mean == pytest.approx(by_user.mean())
    assert one.high - one.low == pytest.approx(2 * 1.96 * by_user.std() / 10, rel=0.1)


def test_no_event_has_no_figure():
    assert all(math.isnan(one) for one in interval(np.array([]), np.array([]), 0))
