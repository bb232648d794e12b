"""A made-up catalog: repeatable, of the size asked for, and with something to find in it."""

from collections import Counter

import numpy as np
import pytest

from pipeline.config import EmbeddingSettings
from retrieval_pools.edges import hold_out_latest
from retrieval_pools.lightgcn import train_lightgcn
from retrieval_pools.ranking import evaluate, popularity_scorer, ranking_task
from retrieval_pools.synthetic import (
    VOCABULARY,
    SyntheticTexts,
    synthetic_interactions,
    synthetic_vectors,
)

LENGTH = 128


@pytest.fixture(scope="module")
def texts() -> SyntheticTexts:
    return SyntheticTexts(seed=3, length=LENGTH)


def ngrams(rows: np.ndarray, size: int) -> set[tuple[int, ...]]:
    return {
        tuple(row[start : start + size]) for row in rows.tolist() for start in range(LENGTH - size)
    }


def known_share(of: np.ndarray, to: np.ndarray, size: int = 4) -> float:
    """Share of the n-grams of some texts that others hold as well."""
    own = ngrams(of, size)
    return len(own & ngrams(to, size)) / len(own)


def test_texts_are_token_ids_of_the_size_asked_for(texts):
    rows = texts.of_group(0, 50)
    assert rows.shape == (50, LENGTH)
    assert rows.dtype == np.int32
    assert rows.min() >= 0
    assert rows.max() < VOCABULARY
    assert texts.of_group(0, 0).shape == (0, LENGTH)
    assert SyntheticTexts(seed=0, length=3).of_group(1, 4).shape == (4, 3)


def test_a_group_has_the_same_texts_whatever_else_is_made(texts):
    again = SyntheticTexts(seed=3, length=LENGTH)
    again.of_group(1, 5)
    assert np.array_equal(again.of_group(7, 20), texts.of_group(7, 20))
    assert not np.array_equal(texts.of_group(7, 20), texts.of_group(8, 20))
    assert not np.array_equal(texts.of_group(7, 20), texts.of_group(7, 20, part=1))
    assert not np.array_equal(SyntheticTexts(4, LENGTH).of_group(7, 20), texts.of_group(7, 20))


def test_texts_share_wording_with_their_group_more_than_with_others(texts):
    own, kin, others = (
        texts.of_group(0, 100),
        texts.of_group(0, 100, part=1),
        texts.of_group(1, 100),
    )
    assert known_share(own, kin) > 1.5 * known_share(own, others) > 0.1
    assert known_share(own, kin) < 0.9  # single words make news


def test_words_follow_zipfs_law(texts):
    counts = np.array([count for _, count in Counter(texts.of_group(0, 500).ravel()).most_common()])
    assert 0.002 < counts[0] / counts.sum() < 0.2
    assert counts[99] > 5 * counts[999]
    assert len(counts) > 2000


def test_interactions_are_as_many_distinct_pairs_as_asked_for():
    made = synthetic_interactions(20_000, seed=1)
    again, other = (synthetic_interactions(20_000, seed=seed) for seed in (1, 2))
    assert len(made.edges) == len(np.unique(made.edges.keys(made.num_items))) == 20_000
    assert made.edges.users.max() < made.num_users
    assert made.edges.items.max() < made.num_items
    assert np.array_equal(made.edges.users, again.edges.users)
    assert not np.array_equal(made.edges.users, other.edges.users)


def test_low_numbers_are_active_users_and_popular_items():
    edges = synthetic_interactions(50_000, seed=1).edges
    for side in (edges.users, edges.items):
        degrees = np.bincount(side)
        tenth = len(degrees) // 10
        assert degrees[:tenth].sum() > 2.5 * degrees[-5 * tenth :].sum() / 5


def test_more_edges_than_the_catalog_can_hold_are_refused(monkeypatch):
    monkeypatch.setattr("retrieval_pools.synthetic._FEWEST_USERS", 2)
    monkeypatch.setattr("retrieval_pools.synthetic._FEWEST_ITEMS", 16)
    with pytest.raises(ValueError, match="more than half of all pairs"):
        synthetic_interactions(30, seed=0)


def test_lightgcn_finds_the_clusters():
    made = synthetic_interactions(12_000, seed=1)
    train, validation = hold_out_latest(made.edges, 0.2)
    settings = EmbeddingSettings(dim=16, layers=2, max_epochs=30, evaluate_every=10)
    found = train_lightgcn(train, validation, made.num_users, made.num_items, settings, seed=1)
    task = ranking_task(train, validation, made.num_items)
    popular = evaluate(task, popularity_scorer(train, made.num_items))
    assert found.best is not None
    assert found.best.metrics.recall > 1.5 * popular.recall


def test_vectors_stand_about_centres():
    vectors = synthetic_vectors(400, 8, num_clusters=3, seed=5)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, synthetic_vectors(400, 8, num_clusters=3, seed=5))
    gaps = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    assert np.median(np.sort(gaps, axis=1)[:, 1]) < 0.5 * np.median(gaps)
