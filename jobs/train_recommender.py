"""Train a model that writes the semantic ID of the item a user will like next.

    python -m jobs.train_recommender --config conf/generative.yaml

Reads users, interactions and semantic_ids; writes the dataset `recommender`, weights as
safetensors. Events up to the split `recommender.until` are trained on, those of the next split
decide when to stop. A killed training goes on after its last epoch. With `recommender.from_run`
nothing is trained: the recommender of another run serves, if items have kept their semantic IDs.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from jobs import cli
from jobs.earlier_models import EarlierModel, open_earlier_model, require_same_ids
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.generative.codes_hash import CODES_HASH, codes_hash
from pipeline.generative.devices import best_device
from pipeline.generative.event_log import EventLog, read_event_log
from pipeline.generative.placeholder_head import PlaceholderHead, make_placeholder_head
from pipeline.generative.pretrained_stack import backbone_fingerprint, new_recommender
from pipeline.generative.recommender import Recommender
from pipeline.generative.recommender_training import HeldOut, held_out, train_recommender
from pipeline.schemas import SPLITS
from pipeline.store import Plan, Store

log = logging.getLogger("jobs.train_recommender")

DATASET = "recommender"
MODEL, HEAD = "recommender", "head"  # folders within the dataset
INPUTS = ["users", "interactions", "semantic_ids"]
ASOF = "asof"  # among the facts: time of the latest event that was trained on


class Inputs(NamedTuple):
    """What all jobs of generative recommendation read."""

    log: EventLog
    item_ids: pa.Array
    codes: np.ndarray  # (items, levels) int32
    is_warm: np.ndarray  # (items,) bool
    num_codes: int  # of a level


def run(config: RunConfig, store: Store) -> None:
    """Make `recommender`.

    Raises:
        DataError: there is nothing to train on, or the run of `recommender.from_run` has no
            recommender for these semantic IDs.
        ConfigError: training diverged, or that run's recommender is of other settings.
        ModelError: there is no usable backbone.
    """
    earlier = open_earlier_model(config, DATASET)
    if earlier is not None:
        _take_over(store, earlier)
        return
    settings = {
        "recommender": config.recommender,
        "backbone": backbone_fingerprint(config.recommender),
        "seed": config.seed,
    }
    plan = store.plan(DATASET, settings, INPUTS)
    if plan.is_done:
        log.info("%s: up to date", DATASET)
        return
    inputs = read_inputs(store)
    train = lessons_of(inputs, config, store)
    stop_by = stopping_events(inputs, config)
    levels = inputs.codes.shape[1]
    model = new_recommender(config.recommender, levels, inputs.num_codes, config.seed)
    model.to(best_device())
    head = _head_for(config, model)
    log.info(
        "recommender: %d parameters, %d events of %d users; %d others decide when to stop",
        sum(own.numel() for own in model.parameters()),
        *(len(train.items), int((np.diff(train.starts) > 0).sum()), len(stop_by)),
    )
    place = checkpoint_of(plan)
    fitted = train_recommender(
        model, head, train, stop_by, inputs.codes, config.recommender, config.seed, place
    )
    facts = fitted.facts() | {
        CODES_HASH: codes_hash(inputs.item_ids, inputs.codes),
        ASOF: int(train.times.max()),
    }
    plan.write_files(lambda folder: _save(model, head, folder), 1, facts)
    remove_checkpoints(plan)


def _take_over(store: Store, earlier: EarlierModel) -> None:
    """Let the recommender of another run serve in this one."""
    plan = earlier.plan(store, ["semantic_ids"])
    if plan.is_done:
        log.info("%s: up to date, of %s", DATASET, earlier.run)
        return
    facts = earlier.facts() | require_same_ids(store, earlier)
    plan.write_files(earlier.copy_to, 1, facts)
    log.info("%s: that of %s serves, nothing is trained", DATASET, earlier.run)


def read_inputs(store: Store) -> Inputs:
    """Histories and semantic IDs."""
    users = store.read("users", ["user_id"])["user_id"].combine_chunks()
    table = store.read("semantic_ids")
    item_ids = table["item_id"].combine_chunks()
    flat = table["codes"].combine_chunks()
    codes = flat.values.to_numpy().reshape(len(item_ids), -1)
    facts = store.require("semantic_ids").facts
    size = max(int(facts["codebook_size"]), int(codes.max(initial=0)) + 1)
    return Inputs(
        read_event_log(store.read("interactions"), users, item_ids),
        item_ids,
        codes,
        table["is_warm"].to_numpy(),
        size,
    )


def known_events(whole: EventLog, config: RunConfig) -> EventLog:
    """What may be trained on."""
    last = SPLITS.index(config.recommender.until)
    return whole.of_splits(SPLITS[: last + 1])


def lessons_of(inputs: Inputs, config: RunConfig, store: Store) -> EventLog:
    """The same, for who trains on it.

    Raises:
        DataError: there is nothing.
    """
    train = known_events(inputs.log, config)
    if not len(train.items):
        raise DataError(
            f"{store.files.address}/interactions: nobody likes anything up to the split "
            f"{config.recommender.until!r}, so there is nothing to train on; see "
            "catalog.positive_rating and recommender.until"
        )
    return train


def stopping_events(inputs: Inputs, config: RunConfig) -> HeldOut:
    """What decides when to stop: events of the first split that is not trained on.

    Later ones stay unseen, as a check of what was trained has to have it.
    """
    split = SPLITS[SPLITS.index(config.recommender.until) + 1]
    most = config.recommender.history_length
    found = held_out(inputs.log, split, inputs.is_warm, most, config.seed)
    if not len(found):
        log.warning("nobody likes a known item in the split %s: it cannot tell when to stop", split)
    return found


def what_is_read(config: RunConfig) -> dict[str, Any]:
    """What others that learn from histories take from the recommender's section."""
    own = config.recommender
    return {"until": own.until, "history_length": own.history_length}


def checkpoint_of(plan: Plan) -> Path:
    """Where a training that is not finished stands; another setting has another place."""
    return plan.store.root / "checkpoints" / f"{plan.name}-{plan.fingerprint}.safetensors"


def remove_checkpoints(plan: Plan) -> None:
    """Of a finished training. One of other settings may still be gone on with."""
    place = checkpoint_of(plan)
    for left in place.parent.glob(f"{place.stem}*"):
        left.unlink()


def _head_for(config: RunConfig, model: Recommender) -> PlaceholderHead | None:
    if not config.recommender.placeholder_weight:
        return None
    head = make_placeholder_head(model.levels, model.num_codes, model.width, config.seed)
    return head.to(model.device)


def _save(model: Recommender, head: PlaceholderHead | None, folder: Path) -> None:
    model.save(folder / MODEL)
    if head is not None:
        head.save(folder / HEAD)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
