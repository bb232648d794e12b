"""The check finds a planted signal, is not fooled by the placebo, and repeats to the bit."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from features.build import feature_rows
from features.ctr import training
from features.ctr.arms import make_arms, shuffled
from features.ctr.bootstrap import Difference
from features.ctr.check import chosen, first_tasks, other_tasks, summarise, tuned
from features.ctr.data import make_ctr_data
from features.ctr.join import join_vectors
from features.ctr.metrics import calibration_error
from features.ctr.training import Task, Trial
from features.ctr.verdict import helps, lossless, outcome, power
from jobs.check_ctr import require_gain, told
from pipeline.config import CtrSettings
from pipeline.errors import CheckError, ConfigError
from pipeline.schemas import INTERACTIONS, ITEMS, PROVENANCE, USERS

SETTINGS = CtrSettings(
    models=["dcnv2", "din"],
    seeds=2,
    max_epochs=8,
    batch_size=128,
    learning_rates=[3e-3],
    dropouts=[0.0],
    embedding_dim=8,
    adaptor_dim=8,
    history_length=4,
    bootstrap=300,
)
ARMS = ("base", "knowledge", "shuffled")
NUM_USERS, NUM_ITEMS, WIDTH = 40, 150, 6


def fit_one(data, vectors, settings, model, arm, seed, framework="kar"):
    """A fit with the first of the settings."""
    task = Task(model, arm, seed, Trial(settings.learning_rates[0], settings.dropouts[0]))
    arms = make_arms(data, vectors, {}, None)
    return training.fit_one(data, arms[arm], task, settings, framework)


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
    names = pa.table({"kind": kinds, "entity_id": users + items})
    seen = dict(zip(PROVENANCE, ([0] * len(kinds),) * 3 + (["asked"] * len(kinds),), strict=True))
    features = feature_rows(names, np.repeat("own", len(kinds)), seen, vectors)
    return data, join_vectors(data, features, features, "per_user_prefix")


@pytest.fixture(scope="module")
def fits(planted):
    data, vectors = planted
    return [
        fit_one(data, vectors, SETTINGS, model, arm, seed)
        for model in SETTINGS.models
        for arm in ARMS
        for seed in range(SETTINGS.seeds)
    ]


def with_seed(fit, seed, test_probabilities):
    task = fit.task._replace(seed=seed)
    return replace(fit, task=task, test_probabilities=test_probabilities)


def of(model, arm, fits):
    return [fit for fit in fits if (fit.task.model, fit.task.arm) == (model, arm)]


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
    noise = shuffled(vectors, data, 77)
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
    eager = SETTINGS.model_copy(update={"learning_rates": [0.02], "max_epochs": 12, "patience": 3})
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
    assert result["gauc_coverage"] == {"rows": 1.0, "users": 1.0}
    parts = result["slices"]
    assert parts["cold items"]["rows"] == 400  # all test items are new
    assert parts["warm items"] == {
        "rows": 0,
        "users": 0,
        "liked": 0,
        "reason": "no test row is of this kind",
    }
    labels = planted[0].labels[planted[0].splits["test"]]
    model = result["models"]["din"]
    assert model["slices"]["warm items"] == dict.fromkeys(ARMS)
    for arm in ARMS:
        metrics = model["arms"][arm]
        assert model["slices"]["cold items"][arm] == pytest.approx(metrics["auc"])
        scores = [fit.test_probabilities for fit in of("din", arm, fits)]
        assert metrics["calibration_ratio"] == pytest.approx(
            np.mean([row.sum(dtype=float) for row in scores]) / labels.sum()
        )
        errors = [calibration_error(labels, row) for row in scores]
        assert metrics["calibration_error"] == pytest.approx(np.mean(errors))
    assert model["arms"]["knowledge"]["gauc"] > 0.75
    gain = model["gain"]
    assert gain.keys() >= {"auc", "low", "high", "logloss", "logloss_low", "logloss_high", "mde"}


def test_the_order_in_which_fits_finish_changes_nothing(planted, fits):
    rng = np.random.default_rng(0)
    more = [
        with_seed(fit, seed, test_probabilities=rng.random(400, np.float32))
        for seed in range(2, 9)
        for fit in fits
        if fit.task.seed == 0
    ]
    results = [summarise(planted[0], order, SETTINGS, 0) for order in (fits + more, more + fits)]
    assert results[0] == results[1]


def test_a_gain_is_the_difference_of_the_rows_of_the_table(planted, fits):
    """On 13 test rows the AUC of mean predictions is another number than the mean of AUCs."""
    data, _ = planted
    rng = np.random.default_rng(4)
    few = replace(data, splits=data.splits | {"test": data.splits["test"][:13]})
    settings = SETTINGS.model_copy(update={"models": ["din"], "seeds": 5})
    noisy = [
        with_seed(of("din", arm, fits)[0], seed, test_probabilities=rng.random(13, np.float32))
        for arm in ARMS
        for seed in range(5)
    ]
    result = summarise(few, noisy, settings, 0)["models"]["din"]
    labels = data.labels[few.splits["test"]]
    for arm, name in (("base", "gain"), ("shuffled", "gain_over_shuffled")):
        for metric, score in (("auc", roc_auc_score), ("logloss", log_loss)):
            rows = result["arms"]
            assert result[name][metric] == pytest.approx(
                rows["knowledge"][metric] - rows[arm][metric]
            )
            pairs = zip(of("din", "knowledge", noisy), of("din", arm, noisy), strict=True)
            assert result[name][metric] == pytest.approx(
                np.mean(
                    [
                        score(labels, with_text.test_probabilities)
                        - score(labels, without.test_probabilities)
                        for with_text, without in pairs
                    ]
                )
            )
    mean = {arm: np.mean([f.test_probabilities for f in of("din", arm, noisy)], 0) for arm in ARMS}
    of_means = roc_auc_score(labels, mean["knowledge"]) - roc_auc_score(labels, mean["base"])
    assert abs(of_means - result["gain"]["auc"]) > 0.02


NAN = math.nan


def difference(low, auc, high, reason="", logloss=(-0.01, 0.0, 0.01)):
    """As ctr.json has it."""
    loss_low, loss, loss_high = logloss
    values = asdict(Difference(auc, low, high, loss, loss_low, loss_high, 0.0123, reason))
    return {key: None if value is NAN else value for key, value in values.items()}


UP, FLAT, DOWN = (0.01, 0.02, 0.03), (-0.01, 0.0, 0.01), (-0.03, -0.02, -0.01)


@pytest.mark.parametrize(
    ("gain", "over_shuffled", "start", "words"),
    [
        (UP, UP, "helps: AUC +0.0200", "better"),
        (UP, FLAT, "no evidence that the text", "better, but no better than shuffled text"),
        (FLAT, UP, "no evidence at this size", "no evidence either way"),
        (DOWN, DOWN, "harms: AUC -0.0200", "worse"),
        (DOWN, FLAT, "no evidence that the text", "worse, but no worse than shuffled text"),
        (FLAT, DOWN, "no evidence at this size", "no evidence either way"),
    ],
)
def test_the_verdict_needs_both_comparisons(gain, over_shuffled, start, words):
    gain, over_shuffled = difference(*gain), difference(*over_shuffled)
    assert helps(gain, over_shuffled).startswith(start)
    assert outcome(gain, over_shuffled) == words


def test_a_gain_that_is_not_known_is_no_evidence():
    unknown = difference(NAN, NAN, NAN, "one label", logloss=(NAN, 0.1, NAN))
    assert helps(unknown, unknown) == "no evidence: one label"
    assert outcome(unknown, unknown) == "no evidence either way"


def test_the_verdict_names_the_interval_and_the_difference_that_would_be_seen():
    sentence = helps(difference(*FLAT), difference(*FLAT))
    assert sentence == (
        "no evidence at this size: AUC +0.0000, 95 % interval -0.0100 to +0.0100; differences "
        "above 0.0123 would be seen"
    )


def test_an_undecided_verdict_promises_nothing_of_more_users():
    """What seeds add to the interval, no number of users takes away."""
    low, high = -0.01, 0.01
    for found in ((0.00615, 0.0123), (-0.00615, -0.00615), (0.02, 0.02)):
        gain, over_shuffled = (difference(low, one, high) for one in found)
        assert helps(gain, over_shuffled).endswith("above 0.0123 would be seen")


def test_answers_stand_behind_their_questions_in_short_lines():
    loss = difference(*FLAT, logloss=UP)
    scores = {"auc": 0.7, "auc_sd": 0.01, "logloss": 0.5, "logloss_sd": None}
    model = {
        "arms": {"base": scores, "knowledge": scores},
        "power": power(difference(*FLAT)),
        "verdict": helps(loss, loss),
        "lossless": lossless(difference(*FLAT), difference(*UP), 1e-3, 1234),
    }
    lines = list(told({"models": {"din": model}}))
    assert lines[0] == ("din, base:      AUC 0.7000 (sd 0.0100), log loss 0.5000 (sd unknown)")
    asked = [line for line in lines if "?" in line]
    assert asked[0].startswith("din: Can the check see a gain? No: AUC +0.0000, 95 % interval")
    assert asked[1].startswith("din: Does knowledge help? No evidence at this size: AUC +0.0000")
    assert asked[2].startswith("din: Is acceleration lossless? Not enough data to say: AUC +0.0000")
    assert "it would take some 190,000 test users instead of 1,234" in lines[-1]
    assert max(map(len, lines)) <= 160


def test_the_verdict_mentions_the_log_loss_where_its_interval_excludes_zero():
    worse, better = (difference(*FLAT, logloss=loss) for loss in (UP, DOWN))
    assert helps(worse, worse).endswith(
        "; log loss is worse: +0.0200, 95 % interval +0.0100 to +0.0300"
    )
    assert "; log loss is better: -0.0200, 95 %" in helps(better, better)
    assert "log loss" not in helps(difference(*UP), difference(*UP))


def test_a_threshold_above_zero_asks_for_a_gain_that_was_seen():
    def model(gain, over_shuffled=UP):
        told = "not enough data to say: one label"
        parts = {"gain": difference(*gain), "gain_over_shuffled": difference(*over_shuffled)}
        return parts | {"lossless": told}

    result = {"models": {"din": model(UP), "dcnv2": model((NAN, NAN, NAN))}}
    require_gain(result, CtrSettings())
    require_gain(result, CtrSettings(min_auc_gain=0.02))
    with pytest.raises(CheckError, match=r"is 0\.021, but knowledge gains din \+0\.0200 \(better"):
        require_gain(result, CtrSettings(min_auc_gain=0.021))
    for lucky in (model((-0.01, 0.02, 0.05)), model(UP, over_shuffled=FLAT)):
        with pytest.raises(CheckError, match="knowledge gains din"):
            require_gain({"models": {"din": lucky}}, CtrSettings(min_auc_gain=0.02))
    flat = {"models": {"din": model(FLAT), "dcnv2": model(DOWN)}}
    require_gain(flat, CtrSettings(min_auc_gain=-0.005))
    with pytest.raises(CheckError, match=r"dcnv2 -0\.0200"):
        require_gain({"models": {"dcnv2": model(DOWN)}}, CtrSettings(min_auc_gain=-0.005))


def test_lossless_is_asked_of_all_models():
    both = {name: {"lossless": "lossless: AUC", "gain": {}} for name in ("din", "dcnv2")}
    require_gain({"models": both}, CtrSettings(require_lossless=True))
    both["din"] = {"lossless": "not enough data to say: one label", "gain": {}}
    with pytest.raises(CheckError, match="require_lossless is set, but din: not enough data"):
        require_gain({"models": both}, CtrSettings(require_lossless=True))


def test_every_arm_tries_the_same_settings_and_keeps_the_best_on_valid_rows():
    settings = CtrSettings(models=["lr", "din"], learning_rates=[1e-3, 1e-2], dropouts=[0.0, 0.5])
    first = first_tasks(settings, ["base", "knowledge"], seed=5)
    assert len(first) == len(set(first)) == 2 * 2 * 4
    of_arms = [{t.trial for t in first if t.arm == arm} for arm in ("base", "knowledge")]
    assert of_arms[0] == of_arms[1]
    rates = {"base": 1e-2, "knowledge": 1e-3}  # where each does best
    tried = [
        training.Fit(
            task, np.zeros(1), 0.6 + 0.1 * (task.trial.learning_rate == rates[task.arm]), 1
        )
        for task in first
    ]
    best = tuned(tried)
    assert {key: task.trial for key, task in best.items()} == {
        (model, arm): Trial(rate, 0.0) for model in ("lr", "din") for arm, rate in rates.items()
    }
    others = other_tasks(best, settings)
    assert {task.seed for task in others} == {6, 7, 8, 9}
    assert len(others) == 4 * len(best)
    more = [training.Fit(task, np.zeros(1), 0.0, 1) for task in others]
    kept = chosen([*more, *tried], seed=5)
    assert {fit.task for fit in kept} == {*best.values(), *others}


def test_lossless_is_said_within_the_margin_only_and_what_would_be_needed_otherwise():
    def said(low, auc, high, margin=1e-3, plain=UP):
        return lossless(difference(low, auc, high), difference(*plain), margin, users=100)

    found = "lossless: AUC +0.0000, 95 % interval -0.0009 to +0.0009, not worse than plain decoding"
    assert said(-0.0009, 0.0, 0.0009) == f"{found} by 0.001"
    assert said(-0.0009, 0.0, 0.0009, plain=FLAT).startswith(f"{found} by 0.001; but plain")
    assert said(-0.03, -0.02, -0.0011).startswith("not lossless: AUC -0.0200")
    # An error of 0.0123 / 2.8 has to come down to 0.001 / 2.8: 151.29 times the users.
    assert said(-0.01, 0.0, 0.01).startswith("not enough data to say: AUC +0.0000")
    assert "it would take some 15,000 test users instead of 100" in said(-0.01, 0.0, 0.01)
    # With half the room, twice as small.
    assert "some 61,000 test users" in said(-0.01, -0.0005, 0.01)
    assert "instead of 100" in said(-0.0301, 0.0, 0.01, margin=0.03)  # never fewer than there are
    assert "some 101 test users" in said(-0.0301, 0.0, 0.01, margin=0.03)
    assert said(-0.01, -0.001, 0.01).endswith("so more users may show a loss")
    assert said(-0.01, 0.0, 0.01, margin=0.02).startswith("lossless")
    unknown = difference(NAN, NAN, NAN, "one label", logloss=(NAN, 0.1, NAN))
    assert lossless(unknown, unknown, 1e-3, 100) == "not enough data to say: one label"
    assert lossless(None, None, 1e-3, 100).startswith(
        "not measured: no run with plainly decoded texts is named"
    )


def test_settings_that_tie_are_one_choice_whatever_finishes_first(planted, fits):
    """Dropout is nothing to the base arm of LR, so its two settings tie always."""
    data, _ = planted
    settings = SETTINGS.model_copy(update={"models": ["din"], "seeds": 3, "dropouts": [0.0, 0.5]})
    rng = np.random.default_rng(1)
    first = [
        replace(of("din", task.arm, fits)[0], task=task, valid_auc=0.6)
        for task in first_tasks(settings, ARMS, seed=0)
    ]
    later = [
        training.Fit(task, rng.random(400, np.float32), 0.6, 1)
        for task in other_tasks(tuned(first), settings)
    ]
    results = [
        json.dumps(summarise(data, order, settings, 0))
        for order in (first + later, later + first[::-1])
    ]
    assert results[0] == results[1]
    assert json.loads(results[0])["models"]["din"]["arms"]["base"]["auc_sd"] > 0


def test_an_arm_that_lacks_a_seed_is_no_arm(planted, fits):
    lacking = [fit for fit in fits if fit.task != of("din", "base", fits)[1].task]
    with pytest.raises(AssertionError, match="paired by seed"):
        summarise(planted[0], lacking, SETTINGS, 0)


def test_a_model_that_diverges_loses_and_one_that_always_does_is_named(planted):
    data, vectors = planted
    arms = make_arms(data, vectors, {}, None)
    task = Task("dcnv2", "base", 3, Trial(1e30, 0.0))
    diverged = training.fit_one(data, arms["base"], task, SETTINGS)
    assert diverged.has_diverged
    assert not diverged.test_probabilities.any()
    sound = replace(diverged, task=task._replace(trial=Trial(1e-3, 0.0)), valid_auc=0.5)
    assert tuned([diverged, sound])["dcnv2", "base"].trial.learning_rate == 1e-3
    with pytest.raises(ConfigError, match="dcnv2 of arm base diverged with seed 3; lower"):
        tuned([diverged])


def test_a_canary_that_does_not_trip_takes_the_power_from_the_check():
    assert power(difference(*UP)).startswith("yes, the canary trips: AUC +0.0200")
    assert power(difference(*FLAT)).startswith("no: AUC +0.0000")
    assert power(None).startswith("unknown")


def test_the_canary_trips_where_users_differ_in_what_they_like(planted):
    data, vectors = planted
    arms = make_arms(data, vectors, {"canary": None, "zeros": None}, None)
    fits = [
        training.fit_one(data, arms[arm], Task("dcnv2", arm, seed, Trial(3e-3, 0.0)), SETTINGS)
        for arm in arms
        for seed in (0, 1)
    ]
    result = summarise(data, fits, SETTINGS, seed=0)["models"]["dcnv2"]
    assert result["power"].startswith("yes, the canary trips")
    assert result["gains"]["canary"]["low"] > 0
    assert result["gains"]["zeros"]["low"] < 0 < result["gains"]["zeros"]["high"]
    assert result["lossless"].startswith("not measured")
