"""Does knowledge help a CTR model, and is it as good as plainly decoded? Arms on equal terms.

Each arm of each model tries the same settings with its first seed, and keeps the one with the best
validation AUC; then all seeds are trained with it. Test rows decide nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np

from features.ctr import verdict
from features.ctr.arms import ARMS, BASE, CANARY, KNOWLEDGE, PLAIN, SHUFFLED
from features.ctr.bootstrap import difference, resample
from features.ctr.data import CtrData
from features.ctr.metrics import (
    auc,
    calibration_error,
    calibration_ratio,
    gauc,
    gauc_coverage,
    logloss,
)
from features.ctr.slices import slice_aucs, slices_of
from features.ctr.training import Fit, Task, Trial
from pipeline.config import CtrSettings
from pipeline.errors import ConfigError


def first_tasks(settings: CtrSettings, arms: Iterable[str], seed: int) -> list[Task]:
    """Every setting of every arm, with the first seed."""
    trials = [Trial(*pair) for pair in product(settings.learning_rates, settings.dropouts)]
    return [Task(*parts[:2], seed, parts[2]) for parts in product(settings.models, arms, trials)]


def tuned(fits: Iterable[Fit]) -> dict[tuple[str, str], Task]:
    """Of each model and arm the task with the best validation AUC, the gentlest among equals.

    Raises:
        ConfigError: a model diverged with every setting.
    """
    best: dict[tuple[str, str], Fit] = {}
    for fit in sorted(fits, key=lambda fit: fit.task.trial):  # not in the order they finished
        key = fit.task.model, fit.task.arm
        if key not in best or fit.valid_auc > best[key].valid_auc:
            best[key] = fit
    require_finite(best.values())
    return {key: fit.task for key, fit in best.items()}


def require_finite(fits: Iterable[Fit]) -> None:
    """Check that no model diverged.

    Raises:
        ConfigError: one did.
    """
    for fit in fits:
        if fit.has_diverged:
            model, arm, seed, _ = fit.task
            raise ConfigError(
                f"the CTR model {model} of arm {arm} diverged with seed {seed}; lower "
                "ctr.learning_rates"
            )


def chosen(fits: Sequence[Fit], seed: int) -> list[Fit]:
    """The fits with the setting that is best by the first seed."""
    best = tuned(fit for fit in fits if fit.task.seed == seed)
    kept = [fit for fit in fits if fit.task.trial == best[fit.task.model, fit.task.arm].trial]
    require_finite(kept)
    return kept


def other_tasks(best: Mapping[tuple[str, str], Task], settings: CtrSettings) -> list[Task]:
    """The tasks of all seeds but the first, seed by seed."""
    return [
        task._replace(seed=task.seed + number)
        for number in range(1, settings.seeds)
        for task in best.values()
    ]


def summarise(
    data: CtrData, fits: Sequence[Fit], settings: CtrSettings, seed: int
) -> dict[str, Any]:
    """Metrics of every model and arm, and what knowledge gained, as plain JSON values.

    Arms are compared seed by seed, on the same bootstrap draws: a gain is the difference of two
    arms' mean AUC. A number that cannot be had is null, and `reason` says why. `fits` may hold
    those of settings that were not chosen.
    """
    test, fits = data.splits["test"], chosen(fits, seed)
    return {
        "rows": {name: len(rows) for name, rows in data.splits.items()},
        "test_users": len(np.unique(data.users[test])),
        "gauc_coverage": gauc_coverage(data.labels[test], data.users[test]),
        "slices": slices_of(data),
        "models": {
            model: _summary_of(of_model, data, settings, seed)
            for model in settings.models
            if (of_model := [fit for fit in fits if fit.task.model == model])
        },
        "seeds": settings.seeds,
    }


def _summary_of(
    fits: Sequence[Fit], data: CtrData, settings: CtrSettings, seed: int
) -> dict[str, Any]:
    test = data.splits["test"]
    labels, users = data.labels[test], data.users[test]
    num_users = len(np.unique(users))
    fits = sorted(fits, key=lambda fit: fit.task.seed)  # a mean in another order is another number
    seeds = {arm: [fit.task.seed for fit in fits if fit.task.arm == arm] for arm in ARMS}
    assert all(found in ([], seeds[BASE]) for found in seeds.values()), "arms are paired by seed"
    scores = {
        arm: np.stack([fit.test_probabilities for fit in fits if fit.task.arm == arm])
        for arm in sorted({fit.task.arm for fit in fits}, key=ARMS.index)
    }  # (seeds, test rows)
    drawn = {
        arm: resample(labels, rows, users, settings.bootstrap, seed) for arm, rows in scores.items()
    }

    def gain(arm: str, over: str) -> dict[str, Any]:
        return _without_nan(asdict(difference(drawn[over], drawn[arm])))

    gains = {arm: gain(arm, BASE) for arm in scores if arm != BASE}
    over_shuffled = gain(KNOWLEDGE, SHUFFLED)
    over_plain = gain(KNOWLEDGE, PLAIN) if PLAIN in drawn else None
    return {
        "arms": {arm: _arm_metrics(labels, rows, users) for arm, rows in scores.items()},
        "settings": {
            arm: next(fit.task.trial._asdict() for fit in fits if fit.task.arm == arm)
            for arm in scores
        },
        "slices": slice_aucs(data, scores),
        "gains": gains,
        "gain": gains[KNOWLEDGE],
        "gain_over_shuffled": over_shuffled,
        "gain_over_plain": over_plain,
        "power": verdict.power(gains.get(CANARY)),
        "verdict": verdict.helps(gains[KNOWLEDGE], over_shuffled),
        "lossless": verdict.lossless(
            over_plain, gains.get(PLAIN), settings.lossless_margin, num_users
        ),
    }


def _arm_metrics(
    labels: np.ndarray, scores: np.ndarray, users: np.ndarray
) -> dict[str, float | None]:
    """Means over seeds, and standard deviations of the two that verdicts are about."""
    aucs = np.array([auc(labels, row) for row in scores])
    losses = np.array([logloss(labels, row) for row in scores])
    ratios = [calibration_ratio(labels, row) for row in scores]
    errors = [calibration_error(labels, row) for row in scores]
    return _without_nan(
        {
            "auc": float(aucs.mean()),
            "auc_sd": float(aucs.std(ddof=1)),
            "logloss": float(losses.mean()),
            "logloss_sd": float(losses.std(ddof=1)),
            "gauc": float(np.mean([gauc(labels, row, users) for row in scores])),
            "calibration_ratio": float(np.mean(ratios)),
            "calibration_error": float(np.mean(errors)),
        }
    )


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in values.items()
    }
