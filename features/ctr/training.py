"""One fit: a CTR model trained on the train rows until the validation rows say stop."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from features.ctr.arms import Arm, Told
from features.ctr.auxiliary import AuxiliaryLoss
from features.ctr.candidates import CandidateLists
from features.ctr.data import CtrData
from features.ctr.metrics import auc
from features.ctr.models import MODELS
from features.ctr.models.candidate_input import CandidateInput
from features.ctr.models.rows import KnowledgeInput, RowInput, make_batch
from features.frameworks import framework_named
from pipeline.config import CtrSettings

_SCORED_ROWS = 8192  # per forward pass without gradients


class Trial(NamedTuple):
    """What is tuned."""

    learning_rate: float
    dropout: float


class Task(NamedTuple):
    """What a fit is of."""

    model: str
    arm: str
    seed: int
    trial: Trial


@dataclass(frozen=True)
class Fit:
    """One trained model."""

    task: Task
    test_probabilities: np.ndarray  # (test rows,) float32
    valid_auc: float  # of the epoch kept; -inf where it diverged
    epochs: int  # trained, those after the kept one included

    @property
    def has_diverged(self) -> bool:
        """Whether its scores were no numbers, so that it has none."""
        return self.valid_auc == -math.inf


def fit_one(
    data: CtrData, arm: Arm, task: Task, settings: CtrSettings, framework: str = "kar"
) -> Fit:
    """Train one model until validation AUC stops rising, and score the test rows with the best.

    A seed decides initial weights, order of rows, dropout and the placebo; one seed gives one
    result, to the bit. Trains on one CPU thread. A model that diverges loses by its validation AUC.
    """
    with _reproducible(task.seed):
        told = arm.of(data, task.seed)
        network, auxiliary = build_network(
            data, told, settings, task.model, framework, task.trial.dropout
        )
        if not arm.is_aligned:
            auxiliary = None
        valid_auc, epochs = _train(network, auxiliary, data, settings, task)
        test = _probabilities(network, data, data.splits["test"])
        if valid_auc == -math.inf:
            test = np.zeros_like(test)
    return Fit(task, test, valid_auc, epochs)


def build_network(
    data: CtrData,
    told: Told | None,
    settings: CtrSettings,
    model: str,
    framework: str = "kar",
    dropout: float = 0.0,
) -> tuple[nn.Module, AuxiliaryLoss | None]:
    """An untrained model, and its framework's own loss, if there is one.

    A model that embeds nothing has no vectors that text could be aligned with.
    """
    dim, chosen = settings.embedding_dim, framework_named(framework)
    rows = RowInput(data, dim, dropout)
    if told is None:
        return MODELS[model](rows, dim, None), None
    if isinstance(told, CandidateLists):
        lists = CandidateInput(told, settings.adaptor_dim, dropout)
        return MODELS[model](rows, dim, lists), None
    knowledge = KnowledgeInput(told, settings.adaptor_dim, chosen.adaptor, dropout)
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
    task: Task,
) -> tuple[float, int]:
    """Train in place, leave the best epoch's weights; its validation AUC, and epochs trained."""
    optimizer = torch.optim.AdamW(
        [*network.parameters(), *(auxiliary.parameters() if auxiliary else ())],
        lr=task.trial.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    rng = np.random.default_rng(task.seed)
    valid = data.splits["valid"]
    best_auc, best_epoch, best_state = -math.inf, 0, network.state_dict()
    epoch = 0
    for epoch in range(1, settings.max_epochs + 1):
        _train_epoch(network, auxiliary, data, optimizer, settings.batch_size, rng)
        scores = _probabilities(network, data, valid)
        if not np.isfinite(scores).all():
            return -math.inf, epoch
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
