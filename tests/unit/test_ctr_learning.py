"""Every model learns a planted interaction that is none of LR's; LR learns a planted sum."""

import numpy as np
import pyarrow as pa
import pytest

from features.ctr import training
from features.ctr.arms import make_arms
from features.ctr.data import CtrData
from features.ctr.fields import Fields
from features.ctr.join import KnowledgeVectors
from features.ctr.metrics import auc
from features.ctr.models import MODELS
from features.ctr.training import Task, Trial
from pipeline.config import CtrSettings

SETTINGS = CtrSettings(
    max_epochs=15,
    patience=4,
    batch_size=64,
    learning_rates=[1e-2],
    embedding_dim=8,
    adaptor_dim=4,
    history_length=3,
)
USERS, ITEMS, SIZE, WIDTH = 40, 40, 3000, 3
SPLITS = {
    "train": np.arange(2000),
    "valid": np.arange(2000, 2500),
    "test": np.arange(2500, SIZE),
}
NO_KNOWLEDGE = KnowledgeVectors(
    np.zeros((USERS, WIDTH), np.float32), np.zeros((ITEMS, WIDTH), np.float32)
)


def rows(chance_of_a_like):
    """Users have one of two jobs, items one of two genres; `chance_of_a_like` is of both."""
    rng = np.random.default_rng(0)
    job, genre = np.arange(USERS) % 2, np.arange(ITEMS) % 2
    users, items = rng.integers(0, USERS, SIZE), rng.integers(0, ITEMS, SIZE)
    chance = chance_of_a_like(job[users], genre[items])
    ids = pa.chunked_array([[str(i) for i in range(USERS)]])
    unknown = np.zeros(USERS, int)  # without ids, which could be learned by heart
    return CtrData(
        user_ids=ids,
        item_ids=ids,
        users=users,
        items=items,
        timestamps=np.arange(SIZE),
        labels=(rng.random(SIZE) < chance).astype(np.float32),
        splits=SPLITS,
        history_items=np.zeros((SIZE, 3), int),
        history_signals=rng.integers(0, 3, (SIZE, 3)).astype(np.int8),
        user_fields=Fields(("id", "job"), (1, 3), np.stack([unknown, 1 + job], axis=1)),
        item_fields=Fields(("id", "genre"), (1, 3), np.stack([unknown, 1 + genre], axis=1)),
    )


def interaction():
    """Jobs like unlike genres: neither says anything alone."""
    return rows(lambda job, genre: np.where(job == genre, 0.9, 0.1))


def additive():
    return rows(lambda job, genre: np.array([0.1, 0.5, 0.9])[job + genre])


def fit_one(data, vectors, settings, model, arm, seed, framework="kar"):
    """A fit with the first of the settings."""
    task = Task(model, arm, seed, Trial(settings.learning_rates[0], settings.dropouts[0]))
    arms = make_arms(data, vectors, {}, None)
    return training.fit_one(data, arms[arm], task, settings, framework)


def learned_auc(data, model, vectors=NO_KNOWLEDGE, arm="base"):
    fit = fit_one(data, vectors, SETTINGS, model, arm, 0)
    return auc(data.labels[data.splits["test"]], fit.test_probabilities)


@pytest.mark.parametrize("model", MODELS)
def test_a_planted_interaction_is_learned_by_all_but_lr(model):
    found = learned_auc(interaction(), model)
    if model == "lr":
        assert abs(found - 0.5) < 0.06
    else:
        assert found > 0.85  # knowing the law gives 0.9


@pytest.mark.parametrize("model", MODELS)
def test_a_planted_sum_is_learned_by_all(model):
    assert learned_auc(additive(), model) > 0.78  # knowing the law gives 0.8


@pytest.mark.parametrize("model", MODELS)
def test_one_seed_gives_one_result_to_the_bit(model):
    settings = SETTINGS.model_copy(update={"max_epochs": 2})
    vectors = KnowledgeVectors(
        *np.random.default_rng(1).normal(size=(2, USERS, WIDTH)).astype(np.float32)
    )
    first, again = (
        fit_one(interaction(), vectors, settings, model, "knowledge", 3) for _ in range(2)
    )
    assert first.test_probabilities.tobytes() == again.test_probabilities.tobytes()
    other = fit_one(interaction(), vectors, settings, model, "knowledge", 4)
    assert first.test_probabilities.tobytes() != other.test_probabilities.tobytes()


@pytest.mark.parametrize("model", MODELS)
def test_a_law_that_only_knowledge_tells_is_learned_from_it(model):
    """Without fields a row says nothing; the law is one that LR can learn, of the item's vector."""
    plain = additive()
    rng = np.random.default_rng(2)
    items = rng.normal(size=(ITEMS, WIDTH)).astype(np.float32)
    items[:, -1] = 0.0
    chance = np.where(items[plain.items, 0] > 0, 0.9, 0.1)
    blank = Fields(("id",), (1,), np.zeros((USERS, 1), int))
    data = CtrData(
        **vars(plain)
        | {
            "labels": (rng.random(SIZE) < chance).astype(np.float32),
            "user_fields": blank,
            "item_fields": blank,
        }
    )
    vectors = KnowledgeVectors(np.zeros((USERS, WIDTH), np.float32), items)
    assert abs(learned_auc(data, model) - 0.5) < 0.06
    assert learned_auc(data, model, vectors, "knowledge") > 0.8
