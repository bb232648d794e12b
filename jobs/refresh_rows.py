"""What a refresh starts from where every user gains one interaction; see jobs.benchmark_refresh."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.frameworks import templates_of
from jobs.decoding_arms import Outcome, engine_arm
from jobs.generation_actor import make_engine
from jobs.wave_names import last_wave
from jobs.waves import CATALOG, Identity, open_wave
from pipeline.config import RunConfig
from pipeline.engine.rules import Strict
from pipeline.engine.types import NoDraft, Request
from pipeline.errors import DataError
from pipeline.knowledge import requests_of
from pipeline.language_model import ChatTokenizer
from pipeline.prompts import build_prompts
from pipeline.store import Store
from retrieval_pools.document import Document
from retrieval_pools.pool import build_pools
from retrieval_pools.pool_folder import open_pools, save_pools


@dataclass(frozen=True)
class Change:
    """What was asked before a user's latest interaction, and what is asked since."""

    before: list[Request]
    after: list[Request]


@dataclass(frozen=True)
class Setting:
    """What every arm starts from."""

    rows: list[Request]  # with the earlier texts
    earlier: Outcome  # the run that wrote these
    pools: Path  # with these texts, as a refresh has them
    without: Path  # the pools before
    tokenizer: ChatTokenizer


def refreshed(
    config: RunConfig, store: Store, pools: Path, scratch: Path, identity: Identity
) -> Setting:
    """Write the earlier texts, and put them into the pools of their groups, in `scratch`.

    Raises:
        DataError: the last wave has no user with a history.
    """
    tokenizer, change = identity.tokenizer, _change(config, store, identity)
    engine = make_engine(sized(config, max(config.benchmark.refresh_batch_sizes)), tokenizer)
    earlier = engine_arm(engine, NoDraft(), Strict())(change.before)
    frozen = open_pools(pools, tokenizer.fingerprint)
    documents = {group: [Document(text) for text in frozen.texts(group)] for group in frozen.groups}
    for row in change.after:
        documents.setdefault(row.group, []).append(Document(earlier.texts[row.key], wave=1))
    grown = build_pools(documents, config.pools.depth, config.pools.max_bytes)
    save_pools(grown, scratch, tokenizer.fingerprint)
    rows = [replace(row, previous_ids=earlier.texts[row.key]) for row in change.after]
    return Setting(rows, earlier, scratch, pools, tokenizer)


def sized(config: RunConfig, batch: int) -> RunConfig:
    """The config with another number of rows at once."""
    settings = config.engine.model_copy(update={"batch_rows": batch})
    return config.model_copy(update={"engine": settings})


def _change(config: RunConfig, store: Store, identity: Identity) -> Change:
    """Users of the last wave whose prompt shows an interaction that it can do without."""
    wave = open_wave(config, store, last_wave(config), identity, "")
    is_user = pc.equal(wave.tasks["kind"], "user")
    tasks = wave.tasks.filter(pc.and_(is_user, pc.greater(wave.tasks["source_events"], 1)))
    if not tasks.num_rows:
        raise DataError("the last wave has no user with a history; raise catalog.max_users")
    order = np.random.default_rng(config.seed).permutation(tasks.num_rows)
    tasks = tasks.take(order[: config.benchmark.refresh_rows])
    users, items, interactions = (store.read(name) for name in CATALOG)
    past = _without_latest(interactions)
    shorter = build_prompts("user", users, items, past, config.prompts, templates_of(config))
    texts = {prompt.entity_id: prompt.text for prompt in shorter}
    limits = (config.benchmark.max_new_tokens, config.prompts.max_tokens)
    after = requests_of(wave.prompted(tasks), identity.tokenizer, *limits)
    before = [
        replace(request, prompt_ids=identity.tokenizer.encode(texts[user]))
        for request, user in zip(after, tasks["entity_id"].to_pylist(), strict=True)
    ]
    usable = [
        number
        for number, request in enumerate(before)
        if len(after[number].prompt_ids) and len(request.prompt_ids) <= limits[1]
    ]
    return Change([before[number] for number in usable], [after[number] for number in usable])


def _without_latest(interactions: pa.Table) -> pa.Table:
    """The past without each user's latest part of it, a row per user."""
    past = interactions.filter(pc.equal(interactions["split"], "knowledge"))
    users = past["user_id"].to_pylist()  # in the order of time
    latest = {user: row for row, user in enumerate(users)}
    keep = np.ones(past.num_rows, bool)
    keep[list(latest.values())] = False
    return past.filter(pa.array(keep))
