"""Train a small model that drafts beams for the recommender (AtSpeed-S, AtSpeed-R).

    python -m jobs.align_drafter --config conf/generative.yaml

Reads users, interactions, semantic_ids and recommender; writes the dataset `aligned_drafter`,
weights as safetensors. It learns from the recommender's own beams and from the events that the
recommender was trained on; levels accepted on histories of the next split decide when to stop. A
killed training goes on after its last epoch. With `recommender.from_run` the drafter of that run
serves.
"""

import logging
import sys
import time
from collections.abc import Sequence

import numpy as np

from jobs import cli
from jobs.earlier_models import EarlierModel, open_earlier_model, require_own_copy
from jobs.train_recommender import DATASET as DATASET_OF_TARGET
from jobs.train_recommender import INPUTS as INPUTS_OF_TARGET
from jobs.train_recommender import MODEL as MODEL_OF_TARGET
from jobs.train_recommender import (
    Inputs,
    checkpoint_of,
    lessons_of,
    read_inputs,
    remove_checkpoints,
    stopping_events,
    what_is_read,
)
from pipeline.config import RunConfig
from pipeline.generative.devices import best_device
from pipeline.generative.drafter_training import (
    Target,
    accepted_levels,
    align_drafter,
    draw_contexts,
)
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.recommender import load_recommender, make_recommender
from pipeline.generative.teacher_beams import TeacherBeams, find_teacher_beams
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.store import Store

log = logging.getLogger("jobs.align_drafter")

DATASET = "aligned_drafter"
MODEL = "drafter"  # folder of the model within the dataset
INPUTS = [*INPUTS_OF_TARGET, DATASET_OF_TARGET]
_STOP_BY = 300  # users whose accepted levels decide when to stop


def run(config: RunConfig, store: Store, dataset: str = DATASET) -> None:
    """Make `aligned_drafter`, or `dataset`.

    Raises:
        DataError: there is nothing to train on, the recommender cannot be read, or the run of
            `recommender.from_run` has no drafter for it.
        ConfigError: training diverged, or that run's drafter is of other settings.
    """
    earlier = open_earlier_model(config, dataset)
    if earlier is not None:
        _take_over(store, earlier)
        return
    own = config.aligned_drafter
    most = config.recommender.history_length
    settings = {"aligned_drafter": own, "seed": config.seed} | what_is_read(config)
    plan = store.plan(dataset, settings, INPUTS)
    if plan.is_done:
        log.info("%s: up to date", dataset)
        return
    inputs = read_inputs(store)
    known = lessons_of(inputs, config, store)
    target = _target(store, inputs)
    contexts = draw_contexts(known, own.teacher_contexts, most, config.seed)
    stop_by = stopping_events(inputs, config).histories[:_STOP_BY]
    if not len(stop_by):
        log.warning("training histories decide")
        stop_by = contexts.histories[:_STOP_BY]
    beams = _beams(target, contexts.histories, own.teacher_beams)
    levels, num_codes = target.model.levels, target.model.num_codes
    drafter = make_recommender(own.shape(most), levels, num_codes, config.seed)
    drafter.to(target.model.device)
    place = checkpoint_of(plan)
    fitted = align_drafter(drafter, target, beams, contexts, stop_by, own, config.seed, place)
    accepted = accepted_levels(target, drafter, stop_by)
    facts = {
        "parameters": sum(weights.numel() for weights in drafter.parameters()),
        "accepted_levels": round(accepted, 3),  # strictly
        "calls": round(levels - accepted, 3),  # of the recommender; without a drafter `levels`
        "teacher_bytes": beams.nbytes,
    }
    log.info("%(parameters)d parameters, %(calls).2f calls of the recommender per user", facts)
    plan.write_files(lambda folder: drafter.save(folder / MODEL), 1, fitted.facts() | facts)
    remove_checkpoints(plan)


def _take_over(store: Store, earlier: EarlierModel) -> None:
    """Let the drafter of another run serve in this one."""
    plan = earlier.plan(store, ["semantic_ids", DATASET_OF_TARGET])
    if plan.is_done:
        log.info("%s: up to date, of %s", plan.name, earlier.run)
        return
    require_own_copy(store, earlier)
    plan.write_files(earlier.copy_to, 1, earlier.facts())
    log.info("%s: that of %s serves, nothing is trained", plan.name, earlier.run)


def _target(store: Store, inputs: Inputs) -> Target:
    """The recommender and all items.

    Raises:
        DataError: the recommender cannot be read.
    """
    folder = store.files.local(DATASET_OF_TARGET) / MODEL_OF_TARGET
    model = load_recommender(folder, best_device())
    tree = ItemTrie(np.arange(len(inputs.codes)), inputs.codes, inputs.is_warm)
    return Target(model, trie_tensors(tree, model.num_codes, model.device), inputs.codes)


def _beams(target: Target, histories: np.ndarray, count: int) -> TeacherBeams:
    began = time.monotonic()
    beams = find_teacher_beams(target.model, target.trie, histories, target.codes, count)
    log.info(
        "%d beams of each of %d histories in %.0f s, %.0f MB",
        *(count, len(beams), time.monotonic() - began, beams.nbytes / 1e6),
    )
    return beams


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
