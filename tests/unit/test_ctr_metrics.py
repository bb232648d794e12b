"""AUC against scikit-learn, the bootstrap against a loop and against what it must show."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from features.ctr import bootstrap
from features.ctr.bootstrap import difference as difference_of
from features.ctr.bootstrap import resample, weighted_auc
from features.ctr.metrics import (
    auc,
    auc_by_user,
    calibration_error,
    calibration_ratio,
    gauc,
    gauc_coverage,
    logloss,
)


def paired_difference(labels, first, second, users, draws, seed):
    return difference_of(*(resample(labels, arm, users, draws, seed) for arm in (first, second)))


def sample(rows=400, users=40, seed=0):
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < 0.5).astype(np.float32)
    good = 0.5 + 0.4 * (labels - 0.5) + 0.2 * (rng.random(rows) - 0.5)
    poor = rng.random(rows)
    return labels, good, poor, rng.integers(0, users, rows)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 5))
def test_weighted_auc_equals_scikit_learn_with_ties(seed, rows, levels):
    rng = np.random.default_rng(seed)
    labels = np.r_[0.0, 1.0, rng.integers(0, 2, rows - 2)]
    scores = rng.integers(0, levels, rows) / levels
    weights = rng.integers(1, 4, (3, rows)).astype(float)
    wanted = [roc_auc_score(labels, scores, sample_weight=row) for row in weights]
    assert weighted_auc(labels, scores, weights) == pytest.approx(wanted)


def test_weighted_auc_without_one_label_is_nan():
    weights = np.array([[1.0, 0.0], [1.0, 2.0]])
    drawn = weighted_auc(np.array([0.0, 1.0]), np.array([0.2, 0.7]), weights)
    assert math.isnan(drawn[0])
    assert drawn[1] == 1.0


def test_logloss_equals_scikit_learn_and_survives_certainty():
    labels, good, _, _ = sample()
    assert logloss(labels, good) == pytest.approx(log_loss(labels, good))
    assert logloss(np.array([1.0]), np.array([0.0], np.float32)) == pytest.approx(-math.log(1e-7))


def one_seed(first, second):
    """(1, rows) each."""
    return first[np.newaxis], second[np.newaxis]


def test_one_label_gives_nan_and_a_reason():
    _, good, poor, users = sample()
    labels = np.ones(len(users))
    assert math.isnan(auc(labels, good))
    difference = paired_difference(labels, *one_seed(poor, good), users, 100, 0)
    assert difference.reason == "all 400 test rows have one label"
    assert math.isnan(difference.auc)
    assert math.isnan(difference.low)
    assert math.isnan(difference.mde)
    assert difference.logloss == pytest.approx(logloss(labels, good) - logloss(labels, poor))


def test_one_user_cannot_be_resampled():
    labels, good, poor, users = sample()
    difference = paired_difference(labels, *one_seed(poor, good), np.zeros_like(users), 100, 0)
    assert difference.reason == "the test rows belong to one user"


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_bootstrap_equals_a_loop_over_the_same_draws(seeds):
    labels, _, _, users = sample(rows=120, users=15)
    runs = [sample(rows=120, users=15, seed=seed) for seed in range(seeds)]
    good = np.stack([0.3 + 0.4 * labels + run[2] for run in runs]) / 2
    poor = np.stack([run[2][::-1] for run in runs])
    difference = paired_difference(labels, poor, good, users, 60, 7)
    names = np.unique(users)
    counts = np.random.default_rng(7).multinomial(len(names), [1 / len(names)] * len(names), 60)
    num_drawn = max(1, seeds - 1)
    of_seeds = np.random.default_rng([7, 1]).multinomial(num_drawn, [1 / seeds] * seeds, 60)
    assert (of_seeds.std(axis=1).max() > 0) == (seeds > 1)
    aucs, losses = [], []
    for count, of_seed in zip(counts, of_seeds, strict=True):
        rows = np.concatenate(
            [
                np.tile(np.flatnonzero(users == name), k)
                for name, k in zip(names, count, strict=True)
            ]
        ).astype(int)
        drawn = np.repeat(np.arange(seeds), of_seed)
        for metric, found in ((roc_auc_score, aucs), (logloss, losses)):
            gains = [
                metric(labels[rows], good[s, rows]) - metric(labels[rows], poor[s, rows])
                for s in drawn
            ]
            found.append(np.mean(gains))
    assert [difference.low, difference.high] == pytest.approx(np.percentile(aucs, [2.5, 97.5]))
    wanted = np.percentile(losses, [2.5, 97.5])
    assert [difference.logloss_low, difference.logloss_high] == pytest.approx(wanted)
    assert difference.mde == pytest.approx(2.8 * np.std(aucs, ddof=1))
    plain = [auc(labels, g) - auc(labels, p) for g, p in zip(good, poor, strict=True)]
    assert difference.auc == pytest.approx(np.mean(plain))


def test_seeds_that_disagree_widen_the_interval():
    labels, good, poor, users = sample()
    unlike = np.stack([good, poor, good, poor])
    one_level = np.stack([(good + poor) / 2] * 4)
    base = np.stack([np.full(len(labels), 0.5)] * 4)
    wide, narrow = (
        paired_difference(labels, base, arm, users, 300, 0) for arm in (unlike, one_level)
    )
    assert wide.mde > 2 * narrow.mde


def test_chunks_do_not_change_the_draws(monkeypatch):
    labels, good, poor, users = sample()
    whole = paired_difference(labels, *one_seed(poor, good), users, 150, 3)
    monkeypatch.setattr(bootstrap, "_CELLS", 400 * 37)
    assert paired_difference(labels, *one_seed(poor, good), users, 150, 3) == whole


def test_an_arm_against_itself_differs_by_nothing():
    labels, good, _, users = sample()
    difference = paired_difference(labels, *one_seed(good, good), users, 200, 0)
    assert (difference.auc, difference.low, difference.high, difference.mde) == (0, 0, 0, 0)


def test_a_better_arm_has_an_interval_above_zero_and_the_mirror_below():
    labels, good, poor, users = sample()
    gain = paired_difference(labels, *one_seed(poor, good), users, 500, 0)
    loss = paired_difference(labels, *one_seed(good, poor), users, 500, 0)
    assert 0 < gain.low < gain.auc < gain.high
    assert gain.logloss_high < 0
    assert (loss.low, loss.high) == pytest.approx((-gain.high, -gain.low))


def test_repeated_rows_of_a_user_bring_no_certainty():
    labels, good, poor, users = sample()
    once = paired_difference(labels, *one_seed(poor, good), users, 300, 5)
    labels, good, poor, users = (np.repeat(values, 9) for values in (labels, good, poor, users))
    many = paired_difference(labels, *one_seed(poor, good), users, 300, 5)
    assert many.mde == pytest.approx(once.mde)
    alone = paired_difference(labels, *one_seed(poor, good), np.arange(3600), 300, 5)
    assert alone.mde < once.mde / 2


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 5))
def test_auc_by_user_equals_scikit_learn_user_by_user(seed, rows, levels):
    rng = np.random.default_rng(seed)
    labels, users = rng.integers(0, 2, rows).astype(np.float32), rng.integers(0, 5, rows) * 7
    scores = rng.integers(0, levels, rows) / levels
    wanted = [auc(labels[users == user], scores[users == user]) for user in np.unique(users)]
    assert auc_by_user(labels, scores, users) == pytest.approx(wanted, nan_ok=True)


def test_gauc_leaves_out_users_of_one_label_and_weighs_the_others_by_their_rows():
    labels = np.array([1, 0, 1, 0, 0, 1, 1, 1.0])
    scores = np.array([0.9, 0.1, 0.2, 0.5, 0.1, 0.3, 0.9, 0.1])
    users = np.array([3, 3, 8, 8, 8, 8, 5, 5])
    # user 3: 1 of 1 pairs; user 8: 2 of 4; user 5 likes all
    assert gauc(labels, scores, users) == pytest.approx((2 * 1 + 4 * 0.5) / 6)
    assert gauc_coverage(labels, users) == {"rows": 6 / 8, "users": 2 / 3}
    assert math.isnan(gauc(np.ones(8), scores, users))
    assert gauc_coverage(np.ones(8), users) == {"rows": 0.0, "users": 0.0}


def test_gauc_is_blind_to_what_differs_between_users_only():
    labels, good, _, users = sample()
    shifted = good + 10 * users
    assert gauc(labels, shifted, users) == pytest.approx(gauc(labels, good, users))
    assert auc(labels, shifted) < auc(labels, good)


def test_calibration_is_right_for_honest_and_for_bold_predictions():
    rng = np.random.default_rng(0)
    honest = rng.random(20_000).astype(np.float32)
    labels = (rng.random(20_000) < honest).astype(np.float32)
    assert calibration_ratio(labels, honest) == pytest.approx(1, abs=0.02)
    assert calibration_error(labels, honest) < 0.02
    bold = np.full_like(honest, 0.75)
    assert calibration_ratio(labels, bold) == pytest.approx(1.5, abs=0.03)
    assert calibration_error(labels, bold) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("levels", [1, 2, 7])
def test_calibration_does_not_see_the_order_of_rows_of_one_probability(levels):
    rng = np.random.default_rng(levels)
    scores = rng.integers(1, levels + 1, 200) / (levels + 1)
    labels = np.sort((rng.random(200) < scores).astype(np.float32))
    shuffled = rng.permutation(200)
    found = [
        calibration_error(labels[order], scores[order])
        for order in (np.argsort(labels), np.argsort(-labels), shuffled)
    ]
    assert found == pytest.approx([found[0]] * 3)


def test_a_constant_that_is_right_has_no_calibration_error():
    labels = np.repeat([0.0, 1.0], 50)
    assert calibration_error(labels, np.full(100, 0.5, np.float32)) == 0.0


def test_calibration_of_few_rows_and_of_no_likes():
    few = np.array([0.25, 0.5], np.float32)
    assert calibration_error(np.array([0.0, 1.0]), few) == pytest.approx(0.375)
    assert math.isnan(calibration_ratio(np.zeros(2), few))
