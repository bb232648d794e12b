"""Train what scores all items for a user at once, new ones too: SpecGR drafts with it.

    python -m jobs.train_retriever --config conf/generative.yaml

Reads users, interactions, semantic_ids, recommender and, for a tower over content, what semantic
IDs are made from; writes the dataset `retriever`, weights and item vectors as safetensors. With
`retriever.tower: encoder` a copy of the recommender is trained on and stored in it as well, beside
what encodes items. A killed training goes on after its last epoch. With `recommender.from_run` the
tower of that run serves: all items are encoded anew, old ones by what they say today.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from jobs import cli
from jobs.earlier_models import EarlierModel, open_earlier_model, require_own_copy
from jobs.item_contents import content_dataset, made_with, read_contents
from jobs.train_recommender import DATASET as RECOMMENDER
from jobs.train_recommender import INPUTS as HISTORIES
from jobs.train_recommender import (
    MODEL,
    Inputs,
    checkpoint_of,
    lessons_of,
    read_inputs,
    remove_checkpoints,
    stopping_events,
    what_is_read,
)
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.generative.devices import best_device
from pipeline.generative.recommender import Recommender, load_recommender
from pipeline.generative.recommender_training import mean_log_probability
from pipeline.generative.retriever import ContentTower, Retriever, load_retriever
from pipeline.generative.retriever_encoder_training import (
    EncoderAndTower,
    load_encoder_and_tower,
    train_encoder_tower,
)
from pipeline.generative.retriever_training import Lessons, train_content_tower
from pipeline.store import Store

log = logging.getLogger("jobs.train_retriever")

DATASET = "retriever"
ITEM_ENCODER = "item_encoder"  # folder within it: what items were encoded by, of an encoder tower
_MADE_WITH = "content_made_with"


def run(config: RunConfig, store: Store, dataset: str = DATASET) -> None:
    """Make `retriever`, or `dataset`.

    Raises:
        DataError: no item that is trained on has a text, there is nothing to train on, or the run
            of `recommender.from_run` has no retriever beside this recommender.
        ConfigError: training diverged, or that run's retriever is of other settings or contents.
    """
    earlier = open_earlier_model(config, dataset)
    if earlier is not None:
        _take_over(config, store, earlier)
        return
    is_content = config.retriever.tower == "content"
    plan = store.plan(
        dataset,
        {"retriever": config.retriever, "seed": config.seed} | what_is_read(config),
        list(dict.fromkeys([*HISTORIES, RECOMMENDER, *_contents(config)])),
    )
    if plan.is_done:
        log.info("%s: up to date", dataset)
        return
    inputs = read_inputs(store)
    lessons = _lessons(config, store, inputs)
    model = load_recommender(store.files.local(RECOMMENDER) / MODEL, best_device())
    place = checkpoint_of(plan)
    if is_content:
        content = _content(config, store, inputs.item_ids).to(model.device)
        _require_liked_content(store, content, lessons)
        retriever, fitted = train_content_tower(model, content, lessons, config.retriever, place)
        made = made_with(store, content_dataset(config.semantic_ids))
        facts: dict[str, Any] = fitted.facts() | {_MADE_WITH: made}
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
    remove_checkpoints(plan)


def _take_over(config: RunConfig, store: Store, earlier: EarlierModel) -> None:
    """Let the tower of another run serve in this one, over the items of this one."""
    plan = earlier.plan(store, ["semantic_ids", RECOMMENDER, *_contents(config)])
    if plan.is_done:
        log.info("%s: up to date, of %s", plan.name, earlier.run)
        return
    require_own_copy(store, earlier)
    inputs, tower = read_inputs(store), load_retriever(earlier.folder).tower
    if isinstance(tower, ContentTower):
        content = _content(config, store, inputs.item_ids)
        _require_same_content(config, store, earlier, tower.shape["content_width"], content)
        vectors = tower.all_items(content)
    else:
        vectors = load_encoder_and_tower(earlier.folder / ITEM_ENCODER).all_items(inputs.codes)

    def fill(folder: Path) -> None:
        earlier.copy_to(folder)
        Retriever(tower, vectors).save(folder)

    plan.write_files(fill, len(vectors), earlier.facts())
    log.info(
        "%s: that of %s serves, nothing is trained; all %d items are encoded anew",
        *(plan.name, earlier.run, len(vectors)),
    )


def _contents(config: RunConfig) -> list[str]:
    """Datasets that a tower over content reads, none for another one."""
    is_content = config.retriever.tower == "content"
    return ["items", content_dataset(config.semantic_ids)] if is_content else []


def _require_same_content(
    config: RunConfig, store: Store, earlier: EarlierModel, width: int, content: torch.Tensor
) -> None:
    made, theirs = made_with(store, content_dataset(config.semantic_ids)), earlier.manifest.facts
    if theirs.get(_MADE_WITH) != made or content.shape[1] != width:
        raise ConfigError(
            f"recommender.from_run is {earlier.run}, whose retriever reads content vectors that "
            "were made otherwise than these, so they say nothing to it; encode as that run did, or "
            "leave recommender.from_run out to train anew"
        )


def _lessons(config: RunConfig, store: Store, inputs: Inputs) -> Lessons:
    train = lessons_of(inputs, config, store)
    most = config.recommender.history_length
    stop_by = stopping_events(inputs, config)
    log.info("%d events; %d others decide when to stop", len(train.items), len(stop_by))
    return Lessons(train, stop_by, inputs.codes, inputs.is_warm, most, config.seed)


def _content(config: RunConfig, store: Store, item_ids: pa.Array) -> torch.Tensor:
    """Content vectors of the items `item_ids`, in their order; zero of who has none.

    Raises:
        DataError: the catalog lacks one of them.
    """
    ids, items = read_contents(store, content_dataset(config.semantic_ids))
    found = pc.index_in(item_ids, value_set=ids)
    if found.null_count:
        raise DataError(
            f"{store.files.address}/semantic_ids: {found.null_count} items are not in the catalog "
            f"now, such as {item_ids.filter(pc.is_null(found))[:3].to_pylist()}; run "
            "`laser semantic-ids` again"
        )
    content = np.where(items.has_content[:, None], items.content, 0)
    return torch.from_numpy(content.astype(np.float32)[found.to_numpy()])


def _require_liked_content(store: Store, content: torch.Tensor, lessons: Lessons) -> None:
    if not content[np.unique(lessons.train.items)].any():
        raise DataError(
            f"{store.files.address}: no item that anybody likes has a text, so there is nothing "
            "to tell items by; set retriever.tower to encoder"
        )


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
