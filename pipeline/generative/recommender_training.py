"""Training of a recommender: the next code at every place of a history, and NEZHA's head.

NEZHA trains the whole model by its head alone, one item a pass. Here the model learns every code of
a window as well, and the head several cuts of it in the same pass, so that one model serves beam
search, verification and the head.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pipeline.generative.event_log import NO_ITEM, EventLog, as_histories
from pipeline.generative.packed_placeholders import NO_CUT, pack
from pipeline.generative.placeholder_head import PlaceholderHead
from pipeline.generative.recommender import Recommender
from pipeline.generative.session import Histories
from pipeline.generative.training_loop import Fit, fit
from pipeline.generative.windows import draw_windows
from pipeline.generative_config import RecommenderSettings

log = logging.getLogger(__name__)

_MOST_HELD_OUT = 1000  # events that decide when to stop
_EVALUATED = 256  # of them at once


@dataclass(frozen=True)
class HeldOut:
    """Events that decide when to stop."""

    histories: np.ndarray  # (n, most) items, NO_ITEM at the end
    targets: np.ndarray  # (n,) items

    def __len__(self) -> int:
        return len(self.targets)

    def with_targets(self) -> np.ndarray:
        """Histories that end with their targets: (n, most + 1)."""
        lengths = (self.histories != NO_ITEM).sum(1)
        items = np.pad(self.histories, ((0, 0), (0, 1)), constant_values=NO_ITEM)
        items[np.arange(len(items)), lengths] = self.targets
        return items


def held_out(whole: EventLog, split: str, is_warm: np.ndarray, most: int, seed: int) -> HeldOut:
    """Events of `split` whose items can be known, at most so many, drawn among all."""
    events = whole.events(split)
    rows = np.flatnonzero(is_warm[events.items])
    if len(rows) > _MOST_HELD_OUT:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _MOST_HELD_OUT, replace=False))
    histories = whole.before(events.users[rows], events.times[rows], most)
    return HeldOut(histories, events.items[rows])


def train_recommender(
    model: Recommender,
    head: PlaceholderHead | None,
    train: EventLog,
    stop_by: HeldOut,
    codes: np.ndarray,
    settings: RecommenderSettings,
    seed: int,
    checkpoint: Path | None = None,
) -> Fit:
    """Train `model` and `head` in place on the histories of `train`.

    Args:
        model: what training begins with.
        head: reads its placeholders; without one nothing is learnt about them.
        train: events that may be known.
        stop_by: the mean log-probability of their targets decides.
        codes: semantic IDs of all items, (items, levels).
        settings: see there.
        seed: of windows.
        checkpoint: see `fit`.
    """
    most = settings.history_length + 1  # the last one is a target only
    weight, groups = settings.placeholder_weight, settings.placeholder_groups

    def losses(epoch: int) -> Iterator[torch.Tensor]:
        windows = draw_windows(train, most, [seed, epoch])
        cuts = draw_cuts(windows, groups, [seed, epoch])
        size = settings.training.batch_size
        for start in range(0, len(windows), size):
            batch = tokens_of(windows[start : start + size], codes, model)
            if head is None:
                yield language_model_loss(model, batch)
                continue
            own = torch.as_tensor(cuts[start : start + size], device=model.device)
            packed = pack(model, batch.tokens, (batch.lengths - 1) // model.levels, own)
            states = packed.run(model)
            loss = -code_log_probs(model, states.windows, batch).mean()
            yield loss + weight * head.loss(states.ends, states.placeholders, packed.codes)

    def evaluate() -> float:
        figure = mean_log_probability(model, stop_by, codes)
        if head is not None:
            figure += weight * mean_log_probability_of_head(model, head, stop_by, codes)
        return figure

    trained = nn.ModuleList([model] if head is None else [model, head])
    judge = evaluate if len(stop_by) else None
    return fit(trained, losses, judge, settings.training, checkpoint, "recommender")


def draw_cuts(windows: np.ndarray, groups: int, seed: list[int]) -> np.ndarray:
    """After how many of its items each window is cut, several times: (windows, groups) int64.

    No two cuts of a window are the same; a window with fewer items than `groups` has fewer.
    """
    lengths = (windows != NO_ITEM).sum(1)
    keys = np.random.default_rng([*seed, 1]).random(windows.shape)
    keys[np.arange(windows.shape[1]) >= lengths[:, None]] = 2  # no item follows
    cuts = np.argsort(keys, axis=1)[:, :groups]
    return np.where(np.take_along_axis(keys, cuts, 1) < 1, cuts, NO_CUT)


def tokens_of(items: np.ndarray, codes: np.ndarray, model: Recommender) -> Histories:
    """Token ids of windows or histories on the model's device."""
    return as_histories(items, codes, model.num_codes, model.device)


def language_model_loss(model: Recommender, windows: Histories) -> torch.Tensor:
    """Mean cross-entropy of every code of `windows` given all before it."""
    hidden = model(windows.tokens, *causal(windows))
    return -code_log_probs(model, hidden, windows).mean()


def causal(windows: Histories) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions (rows, n) and who sees whom (rows, n, n), without regard to padding at the end."""
    rows, size = windows.tokens.shape
    device = windows.tokens.device
    positions = torch.arange(size, device=device).expand(rows, size)
    sees = torch.ones(size, size, dtype=torch.bool, device=device).tril()
    return positions, sees.expand(rows, size, size)


def code_log_probs(model: Recommender, hidden: torch.Tensor, windows: Histories) -> torch.Tensor:
    """Log-probabilities of all codes that stand in `windows`, one after another: (codes,).

    `hidden` (rows, n, width) is of their tokens.
    """
    rows, size = windows.tokens.shape
    levels = model.levels
    own = hidden[:, :-1].view(rows, -1, levels, model.width)  # (rows, items, levels, width)
    logits = torch.einsum("nilw,lcw->nilc", own, model.heads).float()
    wanted = windows.tokens[:, 1:].view(rows, -1, levels)
    is_real = torch.arange(1, size, device=hidden.device) < windows.lengths[:, None]
    is_real = is_real.view(wanted.shape)
    offset = torch.arange(levels, device=hidden.device) * model.num_codes
    code = (wanted - offset)[is_real]
    return torch.log_softmax(logits[is_real], -1).gather(1, code[:, None])[:, 0]


@torch.inference_mode()
def mean_log_probability(model: Recommender, events: HeldOut, codes: np.ndarray) -> float:
    """Of a code of a target, given its history."""
    whole, total = events.with_targets(), 0.0
    for start in range(0, len(events), _EVALUATED):
        windows = tokens_of(whole[start : start + _EVALUATED], codes, model)
        hidden = model(windows.tokens, *causal(windows))
        rows = torch.arange(len(windows.lengths), device=hidden.device)[:, None]
        place = (
            windows.lengths[:, None]
            - model.levels
            + torch.arange(model.levels, device=hidden.device)
        )  # of the codes of targets
        logits = torch.einsum("nlw,lcw->nlc", hidden[rows, place - 1], model.heads).float()
        offset = torch.arange(model.levels, device=hidden.device) * model.num_codes
        wanted = windows.tokens[rows, place] - offset
        total += float(torch.log_softmax(logits, -1).gather(2, wanted[..., None]).sum())
    return total / max(len(events) * model.levels, 1)


@torch.inference_mode()
def mean_log_probability_of_head(
    model: Recommender, head: PlaceholderHead, events: HeldOut, codes: np.ndarray
) -> float:
    """The same by the head, told the codes before each."""
    whole, total = events.with_targets(), 0.0
    for start in range(0, len(events), _EVALUATED):
        windows = tokens_of(whole[start : start + _EVALUATED], codes, model)
        lengths = (windows.lengths - 1) // model.levels
        packed = pack(model, windows.tokens, lengths, lengths[:, None] - 1)
        states = packed.run(model)
        count = len(packed.codes)
        total -= float(head.loss(states.ends, states.placeholders, packed.codes)) * count
    return total / max(len(events), 1)
