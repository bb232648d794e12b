"""Training of a small model that drafts for a large one."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pipeline.generative.alignment import DIVERGENCES, combined, mean_over_beams
from pipeline.generative.beam_engine import BeamEngine
from pipeline.generative.drafters import Requests
from pipeline.generative.event_log import EventLog
from pipeline.generative.recommender import Recommender
from pipeline.generative.recommender_training import HeldOut, language_model_loss, tokens_of
from pipeline.generative.sampling import Sampling
from pipeline.generative.small_model_draft import SmallModelDraft
from pipeline.generative.teacher_beams import TeacherBeams, tree_log_probs
from pipeline.generative.training_loop import Fit, fit
from pipeline.generative.trie_tensors import TrieTensors
from pipeline.generative.verification import StrictTopK
from pipeline.generative_config import AlignedDrafterSettings

_KEPT, _DRAFTED = 10, 40  # K and N of the search that decides when to stop
_AT_ONCE = 256  # users of that search


class Target(NamedTuple):
    """The model that a drafter serves."""

    model: Recommender
    trie: TrieTensors  # of what it may recommend
    codes: np.ndarray  # semantic IDs of all items, (items, levels)


def draw_contexts(known: EventLog, count: int, most: int, seed: int) -> HeldOut:
    """Events at random, each with what its user liked before: at most `count`."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(known.items))[:count]
    histories = known.before(known.users[rows], known.times[rows], most)
    return HeldOut(histories, known.items[rows])


def accepted_levels(
    target: Target, drafter: Recommender, contexts: np.ndarray, samples: bool = False
) -> float:
    """Drafted levels that the target accepts, of a user's at most levels - 1, on average.

    Args:
        target: verifies, strictly or by `samples`.
        drafter: drafts 40 beams a level, of which 10 are kept.
        contexts: histories, NO_ITEM at the end: (users, most).
    """
    model, trie, codes = target
    rule = Sampling() if samples else StrictTopK()
    draft = SmallModelDraft(drafter, _DRAFTED, codes.shape[1], rule)
    engine = BeamEngine(model, trie, draft, rule, _KEPT)
    total = 0
    for start in range(0, len(contexts), _AT_ONCE):
        own = contexts[start : start + _AT_ONCE]
        seeds = torch.arange(start, start + len(own), device=model.device)
        items = torch.as_tensor(own, device=model.device)
        found = engine.search(Requests(tokens_of(own, codes, model), items, seeds))
        total += int(found.accepted.sum())
    return total / max(len(contexts), 1)


def align_drafter(
    drafter: Recommender,
    target: Target,
    beams: TeacherBeams,
    contexts: HeldOut,
    stop_by: np.ndarray,
    settings: AlignedDrafterSettings,
    seed: int,
    checkpoint: Path | None = None,
) -> Fit:
    """Train `drafter` in place on the beams of `target` and on what was liked.

    Args:
        drafter: untrained.
        target: the model that will verify.
        beams: its beams of `contexts`.
        contexts: histories and what was liked next.
        stop_by: other histories; how many levels are accepted there decides when to stop, by
            sampling if AtSpeed-R's loss is asked for, else strictly.
        settings: see there.
        seed: of the order of contexts.
        checkpoint: see `fit`.
    """
    codes = target.codes
    with_targets = contexts.with_targets()
    size = settings.training.batch_size

    def losses(epoch: int) -> Iterator[torch.Tensor]:
        order = np.random.default_rng([seed, epoch]).permutation(len(contexts))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            liked = language_model_loss(drafter, tokens_of(with_targets[rows], codes, drafter))
            if settings.loss == "sft":
                yield liked
                continue
            histories = tokens_of(contexts.histories[rows], codes, drafter)
            own = beams.take(torch.from_numpy(rows).to(beams.codes.device))
            log_q = tree_log_probs(drafter, histories, own.codes)
            divergence = DIVERGENCES[settings.loss]
            distance = mean_over_beams(divergence, log_q, own.log_probs(), own.is_real)
            yield combined(liked, distance, settings.alpha)

    def evaluate() -> float:
        samples = settings.loss == "atspeed_r"
        return accepted_levels(target, drafter, stop_by, samples)

    return fit(drafter, losses, evaluate, settings.training, checkpoint, "aligned_drafter")
