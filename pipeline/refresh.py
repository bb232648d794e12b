"""A refresh: which rows of an earlier run still hold, and what the other entities said then."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipeline.decoding_config import GenerationSettings
from pipeline.knowledge import WaveIdentity, content_key
from pipeline.language_model import ChatTokenizer


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
    names = ("kind", "entity_id", "content_key", "prompt_key")
    asked = zip(*(tasks[name].to_pylist() for name in names), strict=True)
    found = []
    for kind, entity, key, prompt in asked:
        row = place.get((kind, entity))
        if row is None:
            continue
        is_same = keys[row] == key
        if not is_same and identity.rule == "relaxed":
            is_same = keys[row] == content_key(kind, entity, prompt, greedy, settings)
        if is_same:
            found.append(row)
    return np.array(found, np.int64)


def in_tokens_of(tokenizer: ChatTokenizer, knowledge: pa.Table, written_with: str) -> pa.Table:
    """KNOWLEDGE with the token ids that its texts have in `tokenizer`.

    `written_with` is the fingerprint of the tokenizer that its ids are of. Ids of another one mean
    other words.
    """
    if written_with == tokenizer.fingerprint:
        return knowledge
    texts = knowledge["text"].to_pylist()
    ids = [tokenizer.encode_exactly(text) if text else [] for text in texts]
    place = knowledge.schema.get_field_index("token_ids")
    column = pa.array(ids, knowledge.schema.field("token_ids").type)
    return knowledge.set_column(place, "token_ids", column)


class EarlierTexts:
    """What an earlier run says of each entity, in tokens."""

    def __init__(self, knowledge: pa.Table) -> None:
        """`knowledge`: (kind, entity_id, error, token_ids) of KNOWLEDGE."""
        self._places = _places(knowledge)
        self._ids = knowledge["token_ids"].combine_chunks()

    def beside(self, tasks: pa.Table) -> pa.Table:
        """A few rows of PROMPTED with their entities' texts."""
        entities = zip(tasks["kind"].to_pylist(), tasks["entity_id"].to_pylist(), strict=True)
        rows = [self._places.get(entity) for entity in entities]
        previous = [[] if row is None else self._ids[row].as_py() for row in rows]
        place = tasks.schema.get_field_index("previous_ids")
        field = tasks.schema.field(place)
        return tasks.set_column(place, field, pa.array(previous, field.type))


def _places(knowledge: pa.Table) -> dict[tuple[str, str], int]:
    """Row of every entity whose row has no error."""
    names = ("kind", "entity_id", "error")
    rows = zip(*(knowledge[name].to_pylist() for name in names), strict=True)
    return {(kind, entity): row for row, (kind, entity, error) in enumerate(rows) if not error}
