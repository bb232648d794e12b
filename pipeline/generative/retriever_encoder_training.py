"""SpecGR++ (Ding et al., AAAI'26): the recommender learns to encode items and histories as well.

Stage 1 is contrastive, stage 2 learns to rank with the vectors of items held fast; beside both goes
the loss of the next code, so that it stays a recommender. Stage 2 teaches histories to meet the
vectors that stage 1 ends with, and its own weights no longer make these; so an item that comes
later is encoded by those of stage 1, which are kept.
"""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from pipeline.errors import DataError
from pipeline.generative.event_log import NO_ITEM
from pipeline.generative.recommender import Recommender, load_recommender
from pipeline.generative.recommender_training import causal, code_log_probs, tokens_of
from pipeline.generative.retriever import EncoderTower, Retriever, load_retriever
from pipeline.generative.retriever_losses import contrastive_loss, ranking_loss, recall
from pipeline.generative.retriever_training import Lessons, before_items, ends_of
from pipeline.generative.training_loop import Fit, fit
from pipeline.generative.windows import draw_windows
from pipeline.generative_config import RetrieverSettings


class EncoderAndTower(nn.Module):
    """What SpecGR++ trains as one."""

    def __init__(self, model: Recommender, dim: int) -> None:
        super().__init__()
        self.model, self.tower = model, EncoderTower(model.width, dim)

    def all_items(self, codes: np.ndarray) -> torch.Tensor:
        """Unit vectors of all items as they are now: (items, dim)."""
        return self.tower.all_items(self.model, codes)

    def save(self, folder: Path) -> None:
        """Write model and tower; no pickle."""
        self.model.save(folder)
        Retriever(self.tower, torch.zeros(0, self.tower.shape["dim"])).save(folder)


def load_encoder_and_tower(folder: Path) -> EncoderAndTower:
    """Read what `EncoderAndTower.save` wrote, in evaluation mode.

    Raises:
        DataError: something is missing or damaged.
    """
    tower = load_retriever(folder).tower
    if not isinstance(tower, EncoderTower):
        raise DataError(f"{folder} holds no encoder of items; move it away and run again")
    both = EncoderAndTower(load_recommender(folder), tower.shape["dim"])
    both.tower = tower
    return both.eval()


class TrainedEncoder(NamedTuple):
    """What both stages leave, beside the model that they trained."""

    retriever: Retriever
    items: EncoderAndTower  # as it was after stage 1: makes the vector of any item
    stages: list[Fit]


class Cuts(NamedTuple):
    """Windows of a batch, cut before every item."""

    users: torch.Tensor  # (cuts, dim), unit vectors of what stands before
    targets: torch.Tensor  # (cuts,) int64, the item after
    groups: torch.Tensor  # (cuts,) int64, window
    loss: torch.Tensor  # () of the next code in the windows: L_Gen


def read_windows(both: EncoderAndTower, items: np.ndarray, codes: np.ndarray) -> Cuts:
    """One pass over windows (rows, most): the loss of the next code, and vectors of all cuts.

    A token sees none after it, so the mean over what stands before a cut is that of the history
    alone, and every cut comes out of the same pass. Cuts before the first item are left out.
    """
    model = both.model
    histories = tokens_of(items, codes, model)
    hidden = model(histories.tokens, *causal(histories))
    loss = -code_log_probs(model, hidden, histories).mean()
    users = both.tower.vectors(before_items(running_mean(hidden), model.levels))[:, 1:]
    own = torch.as_tensor(items, device=hidden.device)[:, 1 : 1 + users.shape[1]]
    is_item = own != NO_ITEM
    groups = torch.arange(len(own), device=hidden.device)[:, None].expand_as(own)
    return Cuts(users[is_item], own[is_item], groups[is_item], loss)


def running_mean(hidden: torch.Tensor) -> torch.Tensor:
    """Mean over each token and all before it: (rows, n, width)."""
    counts = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    return hidden.float().cumsum(1) / counts[:, None]


def train_encoder_tower(
    model: Recommender, lessons: Lessons, settings: RetrieverSettings, checkpoint: Path | None
) -> TrainedEncoder:
    """Go on training `model`, in place, as recommender and encoder in one.

    The vectors of all items, cold ones too, are those that stage 1 ends with.

    Args:
        model: a trained recommender.
        lessons: see there; recall@50 of held-out items among warm ones decides when to stop.
        settings: see there.
        checkpoint: see `fit`; each stage has its own beside it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lessons.seed)
        both = EncoderAndTower(model, settings.dim).to(model.device)

    def contrast(cuts: Cuts) -> torch.Tensor:
        unique, place = cuts.targets.unique(return_inverse=True)
        items = both.tower.items(model, lessons.codes[unique.cpu().numpy()])[place]
        own = contrastive_loss(cuts.users, items, cuts.targets, cuts.groups, settings.temperature)
        return settings.contrastive_weight * own

    def current() -> torch.Tensor:
        return both.tower.all_items(model, lessons.codes)

    stage_1 = _stage(1, both, contrast, current, lessons, settings, checkpoint)
    first, frozen = copy.deepcopy(both), current()
    prior = frozen.new_zeros(len(frozen)).masked_fill(~lessons.warm_on(frozen.device), -torch.inf)

    def rank(cuts: Cuts) -> torch.Tensor:
        own = ranking_loss(cuts.users, frozen, cuts.targets, prior, settings.temperature)
        return settings.ranking_weight * own

    stage_2 = _stage(2, both, rank, lambda: frozen, lessons, settings, checkpoint)
    return TrainedEncoder(Retriever(both.tower, frozen), first, [stage_1, stage_2])


def _stage(
    number: int,
    both: EncoderAndTower,
    lesson: Callable[[Cuts], torch.Tensor],
    items: Callable[[], torch.Tensor],
    lessons: Lessons,
    settings: RetrieverSettings,
    checkpoint: Path | None,
) -> Fit:
    """Train by a lesson and by the loss of the next code."""
    training, codes = settings.training, lessons.codes

    def losses(epoch: int) -> Iterator[torch.Tensor]:
        windows = draw_windows(lessons.train, lessons.most + 1, [lessons.seed, number, epoch])
        for start in range(0, len(windows), training.batch_size):
            cuts = read_windows(both, windows[start : start + training.batch_size], codes)
            # Windows of one item have nothing to be found.
            yield cuts.loss + lesson(cuts) if len(cuts.targets) else cuts.loss

    @torch.no_grad()
    def evaluate() -> float:
        held = lessons.stop_by
        means = ends_of(both.model, held.histories, codes, lambda session: session.mean)
        users, targets = both.tower.vectors(means), torch.as_tensor(held.targets)
        warm = lessons.warm_on(users.device)
        return recall(users, items(), targets.to(users.device), warm)

    judge = evaluate if len(lessons.stop_by) else None
    place = checkpoint and checkpoint.with_stem(f"{checkpoint.stem}-stage{number}")
    return fit(both, losses, judge, training, place, f"retriever, stage {number}")
