"""The job that trains a drafter: what it writes, and what it refuses."""

import logging

import numpy as np
import pyarrow as pa
import pytest

from jobs import align_drafter
from jobs.align_drafter import MODEL
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.generative.recommender import load_recommender, make_recommender
from pipeline.generative_config import (
    AlignedDrafterSettings,
    RecommenderSettings,
    TrainingSettings,
)
from pipeline.schemas import INTERACTIONS, ITEMS, SEMANTIC_IDS, USERS
from pipeline.store import Store

NUM_USERS, NUM_ITEMS, LEVELS, CODES = 12, 40, 3, 4
CODES_OF = np.stack(np.unravel_index(np.arange(NUM_ITEMS), [CODES] * LEVELS), 1)


@pytest.fixture
def config(tmp_path):
    return RunConfig(
        run="test",
        artifacts=tmp_path,
        catalog=CatalogSettings(source="movielens", path=tmp_path),
        recommender=RecommenderSettings(hidden_dim=16, layers=1, heads=2, history_length=3),
        aligned_drafter=AlignedDrafterSettings(
            hidden_dim=8,
            teacher_contexts=30,
            teacher_beams=5,
            training=TrainingSettings(max_epochs=2, batch_size=16),
        ),
        language_model={"path": "none"},
        encoder={"path": "none"},
    )


def write(store, split_of_last="valid", label=1):
    """Users who like five items each, the last of them in another split."""
    users = [f"u{n}" for n in range(NUM_USERS)]
    items = [f"i{n}" for n in range(NUM_ITEMS)]
    own = {"user_id": users, "attributes": [[]] * NUM_USERS}
    store.plan("users", {}).write(pa.table(own, schema=USERS))
    own = {"item_id": items, "title": items, "attributes": [[]] * NUM_ITEMS}
    store.plan("items", {}).write(pa.table(own, schema=ITEMS))
    chosen = np.random.default_rng(0).permuted(
        np.tile(np.arange(NUM_ITEMS), (NUM_USERS, 1)), axis=1
    )
    rows = {
        "user_id": np.repeat(users, 5),
        "item_id": [f"i{n}" for n in chosen[:, :5].ravel()],
        "rating": [1.0] * 5 * NUM_USERS,
        "label": [label] * 5 * NUM_USERS,
        "timestamp": list(range(5 * NUM_USERS)),
        "split": ["knowledge", "train", "train", "train", split_of_last] * NUM_USERS,
    }
    store.plan("interactions", {"last": split_of_last, "label": label}).write(
        pa.table(rows, schema=INTERACTIONS)
    )
    columns = [items, CODES_OF.tolist(), [True] * NUM_ITEMS, [False] * NUM_ITEMS]
    table = pa.table(dict(zip(SEMANTIC_IDS.names, columns, strict=True)), schema=SEMANTIC_IDS)
    store.plan("semantic_ids", {}).write(table, {"codebook_size": CODES})


@pytest.fixture
def store(config):
    store = Store(config.artifacts / config.run)
    write(store)
    model = make_recommender(config.recommender, LEVELS, CODES, 0)
    store.plan("recommender", {}).write_files(lambda folder: model.save(folder / "recommender"), 1)
    return store


def test_a_drafter_is_written_once(config, store, caplog):
    with caplog.at_level(logging.INFO):
        align_drafter.run(config, store)
    assert "5 beams of each of 30 histories" in caplog.text
    drafter = load_recommender(store.path("aligned_drafter") / MODEL)
    assert (drafter.width, drafter.levels, drafter.num_codes) == (8, LEVELS, CODES)
    facts = store.require("aligned_drafter").facts
    assert facts["epochs"] == 2
    assert facts["calls"] + facts["accepted_levels"] == pytest.approx(LEVELS)
    assert facts["parameters"] == sum(own.numel() for own in drafter.parameters())
    assert not list((store.root / "checkpoints").iterdir())
    caplog.clear()
    with caplog.at_level(logging.INFO):
        align_drafter.run(config, store)
    assert "up to date" in caplog.text


@pytest.mark.parametrize("change", [{"loss": "atspeed_r"}, {"alpha": 0.1}, {"layers": 2}])
def test_other_settings_make_another_drafter(config, store, change):
    align_drafter.run(config, store)
    before = store.require("aligned_drafter").facts
    own = config.aligned_drafter.model_copy(update=change)
    align_drafter.run(config.model_copy(update={"aligned_drafter": own}), store)
    after = store.require("aligned_drafter").facts
    # Of so few items any drafter's beams hold all, so the weights kept are those of the start.
    assert before["losses"] != after["losses"]


def test_without_valid_events_training_histories_decide_when_to_stop(config, store, caplog):
    write(store, "test")
    align_drafter.run(config, store)
    assert "training histories decide" in caplog.text
    facts = store.require("aligned_drafter").facts
    assert facts["epochs"] == len(facts["figures"]) == 2
    assert facts["start"] > 0  # levels accepted of somebody's beams


def test_nothing_to_train_on_is_refused(config, store):
    write(store, label=0)
    with pytest.raises(DataError, match="nobody likes anything"):
        align_drafter.run(config, store)


def test_a_missing_or_damaged_recommender_is_refused(config, store):
    (store.path("recommender") / "recommender" / "shape.json").write_text("{")
    with pytest.raises(DataError, match="no usable recommender"):
        align_drafter.run(config, store)
    store.set_aside("recommender")
    with pytest.raises(DataError, match="recommender"):
        align_drafter.run(config, store)


@pytest.mark.parametrize("change", [{"until": "knowledge"}, {"history_length": 2}])
def test_a_drafter_of_other_events_or_shorter_histories_is_another(config, store, change):
    align_drafter.run(config, store)
    before = store.require("aligned_drafter").fingerprint
    own = config.recommender.model_copy(update=change)
    align_drafter.run(config.model_copy(update={"recommender": own}), store)
    assert store.require("aligned_drafter").fingerprint != before
