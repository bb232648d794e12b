"""What a wave consists of: who is in it, under which rule, and what it depends on.

A first run has wave 0, a few representatives of each group, and then `generation.waves` more. A
refresh has two: wave 0, the rows of the earlier run that still hold, and wave 1, all others.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from features.frameworks import REGISTRY, shipped_templates, templates_of
from jobs.generation_actor import draft_model_of
from jobs.wave_names import has_draft_model, knowledge_name, pools_name, wave_has_pools
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.knowledge import (
    MEMBER,
    PLAIN_WAVE,
    WaveIdentity,
    is_among,
    make_tasks,
    plan_waves,
    with_prompts,
)
from pipeline.language_model import ChatTokenizer, load_tokenizer
from pipeline.model_identity import model_fingerprint
from pipeline.parts import read_batches
from pipeline.prompts import Prompts
from pipeline.refresh import EarlierTexts, in_tokens_of
from pipeline.runs import open_run
from pipeline.schemas import INTERACTIONS, ITEMS, USERS
from pipeline.store import Plan, Store

CATALOG = ["users", "items", "interactions"]
# Of KNOWLEDGE, what drafts are made of.
_SAID = [
    *("kind", "entity_id", "group_id", "wave", "rule", "relaxed_tokens"),
    *("text", "token_ids", "error"),
]
_CARRIED = 0  # wave of a refresh


@dataclass(frozen=True)
class Identity:
    """The models and the tokenizer of a run."""

    tokenizer: ChatTokenizer
    model: str  # fingerprint
    draft_model: str = ""  # fingerprint, if a model drafts


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
    """What an earlier run says, in tokens of today's tokenizer: columns of KNOWLEDGE."""
    written_with = earlier.require(knowledge_name(0)).settings["tokenizer"]
    return in_tokens_of(tokenizer, earlier.read("knowledge", _SAID), written_with)


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
        "prompts": config.prompts.deciding(),
        "templates": templates_of(config).hash,
        "generation": generation,
        "model": identity.model,
        "tokenizer": identity.tokenizer.fingerprint,
    }
    if wave_rule(config, wave) in ("relaxed", "sampled"):
        settings["draft_nodes"] = config.engine.draft_nodes
        settings["sources"] = config.drafts.sources
        if has_draft_model(config):
            settings["drafts"] = {"model": identity.draft_model, "tokens": config.drafts.tokens}
        elif config.drafts.source != "pools":  # runs from before there was a choice stay current
            settings["drafts"] = {"source": config.drafts.source}
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


@dataclass(frozen=True)
class Wave:
    """Who is in a wave, and what they are asked."""

    tasks: pa.Table  # TASKS
    prompts: Prompts
    earlier: EarlierTexts | None = None  # in a refresh

    def prompted(self, tasks: pa.Table) -> pa.Table:
        """PROMPTED for a few rows of `tasks`; in a refresh each with its entity's earlier text."""
        whole = with_prompts(tasks, self.prompts)
        return self.earlier.beside(whole) if self.earlier else whole


def open_wave(
    config: RunConfig, store: Store, wave: int, identity: Identity, pool_version: str
) -> Wave:
    """The tasks of a wave, group by group."""
    groups = groups_of(config, store)
    prompts = open_prompts(config, store)
    wanted = wave_identity(config, wave, identity, pool_version)
    earlier = earlier_run(config)
    if earlier is None:
        chosen = groups.filter(pa.array(plan_waves(groups, config.generation.waves) == wave))
        return Wave(tasks_of(config, prompts, chosen, identity.tokenizer, wanted), prompts)
    carried = store.read(knowledge_name(_CARRIED), ["kind", "entity_id"])
    chosen = groups.filter(pc.invert(is_among(groups, carried)))
    tasks = tasks_of(config, prompts, chosen, identity.tokenizer, wanted)
    return Wave(tasks, prompts, EarlierTexts(earlier_knowledge(earlier, identity.tokenizer)))


def groups_of(config: RunConfig, store: Store) -> pa.Table:
    """GROUPS of the kinds that are written about."""
    groups = store.read("groups")
    return groups.filter(pc.is_in(groups["kind"], pa.array(config.generation.kinds)))


def tasks_of(
    config: RunConfig,
    prompts: Prompts,
    groups: pa.Table,
    tokenizer: ChatTokenizer,
    identity: WaveIdentity,
) -> pa.Table:
    """TASKS for the entities of `groups`, group by group."""
    members = groups.sort_by([("kind", "descending"), ("group_id", "ascending")]).select(MEMBER)
    return make_tasks(prompts, members, tokenizer, identity, config.generation)


def open_prompts(config: RunConfig, store: Store) -> Prompts:
    """What the catalog's entities are asked."""
    users, items, interactions = (store.read(name) for name in CATALOG)
    return Prompts(users, items, interactions, config.prompts, templates_of(config))


def open_prompts_of(
    config: RunConfig, store: Store, user_ids: pa.Array, item_ids: pa.Array
) -> Prompts:
    """What a few users and items are asked; no more of the catalog is held than that takes."""
    past, ratings = [], [pa.array([], pa.float32())]
    for some in read_batches(store.parts("interactions"), INTERACTIONS, INTERACTIONS.names):
        earlier = some.filter(pc.equal(some["split"], "knowledge"))
        ratings.append(pc.unique(earlier["rating"]))
        past.append(earlier.filter(pc.is_in(earlier["user_id"], value_set=user_ids)))
    own = pa.concat_tables(past)
    named = pa.chunked_array([item_ids, *own["item_id"].chunks], pa.string())
    users = _those(store, "users", USERS, user_ids)
    items = _those(store, "items", ITEMS, pc.unique(named))
    known = pc.unique(pa.chunked_array(ratings))
    ratings_of_all = pa.chunked_array([known])
    return Prompts(users, items, own, config.prompts, templates_of(config), ratings_of_all)


def _those(store: Store, name: str, schema: pa.Schema, ids: pa.Array) -> pa.Table:
    batches = read_batches(store.parts(name), schema, schema.names)
    return pa.concat_tables(one.filter(pc.is_in(one[0], value_set=ids)) for one in batches)


def require_own_vectors(store: Store) -> None:
    """Check that features are of the knowledge that there is.

    Raises:
        DataError: they were made from other knowledge.
    """
    if store.require("features").inputs["knowledge"] != store.require("knowledge").version:
        raise DataError(
            f"{store.files.address}: features were made from other knowledge; run "
            "`laser encode` again"
        )


def require_own_framework(config: RunConfig, store: Store) -> None:
    """Check that the knowledge was not written for another framework than the configured one.

    Knowledge of an older wording passes: its framework is not known. Knowledge that is not made
    from the waves beside it does not: a change of framework that was interrupted leaves it so.

    Raises:
        DataError: it was, or its waves are being written anew.
    """
    if store.manifest("knowledge") is not None and not store.is_consistent("knowledge"):
        raise DataError(
            "knowledge was made from other waves or groups than those beside it; run "
            "`laser generate` again"
        )
    written_for = framework_of_knowledge(store)
    if written_for not in ("", config.framework):
        raise DataError(
            f"knowledge was written for the framework {written_for}, and the config names "
            f"{config.framework}; run `laser generate` again, or name {written_for}"
        )


def framework_of_knowledge(store: Store) -> str:
    """As the merged knowledge says, in older runs as the wording of wave 0 tells; "" if neither."""
    whole, first = (store.manifest(name) for name in ("knowledge", knowledge_name(PLAIN_WAVE)))
    if whole is not None and "framework" in whole.facts:
        return whole.facts["framework"]
    asked = first.settings.get("templates") if first else None
    names = (name for name in REGISTRY if asked == shipped_templates(name).hash)
    return next(names, "")


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
