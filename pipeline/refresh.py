"""A refresh: which rows of an earlier run still hold, and what the other entities said then."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipeline.decoding_config import GenerationSettings
from pipeline.knowledge import WaveIdentity, content_key


def rows_that_hold(
    tasks: pa.Table, earlier: pa.Table, identity: WaveIdentity, settings: GenerationSettings
) -> np.ndarray:
    """Rows of KNOWLEDGE `earlier` that answer a task as it would be answered now: (rows,) int64.

    In the order of `tasks`. A greedy text also stands where the relaxed rule is asked for, which
    only ever comes near it. Rows with an error never hold.
    """
    place = _places(earlier)
    keys = earlier["content_key"].to_pylist()
    greedy = replace(identity, rule="strict")
    found = []
    for task in tasks.select(["kind", "entity_id", "content_key", "prompt_ids"]).to_pylist():
        row = place.get((task["kind"], task["entity_id"]))
        if row is None:
            continue
        if keys[row] == task["content_key"] or (
            identity.rule == "relaxed" and keys[row] == _key(task, greedy, settings)
        ):
            found.append(row)
    return np.array(found, np.int64)


def with_previous_text(tasks: pa.Table, earlier: pa.Table) -> pa.Table:
    """TASKS with the texts that `earlier` KNOWLEDGE holds of the same entities."""
    place = _places(earlier)
    texts = earlier["token_ids"]
    entities = zip(tasks["kind"].to_pylist(), tasks["entity_id"].to_pylist(), strict=True)
    rows = [place.get(entity) for entity in entities]
    previous = [[] if row is None else texts[row].as_py() for row in rows]
    column = pa.array(previous, tasks.schema.field("previous_ids").type)
    return tasks.set_column(tasks.schema.get_field_index("previous_ids"), "previous_ids", column)


def _places(knowledge: pa.Table) -> dict[tuple[str, str], int]:
    """Row of every entity whose row has no error."""
    names = ("kind", "entity_id", "error")
    rows = zip(*(knowledge[name].to_pylist() for name in names), strict=True)
    return {(kind, entity): row for row, (kind, entity, error) in enumerate(rows) if not error}


def _key(task: dict, identity: WaveIdentity, settings: GenerationSettings) -> str:
    prompt_ids = np.array(task["prompt_ids"], np.int32)
    return content_key(task["kind"], task["entity_id"], prompt_ids, identity, settings)
