from itertools import count

import numpy as np
import pyarrow as pa
import pytest
import torch

from jobs import assign_semantic_ids, train_recommender, train_retriever
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.generative import retriever_encoder_training
from pipeline.generative.event_log import as_histories
from pipeline.generative.recommender import load_recommender
from pipeline.generative.retriever import ContentTower, EncoderTower, load_retriever
from pipeline.generative.session import Session
from pipeline.generative_config import (
    RecommenderSettings,
    RetrieverSettings,
    SemanticIdSettings,
    TrainingSettings,
)
from pipeline.schemas import EMBEDDINGS, FEATURES, INTERACTIONS, ITEMS, USERS
from pipeline.store import Store

NUM_USERS, NUM_ITEMS = 12, 40
TRAINING = TrainingSettings(max_epochs=2, batch_size=4, warm_up=0, learning_rate=1e-2)


@pytest.fixture
def config(tmp_path):
    return RunConfig(
        run="test",
        artifacts=tmp_path,
        catalog=CatalogSettings(source="movielens", path=tmp_path),
        semantic_ids=SemanticIdSettings(codebook_size=6, levels=2),
        recommender=RecommenderSettings(
            hidden_dim=16, layers=1, heads=2, history_length=4, training=TRAINING
        ),
        retriever=RetrieverSettings(dim=8, training=TRAINING),
        language_model={"path": "none"},
        encoder={"path": "none"},
    )


def with_tower(config, **changes):
    section = config.retriever.model_copy(update=changes)
    return config.model_copy(update={"retriever": section})


def write_items(store, sources):
    rng = np.random.default_rng(0)
    ids = [f"i{n}" for n in range(NUM_ITEMS)]
    own = {"kind": ["item"] * NUM_ITEMS, "entity_id": ids}
    seen = dict.fromkeys(("asof", "latest_source", "source_events"), [0] * NUM_ITEMS)
    vectors = rng.normal(size=(2, NUM_ITEMS, 5)).astype(np.float32)
    text = {**own, "source": sources, **seen, "prompt_hash": ids, "vector": vectors[0].tolist()}
    store.plan("features", {"sources": sources}).write(pa.table(text, schema=FEATURES))
    behaviour = {**own, "num_interactions": [3] * NUM_ITEMS, "vector": vectors[1].tolist()}
    store.plan("embeddings", {}).write(pa.table(behaviour, schema=EMBEDDINGS))


@pytest.fixture
def store(config):
    """Everybody likes a run of items; the last four are never liked before `test`."""
    store = Store(config.artifacts / config.run)
    ids = [f"i{n}" for n in range(NUM_ITEMS)]
    users = [f"u{n}" for n in range(NUM_USERS)]
    nothing = [[]] * NUM_ITEMS
    items = {"item_id": ids, "title": ids, "attributes": nothing}
    store.plan("items", {}).write(pa.table(items, schema=ITEMS))
    table = {"user_id": users, "attributes": nothing[:NUM_USERS]}
    store.plan("users", {}).write(pa.table(table, schema=USERS))
    rows = [
        (user, ids[(3 * n + t) % (NUM_ITEMS - 4)], 5.0, 1, t, "valid" if t == 8 else "knowledge")
        for n, user in enumerate(users)
        for t in range(9)
    ]
    rows += [("u0", ids[n], 5.0, 1, 20, "test") for n in range(NUM_ITEMS - 4, NUM_ITEMS)]
    columns = dict(zip(INTERACTIONS.names, map(list, zip(*rows, strict=True)), strict=True))
    store.plan("interactions", {}).write(pa.table(columns, schema=INTERACTIONS))
    write_items(store, ["own"] * NUM_ITEMS)
    return store


def train(config, store):
    assign_semantic_ids.run(config, store)
    train_recommender.run(config, store)
    train_retriever.run(config, store)
    return store.files.local("retriever")


def scores_of(folder, model, store):
    inputs = train_recommender.read_inputs(store)
    items = np.array([[0, 1, 2], [7, -1, -1]])
    session = Session(model, as_histories(items, inputs.codes, inputs.num_codes))
    with torch.inference_mode():
        session.open()
        return load_retriever(folder).scores(session)


def test_a_content_tower_leaves_the_recommender_alone(config, store):
    folder = train(config, store)
    retriever = load_retriever(folder)
    assert isinstance(retriever.tower, ContentTower)
    assert not (folder / "recommender").exists()
    model = load_recommender(store.files.local("recommender") / "recommender")
    assert torch.isfinite(scores_of(folder, model, store)).all()
    manifest = store.require("retriever")
    assert manifest.num_rows == NUM_ITEMS
    assert manifest.facts["epochs"] == 2
    assert not list((store.root / "checkpoints").glob("retriever*"))
    train_retriever.run(config, store)
    assert store.require("retriever") == manifest


def test_an_encoder_tower_comes_with_its_own_recommender(config, store, monkeypatch):
    rising = count()  # fifty of so few items are all: no epoch would be better than another
    monkeypatch.setattr(retriever_encoder_training, "recall", lambda *_: float(next(rising)))
    folder = train(with_tower(config, tower="encoder"), store)
    retriever = load_retriever(folder)
    assert isinstance(retriever.tower, EncoderTower)
    whole = load_recommender(store.files.local("recommender") / "recommender")
    own = load_recommender(folder / "recommender")
    assert not torch.equal(whole.heads, own.heads)
    assert torch.isfinite(scores_of(folder, own, store)).all()
    facts = store.require("retriever").facts
    assert [facts[f"stage_{n}"]["epochs"] for n in (1, 2)] == [2, 2]
    assert facts["log_probability"]["before"] < 0
    assert not list((store.root / "checkpoints").glob("retriever*"))


def test_items_without_text_are_never_drafted_by_content(config, store):
    write_items(store, ["none"] * 3 + ["own"] * (NUM_ITEMS - 3))
    scores = scores_of(
        train(config, store),
        load_recommender(store.files.local("recommender") / "recommender"),
        store,
    )
    assert (scores[:, :3] == -torch.inf).all()
    assert torch.isfinite(scores[:, 3:]).all()


def test_content_of_items_that_nobody_likes_is_nothing_to_learn_from(config, store):
    assign_semantic_ids.run(config, store)
    train_recommender.run(config, store)
    write_items(store, ["none"] * (NUM_ITEMS - 4) + ["own"] * 4)
    with pytest.raises(DataError, match=r"set retriever\.tower to encoder"):
        train_retriever.run(config, store)


def test_settings_of_the_other_stages_leave_a_retriever_current(config, store):
    train(config, store)
    manifest = store.require("retriever")
    specgr = config.recommendation.specgr.model_copy(update={"threshold": -1.0, "drafted": 5})
    section = config.recommendation.model_copy(update={"specgr": specgr})
    train_retriever.run(config.model_copy(update={"recommendation": section}), store)
    assert store.require("retriever") == manifest


@pytest.mark.parametrize("change", [{"until": "knowledge"}, {"history_length": 2}])
def test_a_retriever_of_other_events_or_shorter_histories_is_another(config, store, change):
    assign_semantic_ids.run(config, store)
    train_recommender.run(config, store)
    train_retriever.run(config, store)
    before = store.require("retriever").fingerprint
    section = config.recommender.model_copy(update=change)
    train_retriever.run(config.model_copy(update={"recommender": section}), store)
    assert store.require("retriever").fingerprint != before


def test_content_is_paired_with_codes_by_item_whatever_the_order_of_the_catalog(config, store):
    assign_semantic_ids.run(config, store)
    train_recommender.run(config, store)
    train_retriever.run(config, store)
    before = load_retriever(store.files.local("retriever")).vectors
    items = store.read("items")
    order = np.random.default_rng(0).permutation(NUM_ITEMS)
    store.plan("items", {"order": order.tolist()}).write(items.take(order))
    train_retriever.run(config, store)
    assert torch.equal(load_retriever(store.files.local("retriever")).vectors, before)
    store.plan("items", {"fewer": True}).write(items.slice(1))
    with pytest.raises(DataError, match=r"1 items are not in the catalog now, such as \['i0'\]"):
        train_retriever.run(config, store)


def test_a_finished_training_leaves_no_checkpoint_but_those_of_other_settings(config, store):
    folder = store.root / "checkpoints"
    folder.mkdir()
    (folder / "retriever-0a.safetensors").touch()
    train(config, store)
    assert [file.name for file in folder.iterdir()] == ["retriever-0a.safetensors"]
