"""What a wave consists of: who is in it, under which rule, and what it depends on.

A first run has wave 0, a few representatives of each group, and then `generation.waves` more. A
refresh has two: wave 0, the rows of the earlier run that still hold, and wave 1, all others.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.generation_actor import draft_model_of
from pipeline.config import RunConfig
from pipeline.knowledge import PLAIN_WAVE, WaveIdentity, make_tasks, plan_waves
from pipeline.language_model import ChatTokenizer, load_tokenizer, model_fingerprint
from pipeline.prompts import Prompt, build_prompts, templates_hash
from pipeline.refresh import in_tokens_of, with_previous_text
from pipeline.runs import open_run
from pipeline.store import Plan, Store

CATALOG = ["users", "items", "interactions"]
_CARRIED, _REFRESHED = 0, 1  # waves of a refresh
Prompts = dict[tuple[str, str], Prompt]


@dataclass(frozen=True)
class Identity:
    """The models and the tokenizer of a run."""

    tokenizer: ChatTokenizer
    model: str  # fingerprint
    draft_model: str = ""  # fingerprint, if a model drafts


def knowledge_name(wave: int) -> str:
    """Dataset of one wave's knowledge."""
    return f"waves/{wave}/knowledge"


def pools_name(wave: int) -> str:
    """Dataset of the pools that a wave drafts from."""
    return f"waves/{wave}/pools"


def last_wave(config: RunConfig) -> int:
    """Number of the wave that ends the run."""
    return _REFRESHED if config.refresh.previous else config.generation.waves


def earlier_run(config: RunConfig) -> Store | None:
    """The run that a refresh goes on from.

    Raises:
        DataError: its knowledge has not been made, or not finished.
    """
    if not config.refresh.previous:
        return None
    earlier = open_run(config.artifacts, config.refresh.previous)
    earlier.require("knowledge")
    return earlier


def earlier_knowledge(earlier: Store, tokenizer: ChatTokenizer) -> pa.Table:
    """All KNOWLEDGE of an earlier run, in tokens of today's tokenizer."""
    written_with = earlier.require(knowledge_name(0)).settings["tokenizer"]
    return in_tokens_of(tokenizer, earlier.read("knowledge"), written_with)


def identify(config: RunConfig) -> Identity:
    """The configured models and tokenizer."""
    return Identity(
        load_tokenizer(config.language_model),
        model_fingerprint(config.language_model),
        model_fingerprint(draft_model_of(config)) if has_draft_model(config) else "",
    )


def plan_wave(config: RunConfig, store: Store, wave: int, identity: Identity) -> Plan:
    """What a wave's knowledge depends on: on who drafts only where drafts change the text."""
    generation = config.generation.model_dump(
        mode="json", exclude={"block_rows", "max_error_share"}
    )
    settings = {
        "prompts": config.prompts,
        "templates": templates_hash(),
        "generation": generation,
        "model": identity.model,
        "tokenizer": identity.tokenizer.fingerprint,
    }
    if wave_rule(config, wave) in ("relaxed", "sampled"):
        settings["draft_nodes"] = config.engine.draft_nodes
        settings["sources"] = config.drafts.sources
        if has_draft_model(config):
            settings["drafts"] = {"model": identity.draft_model, "tokens": config.drafts.tokens}
    inputs = [*CATALOG, "groups"]
    if wave_has_pools(config, wave):
        inputs.append(pools_name(wave))
    if earlier := earlier_run(config):
        settings["earlier"] = earlier.require("knowledge").version
    return store.plan(knowledge_name(wave), settings, inputs)


def wave_rule(config: RunConfig, wave: int) -> str:
    """Without drafts wave 0 has nothing to relax."""
    rule = config.generation.rule
    is_plain = wave == PLAIN_WAVE and not has_draft_model(config) and rule != "sampled"
    return "plain" if is_plain else rule


def has_draft_model(config: RunConfig) -> bool:
    """Whether a model drafts, not the pools."""
    return config.drafts.source == "model"


def wave_has_pools(config: RunConfig, wave: int) -> bool:
    """Whether a wave drafts from the texts of those before it."""
    return wave != PLAIN_WAVE and not has_draft_model(config)


def why_no_comparison(config: RunConfig, store: Store) -> str:
    """Why a complete run has no `comparison`; "" if it has one."""
    if not config.comparison.rows_per_kind:
        return "comparison.rows_per_kind is 0"
    last = store.manifest(knowledge_name(last_wave(config)))
    is_empty = last is not None and not last.num_rows  # a refresh found nothing to write
    return "the last wave had no text to write" if is_empty else ""


def wave_tasks(
    config: RunConfig, store: Store, wave: int, identity: Identity, pool_version: str
) -> pa.Table:
    """The TASKS of a wave, group by group; in a refresh each with its entity's earlier text."""
    groups = groups_of(config, store)
    earlier = earlier_run(config)
    if earlier is None:
        is_chosen = plan_waves(groups, config.generation.waves) == wave
    else:
        is_chosen = ~_is_in(groups, store.read(knowledge_name(_CARRIED)))
    chosen = groups.filter(pa.array(is_chosen))
    wanted = wave_identity(config, wave, identity, pool_version)
    tasks = tasks_of(config, store, chosen, identity.tokenizer, wanted)
    if earlier is None:
        return tasks
    return with_previous_text(tasks, earlier_knowledge(earlier, identity.tokenizer))


def groups_of(config: RunConfig, store: Store) -> pa.Table:
    """GROUPS of the kinds that are written about."""
    groups = store.read("groups")
    return groups.filter(pc.is_in(groups["kind"], pa.array(config.generation.kinds)))


def tasks_of(
    config: RunConfig,
    store: Store,
    groups: pa.Table,
    tokenizer: ChatTokenizer,
    identity: WaveIdentity,
) -> pa.Table:
    """TASKS for the entities of `groups`, group by group."""
    ordered = groups.sort_by([("kind", "descending"), ("group_id", "ascending")])
    names = ("kind", "entity_id", "group_id")
    members = list(zip(*(ordered[name].to_pylist() for name in names), strict=True))
    return make_tasks(_prompts(config, store), members, tokenizer, identity, config.generation)


def wave_identity(
    config: RunConfig, wave: int, identity: Identity, pool_version: str
) -> WaveIdentity:
    """What all rows of a wave have in common."""
    return WaveIdentity(
        wave,
        wave_rule(config, wave),
        pool_version,
        identity.model,
        identity.tokenizer.fingerprint,
    )


def _is_in(groups: pa.Table, knowledge: pa.Table) -> np.ndarray:
    """Which entities of GROUPS have a row: (entities,) bool."""
    names = ("kind", "entity_id")
    written = set(zip(*(knowledge[name].to_pylist() for name in names), strict=True))
    entities = zip(*(groups[name].to_pylist() for name in names), strict=True)
    return np.array([entity in written for entity in entities], bool)


def _prompts(config: RunConfig, store: Store) -> Prompts:
    users, items, interactions = (store.read(name) for name in CATALOG)
    return {
        (prompt.kind, prompt.entity_id): prompt
        for kind in config.generation.kinds
        for prompt in build_prompts(kind, users, items, interactions, config.prompts)
    }
