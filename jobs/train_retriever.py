"""Train what scores all items for a user at once, new ones too: SpecGR drafts with it.

    python -m jobs.train_retriever --config conf/generative.yaml

Reads users, interactions, semantic_ids, recommender and, for a tower over content, what semantic
IDs are made from; writes the dataset `retriever`, weights and item vectors as safetensors. With
`retriever.tower: encoder` a copy of the recommender is trained on and stored in it as well, beside
what encodes items. A killed training goes on after its last epoch.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jobs import cli
from jobs.item_contents import content_dataset, read_contents
from jobs.train_recommender import DATASET as RECOMMENDER
from jobs.train_recommender import INPUTS as HISTORIES
from jobs.train_recommender import (
    MODEL,
    checkpoint_of,
    known_events,
    read_inputs,
    stopping_events,
)
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.generative.recommender import Recommender, load_recommender
from pipeline.generative.recommender_training import mean_log_probability
from pipeline.generative.retriever import Retriever
from pipeline.generative.retriever_encoder_training import EncoderAndTower, train_encoder_tower
from pipeline.generative.retriever_training import Lessons, train_content_tower
from pipeline.store import Store

log = logging.getLogger("jobs.train_retriever")

DATASET = "retriever"
ITEM_ENCODER = "item_encoder"  # folder within it: what items were encoded by, of an encoder tower


def run(config: RunConfig, store: Store, dataset: str = DATASET) -> None:
    """Make `retriever`, or `dataset`.

    Raises:
        DataError: no item that is trained on has a text, or there is nothing to train on.
        ConfigError: training diverged.
    """
    is_content = config.retriever.tower == "content"
    contents = ["items", content_dataset(config.semantic_ids)] if is_content else []
    plan = store.plan(
        dataset,
        {"retriever": config.retriever, "seed": config.seed},
        list(dict.fromkeys([*HISTORIES, RECOMMENDER, *contents])),
    )
    if plan.is_done:
        log.info("%s: up to date", dataset)
        return
    lessons = _lessons(config, store)
    model = load_recommender(store.files.local(RECOMMENDER) / MODEL)
    place = checkpoint_of(plan)
    if is_content:
        content = _content(config, store, lessons)
        retriever, fitted = train_content_tower(model, content, lessons, config.retriever, place)
        facts: dict[str, Any] = fitted.facts()
        parts: dict[str, Recommender | EncoderAndTower] = {}
    else:
        before = mean_log_probability(model, lessons.stop_by, lessons.codes)
        trained = train_encoder_tower(model, lessons, config.retriever, place)
        retriever, parts = trained.retriever, {MODEL: model, ITEM_ENCODER: trained.items}
        facts = {f"stage_{n}": fitted.facts() for n, fitted in enumerate(trained.stages, 1)}
        after = mean_log_probability(model, lessons.stop_by, lessons.codes)
        facts["log_probability"] = {"before": round(before, 4), "after": round(after, 4)}
        log.info("a code of a held-out item: log-probability %.4f, before %.4f", after, before)
    plan.write_files(
        lambda folder: _save(retriever, parts, folder),
        len(retriever.vectors),
        facts,
    )
    for left in place.parent.glob(f"{place.stem}*"):
        left.unlink()


def _lessons(config: RunConfig, store: Store) -> Lessons:
    inputs = read_inputs(store)
    train = known_events(inputs.log, config)
    if not len(train.items):
        raise DataError(
            f"{store.files.address}/interactions: nobody likes anything up to the split "
            f"{config.recommender.until!r}, so there is nothing to train on; see "
            "catalog.positive_rating and recommender.until"
        )
    most = config.recommender.history_length
    stop_by = stopping_events(inputs, config)
    log.info("%d events, stopped by %d others", len(train.items), len(stop_by))
    return Lessons(train, stop_by, inputs.codes, inputs.is_warm, most, config.seed)


def _content(config: RunConfig, store: Store, lessons: Lessons) -> torch.Tensor:
    """Content vectors, zero of who has none."""
    items = read_contents(store, content_dataset(config.semantic_ids))[1]
    content = np.where(items.has_content[:, None], items.content, 0).astype(np.float32)
    if not content[np.unique(lessons.train.items)].any():
        raise DataError(
            f"{store.files.address}: no item that anybody likes has a text, so there is nothing "
            "to tell items by; set retriever.tower to encoder"
        )
    return torch.from_numpy(content)


def _save(
    retriever: Retriever, parts: Mapping[str, Recommender | EncoderAndTower], folder: Path
) -> None:
    retriever.save(folder)
    for name, part in parts.items():
        part.save(folder / name)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
