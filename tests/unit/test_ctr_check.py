"""The check finds a planted signal, is not fooled by the placebo, and repeats to the bit."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import roc_auc_score

from features.ctr.check import ARMS, fit_one, summarise, verdict
from features.ctr.data import make_ctr_data
from features.ctr.join import join_vectors
from features.ctr.metrics import Difference
from jobs.check_ctr import require_gain
from pipeline.config import CtrSettings
from pipeline.errors import CheckError
from pipeline.schemas import FEATURES, INTERACTIONS, ITEMS, USERS, with_vector_width

SETTINGS = CtrSettings(
    models=["dcnv2", "din"],
    seeds=2,
    max_epochs=8,
    batch_size=128,
    learning_rate=3e-3,
    embedding_dim=8,
    adaptor_dim=8,
    history_length=4,
    bootstrap=300,
)
NUM_USERS, NUM_ITEMS, WIDTH = 40, 150, 6


@pytest.fixture(scope="module")
def planted():
    """Test items are new, and whether a row is liked depends on its item's vector alone."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(NUM_USERS + NUM_ITEMS, WIDTH)).astype(np.float32)
    size = 1600
    split = np.repeat(["train", "valid", "test"], [1000, 200, 400])
    item = np.where(split == "train", rng.integers(0, 100, size), rng.integers(100, 150, size))
    chance = 1 / (1 + np.exp(-3 * vectors[NUM_USERS + item, 0]))
    label = (rng.random(size) < chance).astype(np.int8)
    users, items = [f"u{i}" for i in range(NUM_USERS)], [f"i{i}" for i in range(NUM_ITEMS)]
    interactions = pa.table(
        [
            [users[i] for i in rng.integers(0, NUM_USERS, size)],
            [items[i] for i in item],
            pa.array(label * 4, pa.float32()),
            label,
            np.arange(size),
            split,
        ],
        schema=INTERACTIONS,
    )
    data = make_ctr_data(
        interactions,
        pa.table([users, [{}] * NUM_USERS], schema=USERS),
        pa.table([items, items, [{}] * NUM_ITEMS], schema=ITEMS),
        SETTINGS.history_length,
    )
    kinds = ["user"] * NUM_USERS + ["item"] * NUM_ITEMS
    features = pa.table(
        [kinds, users + items, ["own"] * len(kinds), list(vectors)],
        schema=with_vector_width(FEATURES, WIDTH),
    )
    latest = pa.array(np.zeros(len(kinds), np.int64))
    knowledge = pa.table({"kind": kinds, "entity_id": users + items, "latest_source": latest})
    return data, join_vectors(data, features, knowledge)


@pytest.fixture(scope="module")
def fits(planted):
    data, vectors = planted
    return [
        fit_one(data, vectors, SETTINGS, model, arm, seed)
        for model in SETTINGS.models
        for arm in ARMS
        for seed in range(SETTINGS.seeds)
    ]


def of(model, arm, fits):
    return [fit for fit in fits if (fit.model, fit.arm) == (model, arm)]


def test_a_planted_signal_is_found_and_the_placebo_finds_nothing(planted, fits):
    result = summarise(planted[0], fits, SETTINGS, seed=0)
    for model in SETTINGS.models:
        arms = result["models"][model]["arms"]
        assert arms["knowledge"]["auc"] > 0.8
        assert abs(arms["base"]["auc"] - 0.5) < 0.1
        assert abs(arms["shuffled"]["auc"] - 0.5) < 0.15
        assert arms["knowledge"]["logloss"] < arms["base"]["logloss"]
        assert result["models"][model]["gain"]["low"] > 0
        assert result["models"][model]["gain_over_shuffled"]["low"] > 0
        assert result["models"][model]["verdict"].startswith("helps: AUC +0.")


def test_vectors_that_say_nothing_are_no_evidence(planted):
    data, vectors = planted
    settings = SETTINGS.model_copy(update={"models": ["dcnv2"]})
    noise = vectors.shuffled(77)
    fits = [fit_one(data, noise, settings, "dcnv2", arm, seed) for arm in ARMS for seed in (0, 1)]
    result = summarise(data, fits, settings, seed=0)["models"]["dcnv2"]
    assert result["verdict"].startswith("no evidence at this size")
    assert result["gain"]["low"] < 0 < result["gain"]["high"]


def test_a_rerun_is_equal_to_the_bit_whatever_ran_before(planted, fits):
    data, vectors = planted
    first = of("din", "shuffled", fits)[1]
    torch.manual_seed(99)
    again = fit_one(data, vectors, SETTINGS, "din", "shuffled", 1)
    assert again.test_probabilities.tobytes() == first.test_probabilities.tobytes()
    assert (again.valid_auc, again.epochs) == (first.valid_auc, first.epochs)


def test_another_seed_is_another_fit(fits):
    first, second = of("din", "base", fits)
    assert first.test_probabilities.tobytes() != second.test_probabilities.tobytes()


def test_a_fit_leaves_the_state_of_torch_alone(planted):
    data, vectors = planted
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    fit_one(data, vectors, SETTINGS.model_copy(update={"max_epochs": 1}), "dcnv2", "base", 0)
    assert torch.equal(torch.rand(3), wanted)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_best_epoch_is_kept(planted):
    data, vectors = planted
    eager = SETTINGS.model_copy(update={"learning_rate": 0.02, "max_epochs": 12, "patience": 3})
    long = fit_one(data, vectors, eager, "dcnv2", "base", 0)
    kept = long.epochs - eager.patience
    assert 0 < kept < eager.max_epochs - eager.patience  # it stopped early, or this tests nothing
    short = fit_one(
        data, vectors, eager.model_copy(update={"max_epochs": kept}), "dcnv2", "base", 0
    )
    assert short.valid_auc == long.valid_auc
    assert short.test_probabilities.tobytes() == long.test_probabilities.tobytes()


def test_the_summary_is_plain_json_and_counts_rows(planted, fits):
    result = json.loads(json.dumps(summarise(planted[0], fits, SETTINGS, 0), allow_nan=False))
    assert result["rows"] == {"train": 1000, "valid": 200, "test": 400}
    assert result["test_users"] == 40
    assert result["seeds"] == 2
    gain = result["models"]["din"]["gain"]
    assert gain.keys() >= {"auc", "low", "high", "logloss", "logloss_low", "logloss_high", "mde"}


def test_the_order_in_which_fits_finish_changes_nothing(planted, fits):
    rng = np.random.default_rng(0)
    more = [
        replace(fit, seed=seed, test_probabilities=rng.random(400, np.float32))
        for seed in range(2, 9)
        for fit in fits
        if fit.seed == 0
    ]
    results = [summarise(planted[0], order, SETTINGS, 0) for order in (fits + more, more + fits)]
    assert results[0] == results[1]


def test_the_gain_compares_mean_predictions_of_the_arms(planted, fits):
    data, _ = planted
    labels = data.labels[data.splits["test"]]
    mean = {
        arm: np.mean([f.test_probabilities for f in of("din", arm, fits)], 0, dtype=np.float64)
        for arm in ARMS
    }
    wanted = roc_auc_score(labels, mean["knowledge"]) - roc_auc_score(labels, mean["base"])
    result = summarise(data, fits, SETTINGS, 0)["models"]["din"]
    assert result["gain"]["auc"] == pytest.approx(wanted)


def difference(low, auc, high, reason=""):
    return Difference(auc, low, high, 0.0, 0.0, 0.0, 0.0123, reason)


@pytest.mark.parametrize(
    ("gain", "over_shuffled", "start"),
    [
        (difference(0.01, 0.02, 0.03), difference(0.01, 0.02, 0.03), "helps: AUC +0.0200"),
        (difference(0.01, 0.02, 0.03), difference(-0.01, 0.0, 0.01), "no evidence that the text"),
        (difference(-0.01, 0.01, 0.03), difference(0.01, 0.02, 0.03), "no evidence at this size"),
        (difference(-0.03, -0.02, -0.01), difference(-0.03, -0.02, -0.01), "harms: AUC -0.0200"),
        (difference(-0.03, -0.02, -0.01), difference(-0.01, 0.0, 0.01), "no evidence at this"),
        (difference(*[float("nan")] * 3, "one label"), difference(0, 0, 0), "no evidence: one"),
    ],
)
def test_the_verdict_needs_both_comparisons(gain, over_shuffled, start):
    assert verdict(gain, over_shuffled).startswith(start)


def test_the_verdict_names_the_difference_that_would_be_seen():
    sentence = verdict(difference(-0.01, 0.0, 0.01), difference(-0.01, 0.0, 0.01))
    assert "above 0.0123 would be seen" in sentence


def test_the_threshold_is_met_by_the_best_model_and_missed_by_none():
    result = {"models": {"din": {"gain": {"auc": 0.01}}, "dcnv2": {"gain": {"auc": None}}}}
    require_gain(result, None)
    require_gain(result, 0.01)
    with pytest.raises(
        CheckError, match=r"min_auc_gain is 0\.02, but knowledge gains din \+0\.0100, dcnv2 unknown"
    ):
        require_gain(result, 0.02)
