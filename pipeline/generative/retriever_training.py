"""Training of the content tower, beside a recommender that stays as it is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pipeline.generative.event_log import NO_ITEM, EventLog
from pipeline.generative.recommender import Recommender
from pipeline.generative.recommender_training import HeldOut, causal, tokens_of
from pipeline.generative.retriever import ContentTower, Retriever
from pipeline.generative.retriever_losses import log_popularity, ranking_loss, recall
from pipeline.generative.session import Session
from pipeline.generative.training_loop import Fit, fit
from pipeline.generative.windows import draw_windows
from pipeline.generative_config import RetrieverSettings

_AT_ONCE = 256  # histories


@dataclass(frozen=True)
class Lessons:
    """What a retriever is trained on and stopped by."""

    train: EventLog  # that may be known
    stop_by: HeldOut  # recall@50 of its targets among warm items decides
    codes: np.ndarray  # (items, levels), semantic IDs
    is_warm: np.ndarray  # (items,) bool, as semantic IDs have it
    most: int  # items of a history
    seed: int

    def warm_on(self, device: torch.device) -> torch.Tensor:
        """Items that may be targets: (items,) bool.

        An id that was given to a new item may say that it is not warm, and the item be liked in
        what is trained on now.
        """
        is_liked = np.bincount(self.train.items, minlength=len(self.is_warm)) > 0
        return torch.as_tensor(self.is_warm | is_liked, device=device)


class Ends(NamedTuple):
    """Hidden states at the ends of histories, and the items that come next."""

    states: torch.Tensor  # (n, width)
    targets: torch.Tensor  # (n,) int64


def train_content_tower(
    model: Recommender,
    content: torch.Tensor,
    lessons: Lessons,
    settings: RetrieverSettings,
    checkpoint: Path | None = None,
) -> tuple[Retriever, Fit]:
    """Learn to tell the next item by its content, from what `model` makes of histories.

    Args:
        model: stays as it is.
        content: of all items, (items, width); zero where nothing is known.
        lessons: see there.
        settings: see there.
        checkpoint: see `fit`.
    """
    is_warm = lessons.warm_on(content.device) & content.any(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lessons.seed)
        tower = ContentTower(model.width, content.shape[1], settings.dim).to(content.device)
    tower.centre_on(content[is_warm])
    ends = end_states(model, lessons)
    is_known = is_warm[ends.targets]
    ends = Ends(ends.states[is_known], ends.targets[is_known])
    held = lessons.stop_by
    states = ends_of(model, held.histories, lessons.codes, lambda session: session.end)
    targets = torch.as_tensor(held.targets, device=content.device)
    size = settings.training.batch_size * lessons.most  # as many events as so many windows hold
    prior = log_popularity(np.bincount(lessons.train.items, minlength=len(content)), is_warm)

    def losses(epoch: int) -> Iterator[torch.Tensor]:
        order = np.random.default_rng([lessons.seed, epoch]).permutation(len(ends.targets))
        for rows in torch.as_tensor(order, device=content.device).split(size):
            users, items = tower.users(ends.states[rows]), tower.items(content)
            yield ranking_loss(users, items, ends.targets[rows], prior, settings.temperature)

    @torch.no_grad()
    def evaluate() -> float:
        return recall(tower.users(states), tower.items(content), targets, is_warm)

    judge = evaluate if len(held) else None
    fitted = fit(tower, losses, judge, settings.training, checkpoint, "retriever")
    return Retriever(tower, tower.all_items(content)), fitted


@torch.no_grad()
def end_states(model: Recommender, lessons: Lessons) -> Ends:
    """Hidden states before every event, given what its window shows of the past."""
    windows = draw_windows(lessons.train, lessons.most + 1, [lessons.seed, 0])
    states, targets = [], []
    model.eval()
    for start in range(0, len(windows), _AT_ONCE):
        items = windows[start : start + _AT_ONCE]
        histories = tokens_of(items, lessons.codes, model)
        hidden = model(histories.tokens, *causal(histories))
        cuts = before_items(hidden, model.levels)
        is_item = torch.as_tensor(items != NO_ITEM)[:, : cuts.shape[1]]
        states.append(cuts[is_item.to(cuts.device)])
        targets.append(torch.as_tensor(items[:, : cuts.shape[1]])[is_item])
    return Ends(torch.cat(states), torch.cat(targets).to(model.device))


def before_items(hidden: torch.Tensor, levels: int) -> torch.Tensor:
    """Of tokens (rows, 1 + items * levels, any) those that an item follows: (rows, items, any)."""
    return hidden[:, :-1:levels]


@torch.no_grad()
def ends_of(
    model: Recommender,
    items: np.ndarray,
    codes: np.ndarray,
    read: Callable[[Session], torch.Tensor],
) -> torch.Tensor:
    """What `read` makes of the histories `items` (n, most) in a session: (n, any)."""
    found = [torch.zeros(0, model.width, device=model.device)]
    for start in range(0, len(items), _AT_ONCE):
        session = Session(model, tokens_of(items[start : start + _AT_ONCE], codes, model))
        session.open()
        found.append(read(session))
    return torch.cat(found)
