import logging

import numpy as np
import pyarrow as pa
import pytest

from jobs import train_embeddings
from pipeline.catalog_config import CatalogSettings
from pipeline.config import EmbeddingSettings, RunConfig
from pipeline.errors import DataError
from pipeline.schemas import INTERACTIONS, ITEMS, USERS
from pipeline.store import Store

NUM_USERS, NUM_ITEMS = 24, 40
QUICK = {"dim": 8, "layers": 2, "max_epochs": 6, "evaluate_every": 2}


@pytest.fixture
def config(tmp_path):
    return RunConfig(
        run="test",
        artifacts=tmp_path,
        catalog=CatalogSettings(source="movielens", path=tmp_path),
        embeddings=EmbeddingSettings(**QUICK),
        language_model={"path": "none"},
        encoder={"path": "none"},
    )


def _interactions():
    """Three likes of every four, oldest first; the last third of time is not the past."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(NUM_USERS - 1):  # the last user never comes
        liked = rng.permutation((NUM_ITEMS - 1) // 2)[:15] * 2 + user % 2
        for time, item in enumerate(liked):
            split = "knowledge" if time < 10 else "train"
            rows.append((f"u{user}", f"i{item}", 5.0, int(time % 4 != 3), time, split))
    rows.sort(key=lambda row: (row[4], row[0], row[1]))
    return rows


def _store(config, rows):
    store = Store(config.artifacts / config.run)
    no_attributes = [[] for _ in range(max(NUM_USERS, NUM_ITEMS))]
    user_ids, item_ids = ([f"{kind}{n}" for n in range(NUM_ITEMS)] for kind in "ui")
    users = {"user_id": user_ids[:NUM_USERS], "attributes": no_attributes[:NUM_USERS]}
    items = {"item_id": item_ids, "title": item_ids, "attributes": no_attributes}
    interactions = dict(zip(INTERACTIONS.names, zip(*rows, strict=True), strict=True))
    store.plan("users", {}).write(pa.table(users, schema=USERS))
    store.plan("items", {}).write(pa.table(items, schema=ITEMS))
    table = pa.table({name: list(column) for name, column in interactions.items()}, INTERACTIONS)
    store.plan("interactions", {"rows": str(rows)}).write(table)
    return store


def _past_likes(rows):
    return [(row[0], row[1]) for row in rows if row[5] == "knowledge" and row[3] == 1]


def test_each_entity_gets_a_row_in_the_order_of_the_catalog(config):
    store = _store(config, _interactions())
    train_embeddings.run(config, store)
    table = store.read("embeddings")
    assert table["kind"].to_pylist() == ["user"] * NUM_USERS + ["item"] * NUM_ITEMS
    expected = [f"u{n}" for n in range(NUM_USERS)] + [f"i{n}" for n in range(NUM_ITEMS)]
    assert table["entity_id"].to_pylist() == expected
    assert table.schema.field("vector").type == pa.list_(pa.float32(), QUICK["dim"])
    vectors, degrees = np.array(table["vector"].to_pylist()), np.array(table["num_interactions"])
    assert np.array_equal(vectors.any(axis=1), degrees > 0)
    assert degrees[NUM_USERS - 1] == 0


def test_only_liked_interactions_of_the_past_are_edges(config):
    rows = _interactions()
    store = _store(config, rows)
    train_embeddings.run(config, store)
    table, facts = store.read("embeddings"), store.require("embeddings").facts
    likes = _past_likes(rows)  # 8 of each user's 10 past interactions
    held_out = (NUM_USERS - 1) * 1
    assert facts["train_edges"] == len(likes) - held_out
    assert facts["validation_edges"] + facts["cold_validation_edges"] == held_out
    degrees = np.array(table["num_interactions"])
    assert degrees[:NUM_USERS].sum() == degrees[NUM_USERS:].sum() == facts["train_edges"]
    assert facts["isolated_users"] == 1
    for name in ("recall@20", "ndcg@20", "popularity_recall@20", "random_ndcg@20"):
        assert 0 <= facts[name] <= 1


def test_what_comes_after_the_past_or_was_disliked_changes_no_vector(config):
    rows = _interactions()
    store = _store(config, rows)
    train_embeddings.run(config, store)
    before = store.read("embeddings")
    changed = [
        row if row[5] == "knowledge" and row[3] == 1 else (*row[:1], "i39", *row[2:])
        for row in rows
    ]
    store = _store(config, changed)
    train_embeddings.run(config, store)
    assert store.read("embeddings").equals(before)


def test_ties_in_time_are_broken_by_item_and_not_by_the_order_of_rows(config):
    rows = [(*row[:4], row[4] // 5, row[5]) for row in _interactions()]
    store = _store(config, rows)
    train_embeddings.run(config, store)
    before = store.read("embeddings")
    store = _store(config, rows[::-1])
    train_embeddings.run(config, store)
    assert store.read("embeddings").equals(before)


def test_a_second_run_does_nothing(config, caplog):
    store = _store(config, _interactions())
    train_embeddings.run(config, store)
    created = store.require("embeddings")
    with caplog.at_level(logging.INFO, "jobs.train_embeddings"):
        train_embeddings.run(config, store)
    assert "up to date, 64 rows" in caplog.text
    assert store.require("embeddings") == created


def test_a_catalog_without_likes_gives_zero_vectors(config):
    rows = [(*row[:3], 0, *row[4:]) for row in _interactions()]
    store = _store(config, rows)
    train_embeddings.run(config, store)
    table, facts = store.read("embeddings"), store.require("embeddings").facts
    assert not np.array(table["vector"].to_pylist()).any()
    assert (facts["best_epoch"], facts["isolated_items"]) == (0, NUM_ITEMS)


def test_an_unknown_id_is_named(config):
    store = _store(config, [("stranger", "i1", 5.0, 1, 0, "knowledge"), *_interactions()])
    with pytest.raises(DataError, match=r"interactions\.user_id: 1 ids .*stranger"):
        train_embeddings.run(config, store)


def test_a_result_too_good_to_be_true_raises_an_alarm(config, caplog, monkeypatch):
    rows = [(user, f"i{int(item[1:]) % 20}", *rest) for user, item, *rest in _interactions()]
    store = _store(config, rows)  # 20 items: a top 20 finds all, and so does chance
    with caplog.at_level(logging.WARNING, "jobs.train_embeddings"):
        train_embeddings.run(config, store)
        assert "too good to be true" not in caplog.text
        by_chance = train_embeddings.RankingMetrics(0.3, 0.1)
        monkeypatch.setattr(train_embeddings, "evaluate", lambda task, scorer: by_chance)
        other = config.model_copy(update={"run": "other"})
        train_embeddings.run(other, _store(other, rows))
    assert "too good to be true" in caplog.text
