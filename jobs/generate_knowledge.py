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
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.frameworks import templates_of
from jobs import cli
from jobs.build_pools import build_wave
from jobs.merge_waves import STRETCH, in_words, merged, sum_of, totals_in, totals_of
from jobs.wave_names import knowledge_name, last_wave, wave_has_pools
from jobs.waves import (
    Identity,
    earlier_run,
    groups_of,
    identify,
    open_prompts,
    open_wave,
    plan_wave,
    tasks_of,
    wave_identity,
    wave_rule,
)
from jobs.writers import Writers
from pipeline.config import RunConfig
from pipeline.errors import PartialError
from pipeline.knowledge import is_among
from pipeline.refresh import rows_that_hold
from pipeline.row_batches import Rows
from pipeline.store import DatasetWriter, Plan, Store
from pipeline.template_files import late_tasks

log = logging.getLogger("jobs.generate_knowledge")


def run(config: RunConfig, store: Store) -> None:
    """Write `waves/<n>/knowledge` for all waves, then `knowledge`."""
    for warning in late_tasks(templates_of(config), config.prompts.domain):
        log.warning("knowledge: %s", warning)
    identity = identify(config)
    with Writers(config, identity.tokenizer) as writers:
        if config.refresh.previous:
            carry_over(config, store, identity)
        else:
            write_wave(config, store, 0, identity, writers)
        for wave in range(1, last_wave(config) + 1):
            write_wave(config, store, wave, identity, writers)
    _merge(config, store)


def write_wave(
    config: RunConfig, store: Store, wave: int, identity: Identity, writers: Writers
) -> None:
    """Write `waves/<wave>/knowledge`, and the pools it drafts from, unless they are up to date."""
    pools = None
    if wave_has_pools(config, wave):
        pools = build_wave(config, store, wave, identity.tokenizer)
    plan = plan_wave(config, store, wave, identity)
    if plan.is_done:
        log.info("%s: up to date, %d rows", plan.name, store.require(plan.name).num_rows)
        return
    opened = open_wave(config, store, wave, identity, pools.fingerprint if pools else "")
    writer, stored = _resume(plan, opened.tasks)
    missing = replace(opened, tasks=_without(opened.tasks, stored))
    log.info(
        "%s: %d rows to write, %d stored already",
        plan.name,
        missing.tasks.num_rows,
        opened.tasks.num_rows - missing.tasks.num_rows,
    )
    folder = partial(store.files.local, pools.name) if pools else None
    parts = _Parts(writer, config.generation.block_rows)
    try:
        for rows in writers.write(missing, wave_rule(config, wave), folder, plan.name):
            parts.add(rows)
    finally:  # whatever ends the job, what is finished is stored
        parts.store()
    totals = totals_of(writer.parts())
    assert totals["rows"] == opened.tasks.num_rows, "a row was lost or written twice"
    steps = asdict(writers.steps) | {"rows_written": missing.tasks.num_rows}
    writer.finish(totals | {"steps": steps})
    log.info("%s: %s", plan.name, in_words(totals))


def _without(tasks: pa.Table, stored: pa.Array) -> pa.Table:
    """The tasks whose keys are not stored."""
    return tasks.filter(pc.invert(pc.is_in(tasks["request_key"], stored)))


def carry_over(config: RunConfig, store: Store, identity: Identity) -> None:
    """Write wave 0 of a refresh: rows of the earlier run that hold, as they are."""
    plan = plan_wave(config, store, 0, identity)
    if plan.is_done:
        log.info("%s: up to date, %d rows", plan.name, store.require(plan.name).num_rows)
        return
    earlier = earlier_run(config)
    assert earlier is not None, "RefreshSettings names it"
    wanted = wave_identity(config, last_wave(config), identity, "")
    prompts = open_prompts(config, store)
    tasks = tasks_of(config, prompts, groups_of(config, store), identity.tokenizer, wanted)
    knowledge = earlier.read("knowledge")
    rows = rows_that_hold(tasks, knowledge, wanted, config.generation)
    wave = knowledge.schema.get_field_index("wave")  # of this run; all else is as it was written
    writer, earlier_rows, totals = plan.open_writer(), Rows(knowledge), []
    writer.clear()
    for start in range(0, max(len(rows), 1), STRETCH):
        carried = earlier_rows.take(rows[start : start + STRETCH])
        zeros = pa.array(np.zeros(carried.num_rows, np.int32))
        writer.append(carried.set_column(wave, "wave", zeros))
        totals.append(totals_in(carried))
    writer.finish(sum_of(totals) | {"rows_written": len(rows)})
    new, gone = _count_missing(tasks, knowledge), _count_missing(knowledge, tasks)
    log.info(
        "%s: %d of %d rows of %s hold; to be written: %d new, %d whose prompt or settings changed "
        "or whose row had failed; %d gone",
        plan.name,
        len(rows),
        knowledge.num_rows,
        config.refresh.previous,
        new,
        tasks.num_rows - len(rows) - new,
        gone,
    )


def _count_missing(table: pa.Table, others: pa.Table) -> int:
    """How many entities of `table` have no row in `others`."""
    return pc.sum(pc.invert(is_among(table, others)), min_count=0).as_py()


def _resume(plan: Plan, tasks: pa.Table) -> tuple[DatasetWriter, pa.Array]:
    """The writer of a wave, and the keys of the rows it holds.

    A stored row that nobody asks for any more (a chat template that prints the date, say) would
    stay for ever: then the wave is set aside whole and begun again.
    """
    writer = plan.open_writer()
    stored = writer.existing(["request_key"])["request_key"].combine_chunks()
    is_asked_for = pc.is_in(stored, tasks["request_key"].combine_chunks())
    if not pc.all(is_asked_for, min_count=0).as_py():  # of no rows all are
        plan.store.set_aside(plan.name)
        writer = plan.open_writer()
        stored = writer.existing(["request_key"])["request_key"].combine_chunks()
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
        if errors := (totals := totals_in(rows))["errors"]:
            text = "knowledge: %d of %d rows failed, the first: %s"
            log.warning(text, errors, rows.num_rows, totals["first_error"])


def _merge(config: RunConfig, store: Store) -> None:
    """All waves as one table."""
    waves = [knowledge_name(wave) for wave in range(last_wave(config) + 1)]
    plan = store.plan("knowledge", {}, inputs=[*waves, "groups"])
    if plan.is_done:
        log.info("knowledge: up to date, %d rows", store.require("knowledge").num_rows)
    else:
        writer = plan.open_writer()
        writer.clear()
        for rows in merged(store, waves, groups_of(config, store)):
            writer.append(rows)
        totals = sum_of([store.require(name).facts for name in waves])
        writer.finish(totals | {"framework": config.framework})
        log.info("knowledge: %s", in_words(totals))
    totals = store.require("knowledge").facts
    if totals["errors"] > config.generation.max_error_share * max(totals["rows"], 1):
        raise PartialError(
            f"{totals['errors']} of {totals['rows']} rows failed, more than "
            f"generation.max_error_share {config.generation.max_error_share:.2%}; the others are "
            f"stored. First error: {totals['first_error']}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
