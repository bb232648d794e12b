"""Does knowledge help a CTR model? Train with and without it, on several seeds, and compare.

Arms: `base` (no knowledge), `knowledge`, and `shuffled`, the placebo: same vectors, wrong owners.
`base` has no adaptor and no loss of a framework, the placebo has no such loss: where that loss
teaches ids (RLMRec's does), it would draw them toward the texts of others, and the placebo would do
harm. All else is equal. The validation part alone decides when to stop.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from features.ctr.auxiliary import AuxiliaryLoss
from features.ctr.data import CtrData
from features.ctr.join import KnowledgeVectors
from features.ctr.metrics import (
    auc,
    calibration_error,
    calibration_ratio,
    gauc,
    gauc_coverage,
    logloss,
    paired_difference,
)
from features.ctr.models import MODELS
from features.ctr.models.rows import KnowledgeInput, RowInput, make_batch
from features.ctr.slices import slice_aucs, slices_of
from features.ctr.verdict import verdict
from features.frameworks import framework_named
from pipeline.config import CtrSettings
from pipeline.errors import ConfigError

ARMS = ("base", "knowledge", "shuffled")
_SCORED_ROWS = 8192  # per forward pass without gradients


@dataclass(frozen=True)
class Fit:
    """One trained model."""

    model: str
    arm: str
    seed: int
    test_probabilities: np.ndarray  # (test rows,) float32
    valid_auc: float  # of the epoch kept
    epochs: int  # trained, those after the kept one included


def fit_one(
    data: CtrData,
    vectors: KnowledgeVectors,
    settings: CtrSettings,
    model: str,
    arm: str,
    seed: int,
    framework: str = "kar",
) -> Fit:
    """Train one model until validation AUC stops rising, and score the test rows with the best.

    A seed decides initial weights, order of rows and the placebo; one seed gives one result, to
    the bit. Trains on one CPU thread.

    Raises:
        ConfigError: training diverged.
    """
    if arm == "shuffled":
        vectors = vectors.shuffled(seed)
    with _reproducible(seed):
        known = None if arm == "base" else vectors
        network, auxiliary = build_network(data, known, settings, model, framework)
        if arm == "shuffled":
            auxiliary = None
        valid_auc, epochs = _train(network, auxiliary, data, settings, seed)
        test = _probabilities(network, data, data.splits["test"])
    return Fit(model, arm, seed, test, valid_auc, epochs)


def build_network(
    data: CtrData,
    vectors: KnowledgeVectors | None,
    settings: CtrSettings,
    model: str,
    framework: str = "kar",
) -> tuple[nn.Module, AuxiliaryLoss | None]:
    """An untrained model, and its framework's own loss, if there is one.

    A model that embeds nothing has no vectors that text could be aligned with.
    """
    dim, chosen = settings.embedding_dim, framework_named(framework)
    rows = RowInput(data, dim)
    if vectors is None:
        return MODELS[model](rows, dim, None), None
    knowledge = KnowledgeInput(vectors, settings.adaptor_dim, chosen.adaptor)
    network: nn.Module = MODELS[model](rows, dim, knowledge)
    if chosen.auxiliary is None or rows not in set(network.modules()):
        return network, None
    loss = chosen.auxiliary(settings.adaptor_dim, dim)
    return network, AuxiliaryLoss(rows, knowledge, loss, chosen.auxiliary_weight)


def _train(
    network: nn.Module,
    auxiliary: AuxiliaryLoss | None,
    data: CtrData,
    settings: CtrSettings,
    seed: int,
) -> tuple[float, int]:
    """Train in place, leave the best epoch's weights; its validation AUC, and epochs trained."""
    optimizer = torch.optim.AdamW(
        [*network.parameters(), *(auxiliary.parameters() if auxiliary else ())],
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    rng = np.random.default_rng(seed)
    valid = data.splits["valid"]
    best_auc, best_epoch, best_state = -math.inf, 0, network.state_dict()
    epoch = 0
    for epoch in range(1, settings.max_epochs + 1):
        _train_epoch(network, auxiliary, data, optimizer, settings.batch_size, rng)
        scores = _probabilities(network, data, valid)
        if not np.isfinite(scores).all():
            raise ConfigError("a CTR model diverged; lower ctr.learning_rate")
        valid_auc = auc(data.labels[valid], scores)
        if valid_auc > best_auc:
            best_auc, best_epoch = valid_auc, epoch
            best_state = {name: value.clone() for name, value in network.state_dict().items()}
        elif epoch - best_epoch >= settings.patience:
            break
    network.load_state_dict(best_state)
    return best_auc, epoch


def _train_epoch(
    network: nn.Module,
    auxiliary: AuxiliaryLoss | None,
    data: CtrData,
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    rng: np.random.Generator,
) -> None:
    network.train()
    order = rng.permutation(data.splits["train"])
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch, labels = make_batch(data, rows), torch.from_numpy(data.labels[rows])
        loss = nn.functional.binary_cross_entropy_with_logits(network(batch), labels)
        if auxiliary is not None:
            loss = loss + auxiliary(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.inference_mode()
def _probabilities(network: nn.Module, data: CtrData, rows: np.ndarray) -> np.ndarray:
    """(rows,) float32."""
    network.eval()
    parts = [
        torch.sigmoid(network(make_batch(data, rows[start : start + _SCORED_ROWS])))
        for start in range(0, len(rows), _SCORED_ROWS)
    ]
    return torch.cat(parts).numpy()


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """Seeded, deterministic kernels, one thread; the caller's state comes back afterwards."""
    threads, was_deterministic = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was_deterministic)
            torch.set_num_threads(threads)


def summarise(
    data: CtrData, fits: Sequence[Fit], settings: CtrSettings, seed: int
) -> dict[str, Any]:
    """Metrics of every model and arm, and what knowledge gained, as plain JSON values.

    Arms are compared seed by seed, on the same bootstrap draws: a gain is the difference of two
    arms' mean AUC. A number that cannot be had is null, and `reason` says why.
    """
    test = data.splits["test"]
    return {
        "rows": {name: len(rows) for name, rows in data.splits.items()},
        "test_users": len(np.unique(data.users[test])),
        "gauc_coverage": gauc_coverage(data.labels[test], data.users[test]),
        "slices": slices_of(data),
        "models": {
            model: _summary_of([fit for fit in fits if fit.model == model], data, settings, seed)
            for model in settings.models
        },
        "seeds": settings.seeds,
    }


def _summary_of(
    fits: Sequence[Fit], data: CtrData, settings: CtrSettings, seed: int
) -> dict[str, Any]:
    test = data.splits["test"]
    labels, users = data.labels[test], data.users[test]
    fits = sorted(fits, key=lambda fit: fit.seed)  # a mean in another order is another number
    scores = {
        arm: np.stack([fit.test_probabilities for fit in fits if fit.arm == arm]) for arm in ARMS
    }  # (seeds, test rows)
    gain, over_shuffled = (
        _without_nan(
            asdict(
                paired_difference(
                    labels, scores[arm], scores["knowledge"], users, settings.bootstrap, seed
                )
            )
        )
        for arm in ("base", "shuffled")
    )
    return {
        "arms": {arm: _arm_metrics(labels, scores[arm], users) for arm in ARMS},
        "slices": slice_aucs(data, scores),
        "gain": gain,
        "gain_over_shuffled": over_shuffled,
        "verdict": verdict(gain, over_shuffled),
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
