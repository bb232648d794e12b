"""Training with early stopping that a killed job takes up again where it was, to the bit."""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from pipeline.errors import ConfigError
from pipeline.generative_config import TrainingSettings
from pipeline.parts import write_atomically

log = logging.getLogger(__name__)

_CLIP = 1.0  # norm of a gradient
_SILENCE = 30  # s, at most, in the log
_NOTE = "progress"


@dataclass
class Fit:
    """How a training went."""

    start: float = -math.inf  # the figure before the first epoch
    losses: list[float] = field(default_factory=list)  # mean of every epoch
    figures: list[float] = field(default_factory=list)  # of held-out events, after every epoch
    steps: int = 0
    best_epoch: int = 0  # from 1 on; 0: none was better than what training began with
    seconds: float = 0.0

    @property
    def epochs(self) -> int:
        """Epochs done."""
        return len(self.losses)

    @property
    def best(self) -> float:
        """The figure of the best epoch."""
        return self.figures[self.best_epoch - 1] if self.best_epoch else self.start

    def facts(self) -> dict[str, Any]:
        """What a manifest tells of it."""
        return asdict(self) | {"epochs": self.epochs}


def fit(
    module: nn.Module,
    losses: Callable[[int], Iterator[torch.Tensor]],
    evaluate: Callable[[], float] | None,
    settings: TrainingSettings,
    checkpoint: Path | None,
    name: str,
) -> Fit:
    """Train `module` in place, and leave it in evaluation mode with the best epoch's weights.

    They are those it came with if no epoch was better.

    Args:
        module: all parameters that require a gradient are trained.
        losses: of every batch of an epoch (numbered from 1), each made when it is asked for. What
            they draw must follow from the epoch's number alone, and torch's global random state is
            seeded by it, so that a training that was killed ends as it would have.
        evaluate: a figure of held-out events, more is better. None if there are no such events:
            all epochs are run, and the last one counts.
        settings: see there.
        checkpoint: file that is written after every epoch, and read if it is there.
        name: for the log.

    Raises:
        ConfigError: a loss is not finite.
    """
    trained = [own for own in module.parameters() if own.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    run, best = Fit(), _copy(module)
    stored = _stored(checkpoint, name)
    if stored is not None:
        run, best = _resume(stored, module, optimizer)
        log.info("%s: goes on after epoch %d", name, run.epochs)
    elif evaluate is not None:
        run.start = _figure(module, evaluate)
    while run.epochs < settings.max_epochs and run.epochs - run.best_epoch < settings.patience:
        began = time.monotonic()
        with torch.random.fork_rng():  # dropout draws from the global state
            torch.manual_seed(run.epochs)
            run.losses.append(
                _epoch(module, optimizer, run, losses(run.epochs + 1), settings, name)
            )
        figure = _figure(module, evaluate) if evaluate else float(run.epochs)
        run.figures.append(figure)
        if figure > run.best:
            run.best_epoch, best = run.epochs, _copy(module)
        run.seconds = round(run.seconds + time.monotonic() - began, 2)
        log.info(
            "%s: epoch %d of at most %d, loss %.4f, held out %.4f (best %.4f), %.0f s",
            *(name, run.epochs, settings.max_epochs, run.losses[-1], figure, run.best, run.seconds),
        )
        if checkpoint is not None:
            _store(checkpoint, run, module, best, optimizer)
    if not run.best_epoch:
        log.warning("%s: no epoch was better than what training began with", name)
    module.load_state_dict(best)
    module.eval()
    return run


def _figure(module: nn.Module, evaluate: Callable[[], float]) -> float:
    module.eval()
    return evaluate()


def _epoch(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: Fit,
    losses: Iterator[torch.Tensor],
    settings: TrainingSettings,
    name: str,
) -> float:
    """One epoch; the mean loss of its batches."""
    module.train()
    total, count, told = 0.0, 0, time.monotonic()
    parameters = [own for group in optimizer.param_groups for own in group["params"]]
    for loss in losses:
        if not torch.isfinite(loss):
            raise ConfigError(f"{name}: the loss is no longer a number; lower its learning_rate")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, _CLIP)
        run.steps += 1
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, run.steps / (settings.warm_up + 1))
        optimizer.step()
        total += loss.item()
        count += 1
        if time.monotonic() - told > _SILENCE:
            told = time.monotonic()
            log.info(
                "%s: epoch %d, batch %d, loss %.4f", name, run.epochs + 1, count, total / count
            )
    return total / max(count, 1)


def _copy(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _store(
    path: Path,
    run: Fit,
    module: nn.Module,
    best: dict[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Weights, best weights and the optimiser's state in one file, complete or absent."""
    tensors = {f"now/{name}": value for name, value in _copy(module).items()}
    tensors |= {f"best/{name}": value for name, value in best.items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{name}": value.clone() for name, value in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save(tensors, {_NOTE: json.dumps(asdict(run))}))


class _Stored(NamedTuple):
    run: Fit
    tensors: dict[str, torch.Tensor]


def _stored(path: Path | None, name: str) -> _Stored | None:
    """What `_store` wrote; None if there is nothing, or if it is damaged, which is told."""
    if path is None or not path.exists():
        return None
    data = path.read_bytes()
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return _Stored(Fit(**json.loads(header["__metadata__"][_NOTE])), tensors)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: %s is damaged (%s), so training begins anew", name, path, error)
        return None


def _resume(
    stored: _Stored,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> tuple[Fit, dict[str, torch.Tensor]]:
    """Put what was stored into `module` and `optimizer`; the training so far and its best."""
    parts: dict[str, dict[str, torch.Tensor]] = {"now": {}, "best": {}, "optimizer": {}}
    for name, value in stored.tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = value
    module.load_state_dict(parts["now"])
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in parts["optimizer"].items():
        number, _, key = name.partition("/")
        state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    return stored.run, parts["best"]
