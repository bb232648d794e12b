import numpy as np
import pyarrow as pa
import pytest

from jobs import assign_semantic_ids
from jobs.assign_semantic_ids import CODEBOOKS, read_items
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.generative.item_trie import ROOT, ItemTrie
from pipeline.generative.semantic_ids import load_tokenizer
from pipeline.generative_config import SemanticIdSettings
from pipeline.schemas import EMBEDDINGS, FEATURES, INTERACTIONS, ITEMS
from pipeline.store import Store

NUM_ITEMS = 60
TRAIN_ONLY, VALID_ONLY, UNSEEN = 57, 58, 59  # the others are of the past


@pytest.fixture
def config(tmp_path):
    return RunConfig(
        run="test",
        artifacts=tmp_path,
        catalog=CatalogSettings(source="movielens", path=tmp_path),
        semantic_ids=SemanticIdSettings(codebook_size=4, levels=2, collisions="bucket"),
        language_model={"path": "none"},
        encoder={"path": "none"},
    )


def with_ids(config, **changes):
    section = config.semantic_ids.model_copy(update=changes)
    return config.model_copy(update={"semantic_ids": section})


def vectors(seed):
    """Three kinds of item in turns."""
    rng = np.random.default_rng(seed)
    kinds = rng.permutation(np.eye(5))[np.arange(NUM_ITEMS) % 3]
    return (kinds + 0.1 * rng.normal(size=(NUM_ITEMS, 5))).astype(np.float32)


def write(store, order, sources=None, dataset="features", content=0, weights="w"):
    """Features and embeddings, their rows in any order."""
    ids = [f"i{n}" for n in range(NUM_ITEMS)]
    own = {"kind": ["item"] * NUM_ITEMS, "entity_id": ids}
    seen = dict.fromkeys(("asof", "latest_source", "source_events"), [0] * NUM_ITEMS)
    text = {**own, "source": sources or ["own"] * NUM_ITEMS, **seen, "prompt_hash": ids}
    features = pa.table({**text, "vector": vectors(content).tolist()}, schema=FEATURES)
    user = pa.table({name: [column[0]] for name, column in features.to_pydict().items()})
    user = user.set_column(0, "kind", pa.array(["user"])).cast(FEATURES)  # of the same id
    features = pa.concat_tables([user, features.take(order)])
    made = {"weights": weights, "max_tokens": 8}
    store.plan(dataset, made, ["items"]).write(features, {"order": order, "sources": sources})
    degrees = [3] * TRAIN_ONLY + [0] * (NUM_ITEMS - TRAIN_ONLY)
    behaviour = vectors(1) * np.array(degrees, bool)[:, None]
    embeddings = {**own, "num_interactions": degrees, "vector": behaviour.tolist()}
    table = pa.table(embeddings, schema=EMBEDDINGS).take(order)
    store.plan("embeddings", {"order": order}).write(table)


@pytest.fixture
def store(config):
    return make_store(config)


def make_store(config, names=range(NUM_ITEMS)):
    store = Store(config.artifacts / config.run)
    ids = [f"i{n}" for n in range(NUM_ITEMS)]
    items = {"item_id": ids, "title": ids, "attributes": [[]] * NUM_ITEMS}
    store.plan("items", {}).write(pa.table(items, schema=ITEMS))
    splits = ["knowledge"] * TRAIN_ONLY + ["train", "valid", "test"]
    rows = {
        "user_id": ["u"] * (NUM_ITEMS + 1),
        "item_id": [*ids[:UNSEEN], "i0", "i1"],
        "rating": [1.0] * (NUM_ITEMS + 1),
        "label": [0] * (NUM_ITEMS + 1),
        "timestamp": list(range(NUM_ITEMS + 1)),
        "split": [*splits[:UNSEEN], "test", "valid"],
    }
    store.plan("interactions", {}).write(pa.table(rows, schema=INTERACTIONS))
    write(store, list(range(NUM_ITEMS)))
    return store


def codes_of(store):
    return np.array(store.read("semantic_ids")["codes"].to_pylist())


def test_every_item_gets_an_id_and_kinds_share_a_prefix(config, store):
    assign_semantic_ids.run(config, store)
    rows = store.read("semantic_ids").to_pylist()
    assert [row["item_id"] for row in rows] == [f"i{n}" for n in range(NUM_ITEMS)]
    assert {len(row["codes"]) for row in rows} == {2}
    # Level 1 has a code more than there are kinds: no code is of two kinds.
    kinds = [{row["codes"][0] for row in rows[kind:NUM_ITEMS:3]} for kind in range(3)]
    assert sum(len(own) for own in kinds) == len(set.union(*kinds)) <= 4


def test_warm_is_who_has_a_row_of_the_past_or_of_train(config, store):
    assign_semantic_ids.run(config, store)
    warm = [row["is_warm"] for row in store.read("semantic_ids").to_pylist()]
    assert warm == [True] * (TRAIN_ONLY + 1) + [False] * 2
    facts = store.require("semantic_ids").facts
    assert (facts["items"], facts["warm"], facts["fitted"]) == (60, 58, 57)
    assert facts["without_collaborative"] == 3
    assert facts["cold_prefix_seen"][0] == 1.0


def test_ids_follow_items_not_the_order_of_rows_and_a_second_run_does_nothing(config, store):
    assign_semantic_ids.run(config, store)
    made = store.require("semantic_ids")
    assign_semantic_ids.run(config, store)
    assert store.require("semantic_ids") == made
    before = codes_of(store)
    write(store, np.random.default_rng(0).permutation(NUM_ITEMS).tolist())
    assign_semantic_ids.run(config, store)
    np.testing.assert_array_equal(codes_of(store), before)
    assert store.require("semantic_ids").content == made.content


@pytest.mark.parametrize(("policy", "length"), [("counter", 3), ("reassign", 2)])
def test_ids_are_unique_and_make_a_trie(config, store, policy, length):
    assign_semantic_ids.run(with_ids(config, collisions=policy, codebook_size=16), store)
    table = store.read("semantic_ids")
    codes = codes_of(store)
    assert codes.shape == (NUM_ITEMS, length)
    assert len(np.unique(codes, axis=0)) == NUM_ITEMS
    trie = ItemTrie(np.arange(NUM_ITEMS), codes, table["is_warm"].to_numpy())
    assert trie.contains(codes).all()
    assert len(trie.items_under(ROOT)) == NUM_ITEMS
    assert (trie.warm_depth(codes)[:VALID_ONLY] == length).all()


def test_the_column_collides_is_about_nearest_codes(config, store):
    assign_semantic_ids.run(with_ids(config, collisions="counter", codebook_size=16), store)
    codes = codes_of(store)[:, :2].tolist()
    expected = [codes.count(own) > 1 for own in codes]
    assert store.read("semantic_ids")["collides"].to_pylist() == expected
    assert store.require("semantic_ids").facts["colliding"] == sum(expected)


def test_stored_codebooks_encode_as_the_run_did(config, store):
    assign_semantic_ids.run(config, store)
    tokenizer = load_tokenizer(store.path("semantic_ids") / CODEBOOKS)
    items = read_items(store)[1]
    codes = tokenizer.quantizer.encode(tokenizer.vectors(items))
    np.testing.assert_array_equal(codes, codes_of(store))


def test_who_has_no_text_of_its_own_is_not_fitted_on_but_has_an_id(config, store):
    write(store, list(range(NUM_ITEMS)), ["default"] * 10 + ["own"] * (NUM_ITEMS - 10))
    assign_semantic_ids.run(config, store)
    facts = store.require("semantic_ids").facts
    assert (facts["fitted"], facts["without_own_text"]) == (47, 10)


def test_without_collaborative_vectors_all_warm_items_are_fitted_on(config, store):
    assign_semantic_ids.run(with_ids(config, collaborative_weight=0.0), store)
    assert store.require("semantic_ids").facts["fitted"] == 58


def test_no_text_at_all_and_missing_items_are_named(config, store):
    write(store, list(range(NUM_ITEMS)), ["none"] * NUM_ITEMS)
    with pytest.raises(DataError, match="no item has a text"):
        assign_semantic_ids.run(config, store)
    write(store, list(range(1, NUM_ITEMS)))
    with pytest.raises(DataError, match=r"features: 1 items .* missing, such as \['i0'\]"):
        assign_semantic_ids.run(config, store)
