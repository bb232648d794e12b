"""CATALOG + GROUPS + pools -> KNOWLEDGE, in waves, on Ray Data actors.

    python -m jobs.generate_knowledge --config conf/demo.yaml

Wave 0 writes a few representatives of each group by plain decoding. Then, wave by wave, pools are
built from all earlier texts and frozen, and the next share of the entities drafts from them. With
`drafts.source: model` a smaller model drafts in every wave, and there are no pools.
Blocks are stored as they come, each with the keys of its rows: a killed run goes on with the rows
whose keys are missing.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs import cli
from jobs.build_pools import build_wave, knowledge_name
from jobs.cluster import bounded_retries, size_workers, start_ray
from jobs.generation_actor import GenerationActor, draft_model_of, require_same_tokenizer
from jobs.progress import heartbeat
from pipeline.config import RunConfig
from pipeline.errors import PartialError
from pipeline.knowledge import PLAIN_WAVE, WaveIdentity, make_tasks, plan_waves
from pipeline.language_model import (
    ChatTokenizer,
    check_language_model,
    load_tokenizer,
    model_fingerprint,
)
from pipeline.prompts import Prompt, build_prompts, templates_hash
from pipeline.store import DatasetWriter, Plan, Store

log = logging.getLogger("jobs.generate_knowledge")

CATALOG = ["users", "items", "interactions"]
Prompts = dict[tuple[str, str], Prompt]


@dataclass(frozen=True)
class Identity:
    """The models and the tokenizer of a run."""

    tokenizer: ChatTokenizer
    model: str  # fingerprint
    draft_model: str = ""  # fingerprint, if a model drafts


def run(config: RunConfig, store: Store) -> None:
    """Write `waves/<n>/knowledge` for all waves, then `knowledge`."""
    identity = identify(config)
    for wave in range(config.generation.waves + 1):
        write_wave(config, store, wave, identity)
    _merge(config, store)


def identify(config: RunConfig) -> Identity:
    """The configured models and tokenizer."""
    return Identity(
        load_tokenizer(config.language_model),
        model_fingerprint(config.language_model),
        model_fingerprint(draft_model_of(config)) if has_draft_model(config) else "",
    )


def write_wave(config: RunConfig, store: Store, wave: int, identity: Identity) -> None:
    """Write `waves/<wave>/knowledge`, and the pools it drafts from, unless they are up to date."""
    pools = None
    if wave_has_pools(config, wave):
        pools = build_wave(config, store, wave, identity.tokenizer.fingerprint)
    plan = plan_wave(config, store, wave, identity)
    if plan.is_done:
        log.info("%s: up to date, %d rows", plan.name, store.require(plan.name).num_rows)
        return
    tasks = wave_tasks(config, store, wave, identity, pools.fingerprint if pools else "")
    writer, stored = _resume(plan, tasks)
    missing = tasks.filter(pc.invert(pc.is_in(tasks["request_key"], stored)))
    log.info(
        "%s: %d rows to write, %d stored already",
        plan.name,
        missing.num_rows,
        tasks.num_rows - missing.num_rows,
    )
    folder = store.path(pools.name) if pools else None
    rule, tokenizer = wave_rule(config, wave), identity.tokenizer.fingerprint
    for block in _generate(config, missing, rule, folder, tokenizer, plan.name):
        writer.append(block)
    written = writer.existing()
    assert written.num_rows == tasks.num_rows, "a row was lost or written twice"
    writer.finish(_totals(written))
    log.info("%s: %s", plan.name, _sentence(written))


def _resume(plan: Plan, tasks: pa.Table) -> tuple[DatasetWriter, pa.Array]:
    """The writer of a wave, and the keys of the rows it holds.

    A stored row that nobody asks for any more (a chat template that prints the date, say) would
    stay for ever: then the wave is set aside whole and begun again.
    """
    writer = plan.open_writer()
    stored = writer.existing()["request_key"].combine_chunks()
    is_asked_for = pc.is_in(stored, tasks["request_key"].combine_chunks())
    if not pc.all(is_asked_for, min_count=0).as_py():  # of no rows all are
        plan.store.set_aside(plan.name)
        writer = plan.open_writer()
        stored = writer.existing()["request_key"].combine_chunks()
    return writer, stored


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
        if has_draft_model(config):
            settings["drafts"] = {"model": identity.draft_model, "tokens": config.drafts.tokens}
    pools = [f"waves/{wave}/pools"] if wave_has_pools(config, wave) else []
    return store.plan(knowledge_name(wave), settings, inputs=[*CATALOG, "groups", *pools])


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


def wave_tasks(
    config: RunConfig, store: Store, wave: int, identity: Identity, pool_version: str
) -> pa.Table:
    """The TASKS of a wave, group by group."""
    groups = store.read("groups")
    groups = groups.filter(pc.is_in(groups["kind"], pa.array(config.generation.kinds)))
    chosen = groups.filter(pa.array(plan_waves(groups, config.generation.waves) == wave))
    chosen = chosen.sort_by([("kind", "descending"), ("group_id", "ascending")])
    members = list(
        zip(*(chosen[name].to_pylist() for name in ("kind", "entity_id", "group_id")), strict=True)
    )
    wave_identity = WaveIdentity(
        wave,
        wave_rule(config, wave),
        pool_version,
        identity.model,
        identity.tokenizer.fingerprint,
    )
    prompts = _prompts(config, store)
    return make_tasks(prompts, members, identity.tokenizer, wave_identity, config.generation)


def _prompts(config: RunConfig, store: Store) -> Prompts:
    users, items, interactions = (store.read(name) for name in CATALOG)
    return {
        (prompt.kind, prompt.entity_id): prompt
        for kind in config.generation.kinds
        for prompt in build_prompts(kind, users, items, interactions, config.prompts)
    }


def _generate(
    config: RunConfig, tasks: pa.Table, rule: str, pools: Path | None, tokenizer: str, what: str
) -> Iterator[pa.Table]:
    """Blocks of KNOWLEDGE as the actors finish them."""
    if not tasks.num_rows:
        return
    _check_models(config, tokenizer)
    start_ray(config.cluster)
    import ray

    device = config.language_model.device
    workers = size_workers(config.cluster, device, ray.cluster_resources())
    size = config.generation.block_rows
    blocks = [tasks.slice(start, size) for start in range(0, tasks.num_rows, size)]
    with heartbeat(log, what, tasks.num_rows) as board:
        knowledge = ray.data.from_arrow(blocks).map_batches(
            GenerationActor,
            fn_constructor_args=(config, rule, pools, workers.threads_each, board),
            batch_size=None,  # a block is a batch
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=min(workers.actors, len(blocks))),
            num_cpus=1,
            num_gpus=workers.gpus_each,
            ray_remote_args_fn=bounded_retries,
        )
        yield from knowledge.iter_batches(batch_size=None, batch_format="pyarrow")


def _check_models(config: RunConfig, tokenizer: str) -> None:
    """Refuse here what the actors would refuse, where it reaches the user as it is."""
    check_language_model(config.language_model)
    if has_draft_model(config):
        check_language_model(draft_model_of(config))
        require_same_tokenizer(config, tokenizer)


def _merge(config: RunConfig, store: Store) -> None:
    """All waves as one table: users, then items, in the order of GROUPS."""
    waves = [knowledge_name(wave) for wave in range(config.generation.waves + 1)]
    plan = store.plan("knowledge", {}, inputs=[*waves, "groups"])
    if plan.is_done:
        log.info("knowledge: up to date, %d rows", store.require("knowledge").num_rows)
    else:
        merged = pa.concat_tables([store.read(name) for name in waves])
        plan.write(_in_group_order(merged, store.read("groups")), _totals(merged))
        log.info("knowledge: %s", _sentence(merged))
    totals = store.require("knowledge").facts
    if totals["errors"] > config.generation.max_error_share * max(totals["rows"], 1):
        raise PartialError(
            f"{totals['errors']} of {totals['rows']} rows failed, more than "
            f"generation.max_error_share {config.generation.max_error_share:.2%}; the others are "
            f"stored. First error: {totals['first_error']}"
        )


def _in_group_order(knowledge: pa.Table, groups: pa.Table) -> pa.Table:
    keys = list(zip(groups["kind"].to_pylist(), groups["entity_id"].to_pylist(), strict=True))
    rank = {key: position for position, key in enumerate(keys)}
    rows = zip(knowledge["kind"].to_pylist(), knowledge["entity_id"].to_pylist(), strict=True)
    return knowledge.take(np.argsort([rank[row] for row in rows], kind="stable"))


def _totals(knowledge: pa.Table) -> dict[str, Any]:
    failed = knowledge.filter(pc.not_equal(knowledge["error"], ""))
    return {
        "rows": knowledge.num_rows,
        "errors": failed.num_rows,
        "first_error": failed["error"][0].as_py() if failed.num_rows else "",
        "tokens": int(pc.sum(pc.list_value_length(knowledge["token_ids"])).as_py() or 0),
        "forward_passes": int(pc.sum(knowledge["forward_passes"]).as_py() or 0),
        "relaxed_tokens": int(pc.sum(knowledge["relaxed_tokens"]).as_py() or 0),
    }


def _sentence(knowledge: pa.Table) -> str:
    totals = _totals(knowledge)
    rate = totals["tokens"] / max(totals["forward_passes"], 1)
    return (
        f"{totals['rows']} rows, {totals['tokens']} tokens, {rate:.2f} tokens per forward pass, "
        f"{totals['relaxed_tokens']} relaxed tokens, {totals['errors']} errors"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
