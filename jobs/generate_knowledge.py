"""CATALOG + GROUPS + pools -> KNOWLEDGE, in waves, on Ray actors.

    python -m jobs.generate_knowledge --config conf/demo.yaml

Wave 0 writes a few representatives of each group by plain decoding. Then, wave by wave, pools are
built from all earlier texts and frozen, and the next share of the entities drafts from them. With
`drafts.source: model` a smaller model drafts in every wave, and there are no pools.
In a refresh wave 0 is what the earlier run has and still holds, and wave 1 writes all the others,
each entity's earlier text first among the drafts.
Rows are stored in parts as they come, each with its key: a killed run goes on with the rows whose
keys are missing.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs import cli
from jobs.actor_pool import through_actors
from jobs.build_pools import build_wave
from jobs.cluster import node_resources, size_workers, start_ray
from jobs.generation_actor import GenerationActor, draft_model_of, require_same_tokenizer
from jobs.progress import board_of, heartbeat
from jobs.waves import (
    Identity,
    earlier_run,
    groups_of,
    has_draft_model,
    identify,
    knowledge_name,
    last_wave,
    plan_wave,
    tasks_of,
    wave_has_pools,
    wave_identity,
    wave_rule,
    wave_tasks,
)
from pipeline.config import RunConfig
from pipeline.engine.types import Generation
from pipeline.errors import PartialError
from pipeline.knowledge import collect
from pipeline.language_model import ChatTokenizer, check_language_model
from pipeline.refresh import rows_that_hold
from pipeline.store import DatasetWriter, Plan, Store

log = logging.getLogger("jobs.generate_knowledge")

_BLOCKS_IN_SLOTS = 16  # at most, of those that an actor works on; as many again wait there


def run(config: RunConfig, store: Store) -> None:
    """Write `waves/<n>/knowledge` for all waves, then `knowledge`."""
    identity = identify(config)
    if config.refresh.previous:
        carry_over(config, store, identity)
    else:
        write_wave(config, store, 0, identity)
    for wave in range(1, last_wave(config) + 1):
        write_wave(config, store, wave, identity)
    _merge(config, store)


def write_wave(config: RunConfig, store: Store, wave: int, identity: Identity) -> None:
    """Write `waves/<wave>/knowledge`, and the pools it drafts from, unless they are up to date."""
    pools = None
    if wave_has_pools(config, wave):
        pools = build_wave(config, store, wave, identity.tokenizer)
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
    folder = partial(store.files.local, pools.name) if pools else None
    rule, tokenizer = wave_rule(config, wave), identity.tokenizer
    parts = _Parts(writer, config.generation.block_rows)
    try:
        for rows in _generate(config, missing, rule, folder, tokenizer, plan.name):
            parts.add(rows)
    finally:  # whatever ends the job, what is finished is stored
        parts.store()
    written = writer.existing()
    assert written.num_rows == tasks.num_rows, "a row was lost or written twice"
    writer.finish(_totals(written))
    log.info("%s: %s", plan.name, _sentence(written))


def carry_over(config: RunConfig, store: Store, identity: Identity) -> None:
    """Write wave 0 of a refresh: rows of the earlier run that hold, as they are."""
    plan = plan_wave(config, store, 0, identity)
    if plan.is_done:
        log.info("%s: up to date, %d rows", plan.name, store.require(plan.name).num_rows)
        return
    earlier = earlier_run(config)
    assert earlier is not None, "RefreshSettings names it"
    wanted = wave_identity(config, last_wave(config), identity, "")
    tasks = tasks_of(config, store, groups_of(config, store), identity.tokenizer, wanted)
    knowledge = earlier.read("knowledge")
    rows = rows_that_hold(tasks, knowledge, wanted, config.generation)
    wave = knowledge.schema.get_field_index("wave")  # of this run; all else is as it was written
    zeros = pa.array(np.zeros(len(rows), np.int32))
    carried = knowledge.take(pa.array(rows)).set_column(wave, "wave", zeros)
    plan.write(carried, _totals(carried))
    new, gone = (len(own - other) for own, other in _differences(tasks, knowledge))
    log.info(
        "%s: %d of %d rows of %s hold; to be written: %d new, %d whose prompt or settings changed "
        "or whose row had failed; %d gone",
        plan.name,
        len(rows),
        knowledge.num_rows,
        earlier.files.address,
        new,
        tasks.num_rows - len(rows) - new,
        gone,
    )


def _differences(tasks: pa.Table, knowledge: pa.Table) -> list[tuple[set, set]]:
    """Today's entities and those of the earlier run, either way round."""
    today, before = (
        set(zip(table["kind"].to_pylist(), table["entity_id"].to_pylist(), strict=True))
        for table in (tasks, knowledge)
    )
    return [(today, before), (before, today)]


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


class _Parts:
    """Rows that are finished, until there are enough of them for a part."""

    def __init__(self, writer: DatasetWriter, size: int) -> None:
        self._writer = writer
        self._size = size
        self._rows: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        """Store a part, now or with later rows."""
        self._rows.append(rows)
        if sum(table.num_rows for table in self._rows) >= self._size:
            self.store()

    def store(self) -> None:
        """Store what there is; what an interrupt meets on its way is not stored twice."""
        tables, self._rows = self._rows, []
        if not tables:
            return
        rows = pa.concat_tables(tables)
        self._writer.append(rows)
        if errors := (totals := _totals(rows))["errors"]:
            log.warning("%d of %d rows failed: %s", errors, rows.num_rows, totals["first_error"])


def _generate(
    config: RunConfig,
    tasks: pa.Table,
    rule: str,
    pools: Callable[[], Path] | None,
    tokenizer: ChatTokenizer,
    what: str,
) -> Iterator[pa.Table]:
    """Rows of KNOWLEDGE as the actors finish them.

    Any actor serves any group. A block is a few rows and each actor holds many: a free slot never
    waits for a block to end, and at a wave's end no actor is left with more rows than another.
    """
    if not tasks.num_rows:
        return
    _check_models(config, tokenizer.fingerprint)
    start_ray(config.cluster)
    slots = config.engine.batch_rows
    size = math.ceil(slots / _BLOCKS_IN_SLOTS)
    blocks = math.ceil(tasks.num_rows / size)
    workers = size_workers(config.cluster, config.language_model.device, node_resources())
    workers = workers.at_most(blocks)
    held = min(math.ceil(2 * slots / size), math.ceil(blocks / workers.actors))

    def refuse(rows: pa.Table, cause: str) -> pa.Table:
        failed = [Generation.failed(str(row), cause) for row in range(rows.num_rows)]
        return collect(rows, failed, tokenizer, config.prompts.max_tokens)

    with heartbeat(log, what, tasks.num_rows) as board:
        arguments = (config, rule, pools, workers.threads_each, board)
        slices = (tasks.slice(start, size) for start in range(0, tasks.num_rows, size))
        count = board_of(board).add.remote
        for rows in through_actors(
            GenerationActor, arguments, slices, workers, ordered=False, held=held, refuse=refuse
        ):
            totals = _totals(rows)
            count(*(totals[name] for name in ("rows", "tokens", "forward_passes", "errors")))
            yield rows


def _check_models(config: RunConfig, tokenizer: str) -> None:
    """Refuse here what the actors would refuse, where it reaches the user as it is."""
    check_language_model(config.language_model)
    if has_draft_model(config):
        check_language_model(draft_model_of(config))
        require_same_tokenizer(config, tokenizer)


def _merge(config: RunConfig, store: Store) -> None:
    """All waves as one table: users, then items, in the order of GROUPS."""
    waves = [knowledge_name(wave) for wave in range(last_wave(config) + 1)]
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
