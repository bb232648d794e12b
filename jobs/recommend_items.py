"""The recommender -> `recommendations`: the best items for every user, by a pool of Ray actors.

    python -m jobs.recommend_items --config conf/generative.yaml

Users go to the actors in blocks, in the order of the catalog; within a block, histories of like
length share a batch. A killed job goes on after the last stored block. Memory of this process: the
interactions and two copies of their columns. Of an actor: the model, and per user of a batch what
`ListMaker` says.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import hashlib
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs import cli
from jobs.actor_pool import ActorPool
from jobs.cluster import node_resources, size_workers, start_ray
from jobs.progress import Countdown
from jobs.recommendation_facts import facts_of
from jobs.recommending_actor import RecommendingActor
from jobs.train_recommender import ASOF
from pipeline.config import RunConfig
from pipeline.errors import DataError, PartialError
from pipeline.generative.codes_hash import CODES_HASH, codes_hash
from pipeline.generative.methods import METHODS
from pipeline.generative.recommending import Catalog, require_any
from pipeline.generative.user_rows import UserRows, read_user_rows
from pipeline.parts import read_parts
from pipeline.schemas import MADE_BY, RECOMMENDATIONS, SPLITS
from pipeline.store import DatasetWriter, Store
from pipeline.times import with_date
from pipeline.withdrawn import read_withdrawn

log = logging.getLogger("jobs.recommend_items")

DATASET = "recommendations"
INPUTS = ["users", "items", "interactions", "semantic_ids", "recommender"]
_BLOCK_ROWS = 1024  # users stored together
# What lists do not depend on; of the table, its ids are what counts.
_NOT_OF_LISTS = {"batch_users", "device", "max_error_share", "withdrawn"}


class Inputs(NamedTuple):
    """Items: first those that have a semantic ID, in the order of SEMANTIC_IDS."""

    user_ids: pa.Array
    item_ids: pa.Array
    catalog: Catalog


def run(config: RunConfig, store: Store) -> None:
    """Write the dataset `recommendations`.

    Raises:
        DataError: users or items cannot be told apart, the recommender is of other semantic IDs or
            other splits, what drafts for it is of another recommender or of older inputs, or there
            is nothing to recommend.
        PartialError: too many users could not be served; the lists of the others are stored.
    """
    inputs = read_inputs(config, store)
    require_own_model(config, store, inputs)
    settings = settings_of(config, inputs)
    wanted = METHODS[config.recommendation.method].datasets
    plan = store.plan(DATASET, settings, [*INPUTS, *wanted])
    if plan.is_done and not _has_too_many_errors(config, store):
        log.info("%s: up to date, %d rows", DATASET, store.require(DATASET).num_rows)
        return
    if plan.is_done:
        store.set_aside(DATASET, "has more error rows than recommendation.max_error_share")
    _write(config, plan.open_writer(), inputs, _users(config, store, inputs))
    if _has_too_many_errors(config, store):
        facts = store.require(DATASET).facts
        raise PartialError(
            f"{facts['errors']} of {facts['users']} users got no list, more than "
            f"recommendation.max_error_share {config.recommendation.max_error_share:.2%}; the "
            "others are stored. Remove the cause and run `laser recommend` again, which then makes "
            "all lists anew, or raise recommendation.max_error_share to take these as they are. "
            f"First error: {facts['first_error']}"
        )


def _has_too_many_errors(config: RunConfig, store: Store) -> bool:
    facts = store.require(DATASET).facts
    return facts["errors"] > config.recommendation.max_error_share * max(facts["users"], 1)


def read_inputs(config: RunConfig, store: Store) -> Inputs:
    """Users and items, and what is withdrawn: also what has an id and has left the catalog.

    Raises:
        DataError: an id stands twice, all items are withdrawn or gone, or the table of those that
            are withdrawn cannot be read.
    """
    user_ids, item_ids = (
        _unique_ids(store, name, column)
        for name, column in (("users", "user_id"), ("items", "item_id"))
    )
    semantic = store.read("semantic_ids")
    known = semantic["item_id"].combine_chunks()
    others = item_ids.filter(pc.invert(pc.is_in(item_ids, value_set=known)))
    if len(others):
        log.warning(
            "%d items have no semantic ID, so nobody gets them, such as %s; "
            "run `laser semantic-ids` again",
            *(len(others), others[:3].to_pylist()),
        )
    codes = pc.list_flatten(semantic["codes"]).to_numpy().reshape(len(known), -1)
    every = pa.concat_arrays([known, others])
    withdrawn = read_withdrawn(config.recommendation.withdrawn, every)
    withdrawn = np.union1d(withdrawn[withdrawn < len(known)], _gone(known, item_ids))
    require_any(~np.isin(np.arange(len(known)), withdrawn))
    return Inputs(user_ids, every, Catalog(codes, semantic["is_warm"].to_numpy(), withdrawn))


def _gone(known: pa.Array, item_ids: pa.Array) -> np.ndarray:
    """Rows of `known` that the catalog has no longer: the model still knows them, nobody gets them.

    Ascending, (any,) int64.
    """
    is_there = pc.is_in(known, value_set=item_ids).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(~is_there)
    if len(rows):
        log.warning(
            "%d items with a semantic ID are not in the catalog, so nobody gets them, such as %s",
            *(len(rows), known.take(pa.array(rows[:3])).to_pylist()),
        )
    return rows


def require_own_model(config: RunConfig, store: Store, inputs: Inputs) -> None:
    """Check that the recommender writes these semantic IDs and knows what the config says.

    The recommender may be older than the latest events: `asof` tells what it knows. What was made
    beside it has to be of this very recommender, and row by row of these semantic IDs.

    Raises:
        DataError: it was trained on other ones, or on events of other splits; or a drafter or
            retriever was made from other inputs than there are now.
    """
    made = store.require("recommender")
    where, again = f"{store.files.address}/recommender", "run `laser recommender` again"
    codes = inputs.catalog.codes
    found = codes_hash(inputs.item_ids[: len(codes)], codes)
    if made.facts.get(CODES_HASH) != found:
        raise DataError(f"{where} was trained on other semantic IDs than there are now; {again}")
    trained = made.settings.get("recommender", {})
    length = trained.get("history_length", config.recommender.history_length)
    if length != config.recommender.history_length:
        raise DataError(
            f"{where} was trained on histories of {length} items, but recommender.history_length "
            f"is {config.recommender.history_length}; {again}"
        )
    until = trained.get("until")
    if until != config.recommender.until:
        raise DataError(
            f"{where} was trained on events up to the split {until!r}, but recommender.until is "
            f"{config.recommender.until!r}, so lists would not say what they know; {again}"
        )
    for name in METHODS[config.recommendation.method].datasets:
        store.require(name)
        if not store.is_consistent(name):
            raise DataError(
                f"{store.files.address}/{name} was made from other inputs than there are now, the "
                f"recommender among them; run `laser {MADE_BY[name]}` again"
            )


def settings_of(config: RunConfig, inputs: Inputs) -> dict[str, Any]:
    """What lists depend on besides datasets."""
    ids = inputs.item_ids.take(pa.array(inputs.catalog.withdrawn)).to_pylist()
    return {
        "recommendation": config.recommendation.model_dump(mode="json", exclude=_NOT_OF_LISTS),
        "withdrawn": hashlib.sha256("\0".join(ids).encode()).hexdigest()[:16] if ids else "",
        "history_length": config.recommender.history_length,
        "seed": config.seed,
        "splits": list(_splits(config)),
    }


def _splits(config: RunConfig) -> tuple[str, ...]:
    """Of the interactions that lists may know."""
    if config.recommendation.history == "all":
        return SPLITS
    return SPLITS[: SPLITS.index(config.recommender.until) + 1]


def _unique_ids(store: Store, name: str, column: str) -> pa.Array:
    ids = store.read(name, [column])[column].combine_chunks()
    if len(pc.unique(ids)) < len(ids):
        counts = pc.value_counts(ids)
        twice = counts.field(0).filter(pc.greater(counts.field(1), 1))
        raise DataError(
            f"{store.files.address}/{name}: {len(twice)} ids stand twice, such as "
            f"{twice[:3].to_pylist()}; run `laser catalog` again"
        )
    return ids


def _users(config: RunConfig, store: Store, inputs: Inputs) -> UserRows:
    interactions = store.read("interactions")
    splits = pa.array(_splits(config))
    known = interactions.filter(pc.is_in(interactions["split"], value_set=splits))
    rows = read_user_rows(known, inputs.user_ids, inputs.item_ids, len(inputs.catalog.codes))
    trained = store.require("recommender").facts.get(
        ASOF, 0
    )  # later if the model is of another run
    return replace(rows, asof=max(rows.asof, trained))


def _write(config: RunConfig, writer: DatasetWriter, inputs: Inputs, users: UserRows) -> None:
    """Store the rows of all users that are not stored yet, block by block."""
    total = len(inputs.user_ids)
    done = stored = writer.existing(["user_id"]).num_rows
    _log_begin(config, inputs, users, stored)
    countdown = Countdown(log, DATASET, "users", total, stored)
    for block in answers(config, inputs, users, stored):
        owed = inputs.user_ids.slice(done, block.num_rows)
        if not block["user_id"].combine_chunks().equals(owed):
            raise DataError(
                f"{DATASET}: a block came back with other users than it was asked for; move the "
                f"folder of `{DATASET}` away and run again"
            )
        writer.append(block)
        done += block.num_rows
        countdown.count(block.num_rows)
    tables = (read_parts([part], RECOMMENDATIONS) for part in writer.parts())
    facts = {"method": config.recommendation.method, **facts_of(tables)}
    told = (f"{name} {value}" for name, value in facts.items() if value != "")
    log.info("%s: %s", DATASET, ", ".join(told))
    writer.finish(facts)


def answers(config: RunConfig, inputs: Inputs, users: UserRows, start: int) -> Iterator[pa.Table]:
    """RECOMMENDATIONS of all users from row `start` on, block by block, in order."""
    todo = len(inputs.user_ids) - start
    if not todo:
        return
    start_ray(config.cluster)
    device = config.recommendation.device
    workers = size_workers(config.cluster, "recommendations", device, node_resources())
    size = min(_BLOCK_ROWS, math.ceil(todo / workers.actors))
    places = range(start, len(inputs.user_ids), size)
    blocks = (
        users.block(
            place,
            min(place + size, len(inputs.user_ids)),
            config.recommender.history_length,
            config.recommendation.exclude_seen,
        )
        for place in places
    )
    ids = inputs.item_ids[: len(inputs.catalog.codes)]
    arguments = (config, inputs.catalog, ids, workers.threads_each)
    with ActorPool(RecommendingActor, arguments, workers) as pool:
        yield from pool.through(blocks, len(places), ordered=True)


def _log_begin(config: RunConfig, inputs: Inputs, users: UserRows, stored: int) -> None:
    own = config.recommendation
    log.info(
        "%s: %d users, %d items of which %d are withdrawn; method %s, %d beams, the best %d; "
        "events up to %s; %d rows are stored already",
        *(DATASET, len(inputs.user_ids), len(inputs.catalog.codes), len(inputs.catalog.withdrawn)),
        *(own.method, own.beams, own.top_k, with_date(users.asof), stored),
    )
    if total := int(users.unknown.sum()):
        log.warning(
            "%s: %d events of %d users are of items without a semantic ID, and are not read",
            *(DATASET, total, int((users.unknown > 0).sum())),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
