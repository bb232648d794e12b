import numpy as np
import pyarrow as pa
import pytest

from jobs import group_entities
from pipeline.catalog_config import CatalogSettings
from pipeline.config import GroupSettings, RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.schemas import EMBEDDINGS, ITEMS, USERS
from pipeline.store import Store

NUM_USERS, NUM_ITEMS = 30, 40


@pytest.fixture
def config(tmp_path):
    return RunConfig(
        run="test",
        artifacts=tmp_path,
        catalog=CatalogSettings(source="movielens", path=tmp_path),
        groups=GroupSettings(
            min_interactions=3,
            user_groups=2,
            item_groups=3,
            user_attributes=["job"],
            item_attributes=["genre"],
            min_group_size=4,
            representatives=2,
        ),
        language_model={"path": "none"},
        encoder={"path": "none"},
    )


def _embeddings(num_groups, size, num_cold):
    """Vectors along one axis per group; the last `num_cold` rows are cold."""
    rng = np.random.default_rng(size)
    vectors = np.eye(4)[np.arange(size) % num_groups] + 0.05 * rng.normal(size=(size, 4))
    degrees = np.where(np.arange(size) < size - num_cold, 5, 2)
    degrees[-1] = 0
    vectors[-1] = 0
    return degrees.tolist(), vectors.tolist()


@pytest.fixture
def store(config):
    store = Store(config.artifacts / config.run)
    user_ids, item_ids = ([f"{kind}{n}" for n in range(NUM_ITEMS)] for kind in "ui")
    jobs = [[("job", "nurse" if n % 2 else "pilot")] for n in range(NUM_USERS)]
    genres = [[("genre", "Drama" if n < 36 else "War")] for n in range(NUM_ITEMS)]
    users = {"user_id": user_ids[:NUM_USERS], "attributes": jobs}
    items = {"item_id": item_ids, "title": item_ids, "attributes": genres}
    store.plan("users", {}).write(pa.table(users, schema=USERS))
    store.plan("items", {}).write(pa.table(items, schema=ITEMS))
    _write_embeddings(store, list(range(NUM_USERS + NUM_ITEMS)))
    return store


def _write_embeddings(store, order):
    user_degrees, user_vectors = _embeddings(2, NUM_USERS, num_cold=6)
    item_degrees, item_vectors = _embeddings(3, NUM_ITEMS, num_cold=10)
    columns = {
        "kind": ["user"] * NUM_USERS + ["item"] * NUM_ITEMS,
        "entity_id": [f"u{n}" for n in range(NUM_USERS)] + [f"i{n}" for n in range(NUM_ITEMS)],
        "num_interactions": user_degrees + item_degrees,
        "vector": user_vectors + item_vectors,
    }
    table = pa.table(columns, schema=EMBEDDINGS).take(order)
    store.plan("embeddings", {"order": order}, ["users", "items"]).write(table)


def _rows(store, kind):
    return [row for row in store.read("groups").to_pylist() if row["kind"] == kind]


def test_warm_entities_are_clustered_and_cold_ones_grouped_by_attribute(config, store):
    group_entities.run(config, store)
    users, items = _rows(store, "user"), _rows(store, "item")
    assert [row["entity_id"] for row in users] == [f"u{n}" for n in range(NUM_USERS)]
    assert [row["entity_id"] for row in items] == [f"i{n}" for n in range(NUM_ITEMS)]
    warm = {row["group_id"] for row in users[:24]}
    assert warm == {"user/collab-0", "user/collab-1"}
    assert {row["group_id"] for row in users[24:]} == {"user/all"}  # three nurses, three pilots
    assert {row["group_id"] for row in items[30:36]} == {"item/genre=Drama"}
    assert {row["group_id"] for row in items[36:]} == {"item/genre=War"}
    for row in users + items:
        is_warm = row["route"] == "collaborative"
        assert is_warm == ("/collab-" in row["group_id"]) == (row["distance"] > 0)


def test_entities_alike_share_a_group(config, store):
    group_entities.run(config, store)
    groups = [row["group_id"] for row in _rows(store, "item")[:30]]
    assert groups == groups[:3] * 10
    assert len(set(groups)) == 3


def test_each_group_has_its_representatives_and_the_facts_count_them(config, store):
    group_entities.run(config, store)
    rows, facts = _rows(store, "user") + _rows(store, "item"), store.require("groups").facts
    for group, size in facts["sizes"].items():
        members = [row for row in rows if row["group_id"] == group]
        assert len(members) == size
        assert sum(row["representative"] for row in members) == 2
    assert facts["routes"] == {
        "user": {"collaborative": 24, "attribute": 6},
        "item": {"collaborative": 30, "attribute": 10},
    }
    assert facts["representatives"] == {"user": 6, "item": 10}
    assert sum(facts["inertia"].values()) == pytest.approx(
        sum(row["distance"] for row in rows), abs=1e-3
    )


def test_embeddings_are_matched_by_id_not_by_position(config, store):
    group_entities.run(config, store)
    before = store.read("groups")
    order = np.random.default_rng(0).permutation(NUM_USERS + NUM_ITEMS).tolist()
    _write_embeddings(store, order)
    group_entities.run(config, store)
    assert store.read("groups").equals(before)


def test_a_catalog_of_cold_entities_has_attribute_groups_only(config, store):
    cold = config.model_copy(
        update={"groups": config.groups.model_copy(update={"min_interactions": 100})}
    )
    group_entities.run(cold, store)
    assert set(store.read("groups")["route"].to_pylist()) == {"attribute"}
    facts = store.require("groups").facts
    assert set(facts["sizes"]) == {
        *("user/job=nurse", "user/job=pilot", "item/genre=Drama", "item/genre=War")
    }
    assert facts["backend"] == "none"


def test_an_attribute_that_no_entity_has_is_named(config, store):
    typo = config.model_copy(
        update={"groups": config.groups.model_copy(update={"item_attributes": ["gender"]})}
    )
    with pytest.raises(ConfigError, match=r"groups\.item_attributes: no item has gender; .*genre"):
        group_entities.run(typo, store)


def test_embeddings_that_miss_an_entity_are_refused(config, store):
    _write_embeddings(store, list(range(1, NUM_USERS + NUM_ITEMS)))
    with pytest.raises(DataError, match=r"1 users .*u0"):
        group_entities.run(config, store)


def test_an_automatic_number_of_groups_is_what_the_vectors_say(config, store, monkeypatch):
    asked = []

    def choose(vectors, seed):
        asked.append((len(vectors), seed))
        return 3

    monkeypatch.setattr(group_entities, "choose_number_of_groups", choose)
    auto = config.groups.model_copy(update={"user_groups": "auto"})
    group_entities.run(config.model_copy(update={"groups": auto}), store)
    assert asked == [(24, config.seed)]  # the warm users; items have a number of their own
    warm = {row["group_id"] for row in _rows(store, "user") if row["route"] == "collaborative"}
    assert len(warm) == 3
