"""From prompts to rows of KNOWLEDGE: request keys, waves, and one row out for every row in."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.decoding_config import GenerationSettings
from pipeline.engine.types import Generation, Request
from pipeline.errors import DataError
from pipeline.language_model import ChatTokenizer
from pipeline.prompts import Kind, Prompt, Prompts, prompt_hash
from pipeline.schemas import KNOWLEDGE
from pipeline.store import fingerprint
from pipeline.token_identity import key_of_ids

# What a row of knowledge is owed for. Its prompt is left out: see `with_prompts`.
TASKS = pa.schema(
    [
        ("kind", pa.string()),
        ("entity_id", pa.string()),
        ("group_id", pa.string()),
        ("row", pa.int64()),  # of the catalog's users or items
        ("wave", pa.int32()),
        ("prompt_hash", pa.string()),
        ("prompt_key", pa.string()),  # hash of the prompt's token ids
        ("prompt_tokens", pa.int32()),
        ("content_key", pa.string()),
        ("request_key", pa.string()),
        ("rule", pa.string()),
        ("pool_version", pa.string()),
        ("asof", pa.int64()),
        ("source_events", pa.int32()),
        ("latest_source", pa.int64()),
    ]
)

# What a worker needs to write it.
PROMPTED = pa.schema(
    [
        *TASKS,
        ("prompt", pa.string()),
        ("previous_ids", pa.list_(pa.int32())),  # the entity's earlier text, [] if none
    ]
)

MEMBER = ("kind", "entity_id", "group_id")  # of a group
PLAIN_WAVE = 0

_ASKED_AT_ONCE = 1024  # prompts in memory
_TELL = 10.0  # s between lines of progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WaveIdentity:
    """Everything besides the prompt that decides what a row of a wave may contain."""

    wave: int
    rule: str  # plain | strict | relaxed | sampled
    pool_version: str  # fingerprint of the frozen pools, "" in wave 0
    model: str  # fingerprints
    tokenizer: str


def plan_waves(groups: pa.Table, waves: int) -> np.ndarray:
    """Wave of every row of GROUPS: (entities,) int.

    Representatives go first (wave 0). The others of each group are spread evenly over waves
    1..`waves`, nearest to the centroid first, so that every wave finds its group's pool richer.
    """
    representative = groups["representative"].to_numpy()
    group = np.unique(groups["group_id"].to_numpy(zero_copy_only=False), return_inverse=True)[1]
    order = np.lexsort((np.arange(len(group)), groups["distance"].to_numpy(), group))
    order = order[~representative[order]]
    sorted_group = group[order]
    starts = np.searchsorted(sorted_group, sorted_group)
    sizes = np.searchsorted(sorted_group, sorted_group, side="right") - starts
    result = np.zeros(len(group), np.int64)
    result[order] = 1 + (np.arange(len(order)) - starts) * waves // np.maximum(sizes, 1)
    return result


def make_tasks(
    prompts: Prompts,
    members: pa.Table,
    tokenizer: ChatTokenizer,
    identity: WaveIdentity,
    settings: GenerationSettings,
) -> pa.Table:
    """One of TASKS for each row of `members` (kind, entity_id, group_id), in that order.

    Raises:
        DataError: an entity is not in the catalog.
    """
    tables, told = [TASKS.empty_table()], time.monotonic()
    for rows, asked in _asked(prompts, _placed(prompts, members)):
        ids = tokenizer.encode_all([prompt.text for prompt in asked])
        keys = [key_of_ids(one) for one in ids]
        entities = zip(asked, keys, strict=True)
        content = [
            content_key(prompt.kind, prompt.entity_id, key, identity, settings)
            for prompt, key in entities
        ]
        columns = {name: rows[name] for name in (*MEMBER, "row")} | {
            "wave": pa.repeat(identity.wave, len(asked)),
            "prompt_hash": [prompt_hash(prompt.text) for prompt in asked],
            "prompt_key": keys,
            "prompt_tokens": [len(one) for one in ids],
            "content_key": content,
            "request_key": [request_key(key, identity) for key in content],
            "rule": pa.repeat(identity.rule, len(asked)),
            "pool_version": pa.repeat(identity.pool_version, len(asked)),
            "asof": pa.repeat(prompts.asof, len(asked)),
            "source_events": [prompt.source_events for prompt in asked],
            "latest_source": [prompt.latest_source for prompt in asked],
        }
        tables.append(pa.table(columns).cast(TASKS))
        if time.monotonic() - told > _TELL:  # about a minute for 100,000 rows
            told = time.monotonic()
            done = sum(table.num_rows for table in tables)
            log.info("%d of %d prompts are read", done, members.num_rows)
    return pa.concat_tables(tables).combine_chunks()


def with_prompts(tasks: pa.Table, prompts: Prompts) -> pa.Table:
    """PROMPTED, without earlier texts, for a few rows of TASKS."""
    texts = [prompt.text for _, asked in _asked(prompts, tasks) for prompt in asked]
    return pa.table([*tasks.columns, texts, [[]] * len(texts)], names=PROMPTED.names).cast(PROMPTED)


def _placed(prompts: Prompts, members: pa.Table) -> pa.Table:
    """`members` with the rows of the catalog that they stand in, looked up all at once."""
    rows = np.zeros(members.num_rows, np.int64)
    for kind, start, stop in _stretches(members):
        ids = members["entity_id"].slice(start, stop - start).combine_chunks()
        rows[start:stop] = prompts.rows(kind, ids)
    return members.append_column("row", pa.array(rows))


def _asked(prompts: Prompts, placed: pa.Table) -> Iterator[tuple[pa.Table, list[Prompt]]]:
    """A few rows at a time, of one kind, and what is asked about them."""
    for kind, start, stop in _stretches(placed):
        for at in range(start, stop, _ASKED_AT_ONCE):
            rows = placed.slice(at, min(_ASKED_AT_ONCE, stop - at))
            yield rows, prompts.take(kind, rows["row"].to_numpy())


def _stretches(members: pa.Table) -> Iterator[tuple[Kind, int, int]]:
    """Kind, first row and end of neighbours of one kind."""
    kinds = members["kind"].to_numpy(zero_copy_only=False)
    borders = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
    for start, stop in pairwise([0, *borders.tolist(), len(kinds)]):
        if start < stop:
            yield kinds[start], start, stop


def is_among(table: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """For each row of `table` whether its entity has a row in `others`: bool."""
    return pc.is_in(entities(table), value_set=entities(others))


def entities(table: pa.Table) -> pa.ChunkedArray:
    """Kind and id as one string per row; no kind holds a NUL."""
    return pc.binary_join_element_wise(table["kind"], table["entity_id"], "\0")


def content_key(
    kind: str,
    entity_id: str,
    prompt_key: str,
    identity: WaveIdentity,
    settings: GenerationSettings,
) -> str:
    """Hash of what a row says: a row of an earlier run with this key holds as it is.

    Drafts are no part of it: a text by plain decoding is a text under the strict rule.
    Entities with equal prompts (two ids of one film) keep keys of their own.
    """
    parameters = {
        name: getattr(settings, name)
        for name in (
            "max_new_tokens",
            "min_new_tokens",
            "stop_strings",
            "repetition_penalty",
            "no_repeat_ngram",
        )
    }
    if identity.rule in ("relaxed", "sampled"):
        section = settings.relaxed if identity.rule == "relaxed" else settings.sampling
        parameters["rule"] = [identity.rule, section.model_dump()]
    return fingerprint(
        [kind, entity_id, prompt_key, parameters, identity.model, identity.tokenizer]
    )


def request_key(content: str, identity: WaveIdentity) -> str:
    """Hash of all that decides a row; a row whose key is stored need not be written again."""
    return fingerprint([content, identity.rule, identity.pool_version])


def requests_of(
    tasks: pa.Table, tokenizer: ChatTokenizer, max_new_tokens: int, max_prompt_tokens: int
) -> list[Request]:
    """The engine's requests for a table of PROMPTED; the key is the row's number.

    A row's random numbers come from its request key, not from its place.
    A prompt longer than `max_prompt_tokens` gets an empty prompt here; `collect` names the reason.

    Raises:
        DataError: a prompt has other tokens than its key says.
    """
    return [
        Request(
            str(row),
            _prompt_ids(task, tokenizer, max_prompt_tokens),
            max_new_tokens,
            task["group_id"],
            np.asarray(task["previous_ids"], np.int32) if task["previous_ids"] else None,
            seed=int.from_bytes(task["request_key"].encode()),
        )
        for row, task in enumerate(tasks.to_pylist())
    ]


def _prompt_ids(task: dict[str, Any], tokenizer: ChatTokenizer, longest: int) -> np.ndarray:
    if task["prompt_tokens"] > longest:
        return np.zeros(0, np.int32)
    ids = tokenizer.encode(task["prompt"])
    if key_of_ids(ids) != task["prompt_key"]:
        raise DataError(
            f"the prompt of {task['kind']} {task['entity_id']!r} is not the one that the job began "
            "with; does the chat template of language_model.path print the time or the date? Then "
            "fix it in the template: a run's prompts must not change while it runs"
        )
    return ids


def collect(
    tasks: pa.Table,
    generations: Iterable[Generation],
    tokenizer: ChatTokenizer,
    max_prompt_tokens: int,
) -> pa.Table:
    """Rows of KNOWLEDGE in the order of `tasks`, each answered exactly once."""
    done = {int(generation.key): generation for generation in generations}
    assert sorted(done) == list(range(tasks.num_rows)), "a row was lost or answered twice"
    rows = [
        _row(task, done[index], tokenizer, max_prompt_tokens)
        for index, task in enumerate(tasks.to_pylist())
    ]
    return pa.Table.from_pylist(rows, schema=KNOWLEDGE)


def _row(
    task: dict[str, Any], generation: Generation, tokenizer: ChatTokenizer, max_prompt_tokens: int
) -> dict[str, Any]:
    statistics = generation.statistics
    num_prompt = task["prompt_tokens"]
    error = generation.error
    if num_prompt > max_prompt_tokens:
        error = f"the prompt has {num_prompt} tokens; prompts.max_tokens is {max_prompt_tokens}"
    kept = {name: task[name] for name in TASKS.names if name in KNOWLEDGE.names}
    return kept | {
        "text": tokenizer.decode(generation.token_ids, generation.finish_reason == "length"),
        "token_ids": generation.token_ids,
        "token_origins": generation.origins,
        "finish_reason": generation.finish_reason,
        "forward_passes": statistics.forward_passes,
        "relaxed_tokens": statistics.relaxed_tokens,
        "relaxed_cost": statistics.relaxed_cost,
        "drafted_by_source": statistics.drafted_by_source,
        "accepted_by_source": statistics.accepted_by_source,
        "drafted_by_depth": statistics.drafted_by_depth,
        "accepted_by_depth": statistics.accepted_by_depth,
        "drafted_by_chance": statistics.drafted_by_chance,
        "accepted_by_chance": statistics.accepted_by_chance,
        "chance_by_decile": statistics.chance_by_decile,
        "error": error,
    }
