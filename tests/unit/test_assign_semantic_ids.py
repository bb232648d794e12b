import numpy as np
import pyarrow as pa
import pytest

from features.ctr import controls
from jobs import assign_semantic_ids, encode_controls
from jobs.item_contents import read_items
from jobs.semantic_id_files import CODEBOOKS, read_ids
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
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


def content_of(content):
    return vectors(content) if isinstance(content, int) else content


def write(store, order, sources=None, dataset="features", content=0, weights="w"):
    """Features and embeddings, their rows in any order."""
    ids = [f"i{n}" for n in range(NUM_ITEMS)]
    own = {"kind": ["item"] * NUM_ITEMS, "entity_id": ids}
    seen = dict.fromkeys(("asof", "latest_source", "source_events"), [0] * NUM_ITEMS)
    text = {**own, "source": sources or ["own"] * NUM_ITEMS, **seen, "prompt_hash": ids}
    features = pa.table({**text, "vector": content_of(content).tolist()}, schema=FEATURES)
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


def make_store(config, listed=range(NUM_ITEMS)):
    """A run whose catalog lists some of the items."""
    store = Store(config.artifacts / config.run)
    ids = [f"i{n}" for n in range(NUM_ITEMS)]
    items = {"item_id": [ids[n] for n in listed]}
    items |= {"title": items["item_id"], "attributes": [[]] * len(listed)}
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


def until_knowledge(config):
    section = config.recommender.model_copy(update={"until": "knowledge"})
    return config.model_copy(update={"recommender": section})


def test_what_no_recommender_trains_on_is_cold_and_not_fitted_on(config, store):
    config = with_ids(config, collaborative_weight=0.0)  # nobody lacks a vector
    assign_semantic_ids.run(config, store)
    made = store.require("semantic_ids")
    assert set(made.settings) == {"semantic_ids", "seed"}  # as before there was a choice
    assert (made.facts["warm"], made.facts["fitted"]) == (58, 58)
    assign_semantic_ids.run(until_knowledge(config), store)
    warm = [row["is_warm"] for row in store.read("semantic_ids").to_pylist()]
    assert warm == [True] * TRAIN_ONLY + [False] * 3
    found = store.require("semantic_ids")
    assert (found.facts["warm"], found.facts["fitted"]) == (57, 57)
    assert found.fingerprint != made.fingerprint


def test_ids_of_a_run_that_knew_more_are_refused(config):
    assign_semantic_ids.run(config, make_store(config))
    later, night = a_night(config, "night", range(50))
    with pytest.raises(ConfigError, match=r"other settings than these: recommender\.until 'train'"):
        assign_semantic_ids.run(until_knowledge(later), night)
    first = until_knowledge(config)
    assign_semantic_ids.run(first, Store(config.artifacts / "test"))
    assign_semantic_ids.run(until_knowledge(later), night)
    with pytest.raises(ConfigError, match=r"recommender\.until 'knowledge'"):
        assign_semantic_ids.run(later, night)
    next_one, third = a_night(until_knowledge(config), "next", range(50), of="night")
    assign_semantic_ids.run(next_one, third)
    assert third.require("semantic_ids").settings["until"] == "knowledge"


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
    items = read_items(store, "features", "train")[1]
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


def a_night(config, run, listed, of="test", **features):
    """A later run that goes on from another one; with the catalog, the features change too."""
    later = with_ids(config.model_copy(update={"run": run}), from_run=of)
    store = make_store(later, listed)
    write(store, list(range(NUM_ITEMS)), **{"content": 7, **features})
    return later, store


def ids_of(store):
    table = store.read("semantic_ids")
    return dict(zip(table["item_id"].to_pylist(), table["codes"].to_pylist(), strict=True))


def test_nights_keep_ids_and_give_none_of_them_to_another_item(config, caplog):
    config = with_ids(config, collisions="counter", codebook_size=16)
    first = make_store(config, range(40))
    assign_semantic_ids.run(config, first)
    caplog.set_level("INFO")
    monday, second = a_night(config, "monday", [*range(5, 40), 44, 43, 42, 41])
    assign_semantic_ids.run(monday, second)
    before, after = ids_of(first), ids_of(second)
    assert list(after) == [f"i{n}" for n in (*range(5, 40), 44, 43, 42, 41)]
    assert all(after[f"i{n}"] == before[f"i{n}"] for n in range(5, 40))
    facts = second.require("semantic_ids").facts
    assert [facts[key] for key in ("kept", "new", "left", "reserved")] == [35, 4, 5, 5]
    assert "35 items keep their ids, 4 are new, 5 have left" in caplog.text
    # On Tuesday one is back, and twins of those who left would take their counters if they could.
    tuesday, third = a_night(config, "tuesday", [*range(3, 40), *range(45, 60)], of="monday")
    assign_semantic_ids.run(tuesday, third)
    last = ids_of(third)
    assert all(last[f"i{n}"] == before[f"i{n}"] for n in range(3, 40))
    everybody = {**before, **after, **last}
    assert len({tuple(codes) for codes in everybody.values()}) == len(everybody) == 59
    given = read_ids(third)
    assert set(given.item_ids.to_pylist()) == set(everybody)
    assert given.is_listed.sum() == len(last)
    warm = {row["item_id"] for row in third.read("semantic_ids").to_pylist() if row["is_warm"]}
    assert warm == {f"i{n}" for n in range(3, 40)}  # whatever has happened since


def test_a_night_needs_no_behaviour_and_goes_on_only_when_something_changed(config):
    first = make_store(config, range(40))
    assign_semantic_ids.run(config, first)
    monday, second = a_night(config, "monday", range(42))
    for name in ("embeddings", "interactions"):
        second.set_aside(name)
    assign_semantic_ids.run(monday, second)
    made = second.require("semantic_ids")
    assert set(made.inputs) == {"items", "features"}
    assign_semantic_ids.run(monday, second)
    assert second.require("semantic_ids") == made
    write(first, list(range(NUM_ITEMS)), content=3)  # the first run's ids are others now
    assign_semantic_ids.run(config, first)
    assign_semantic_ids.run(monday, second)
    assert second.require("semantic_ids").fingerprint != made.fingerprint


def test_drift_and_a_wrong_run_are_warned_of(config, caplog):
    config = with_ids(config, codebook_size=3)
    assign_semantic_ids.run(config, make_store(config, range(30)))
    alike = vectors(0)
    alike[30:] = alike[:30] + 0.01 * vectors(4)[30:]
    similar, store = a_night(config, "similar", range(60), content=alike)
    assign_semantic_ids.run(similar, store)
    assert "unlike" not in caplog.text
    strange = vectors(0)
    strange[30:] = np.random.default_rng(5).normal(size=(30, 5))
    drifted, store = a_night(config, "drifted", range(60), content=strange)
    assign_semantic_ids.run(drifted, store)
    assert "new items are unlike those" in caplog.text
    assert "leave semantic_ids.from_run out to fit anew" in caplog.text
    other, store = a_night(config, "other", range(30, 60))
    assign_semantic_ids.run(other, store)
    assert "no item of the catalog has an id in test" in caplog.text


@pytest.mark.parametrize(
    ("changes", "features", "complaint"),
    [
        ({"levels": 3}, {}, "levels 2; set the same"),
        ({"collisions": "counter"}, {}, "collisions 'bucket'"),
        ({"codebook_size": 5, "collaborative_weight": 2.0}, {}, "codebook_size 4, collab"),
        ({"content": "raw_text"}, {}, "content 'knowledge'"),
        ({}, {"weights": "other"}, r"made otherwise \(weights\).*fit anew"),
        ({}, {"content": np.ones((NUM_ITEMS, 6))}, r"made otherwise \(width 5, now 6\)"),
    ],
)
def test_other_codebooks_than_asked_for_or_other_vectors_are_refused(
    config, store, changes, features, complaint
):
    assign_semantic_ids.run(config, store)
    later, night = a_night(config, "night", range(50), **features)
    with pytest.raises(ConfigError, match=complaint):
        assign_semantic_ids.run(with_ids(later, **changes), night)
    assert night.manifest("semantic_ids") is None


def test_a_run_without_ids_is_named(config, store):
    with pytest.raises(DataError, match=r"from_run is nobody, but .*nobody has no finished"):
        assign_semantic_ids.run(with_ids(config, from_run="nobody"), store)


def test_content_may_be_what_the_catalog_says_by_itself(config, monkeypatch):
    config = with_ids(config, content="raw_text")
    store = make_store(config)
    store.set_aside("features")
    asked = []

    def encode(of, into, names):
        asked.append(names)
        dataset = controls.dataset_of(names[0])
        if into.manifest(dataset) is None:
            write(into, list(range(NUM_ITEMS)), dataset=dataset, content=2)

    monkeypatch.setattr(encode_controls, "encode", encode)
    for _ in range(2):
        assign_semantic_ids.run(config, store)
    assert asked == [["raw_text"]] * 2
    assert "controls/raw_text/features" in store.require("semantic_ids").inputs
    np.testing.assert_array_equal(
        read_items(store, "controls/raw_text/features", "train")[1].content, vectors(2)
    )
    assert controls.encoded(config.ctr.controls) == ["raw_text", "history"]  # the check's own list
