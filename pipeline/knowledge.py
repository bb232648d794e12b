"""From prompts to rows of KNOWLEDGE: request keys, waves, and one row out for every row in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.decoding_config import GenerationSettings
from pipeline.engine.types import Generation, Request
from pipeline.errors import DataError
from pipeline.language_model import ChatTokenizer
from pipeline.prompts import Prompt, prompt_hash
from pipeline.schemas import KNOWLEDGE
from pipeline.store import fingerprint

# What a worker needs to write one row of knowledge.
TASKS = pa.schema(
    [
        ("kind", pa.string()),
        ("entity_id", pa.string()),
        ("group_id", pa.string()),
        ("wave", pa.int32()),
        ("prompt_hash", pa.string()),
        ("content_key", pa.string()),
        ("request_key", pa.string()),
        ("rule", pa.string()),
        ("pool_version", pa.string()),
        ("source_events", pa.int32()),
        ("latest_source", pa.int64()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("previous_ids", pa.list_(pa.int32())),  # the entity's earlier text, [] if none
    ]
)

PLAIN_WAVE = 0


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
    prompts: Mapping[tuple[str, str], Prompt],
    members: Sequence[tuple[str, str, str]],
    tokenizer: ChatTokenizer,
    identity: WaveIdentity,
    settings: GenerationSettings,
) -> pa.Table:
    """One task for each (kind, entity_id, group_id) in `members`, in that order.

    Raises:
        DataError: an entity has no prompt.
    """
    rows = []
    for kind, entity_id, group_id in members:
        prompt = prompts.get((kind, entity_id))
        if prompt is None:
            raise DataError(f"groups names {kind} {entity_id!r}, which is not in the catalog")
        ids = tokenizer.encode(prompt.text)
        content = content_key(kind, entity_id, ids, identity, settings)
        rows.append(
            {
                "kind": kind,
                "entity_id": entity_id,
                "group_id": group_id,
                "wave": identity.wave,
                "prompt_hash": prompt_hash(prompt.text),
                "content_key": content,
                "request_key": request_key(content, identity),
                "rule": identity.rule,
                "pool_version": identity.pool_version,
                "source_events": prompt.source_events,
                "latest_source": prompt.latest_source,
                "prompt_ids": ids,
                "previous_ids": [],
            }
        )
    return pa.Table.from_pylist(rows, schema=TASKS)


def content_key(
    kind: str,
    entity_id: str,
    prompt_ids: np.ndarray,
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
        [kind, entity_id, prompt_ids.tolist(), parameters, identity.model, identity.tokenizer]
    )


def request_key(content: str, identity: WaveIdentity) -> str:
    """Hash of all that decides a row; a row whose key is stored need not be written again."""
    return fingerprint([content, identity.rule, identity.pool_version])


def requests_of(tasks: pa.Table, max_new_tokens: int, max_prompt_tokens: int) -> list[Request]:
    """The engine's requests for a table of TASKS; the key is the row's number.

    A row's random numbers come from its request key, not from its place.
    A prompt longer than `max_prompt_tokens` gets an empty prompt here; `collect` names the reason.
    """
    prompts = [np.asarray(ids, np.int32) for ids in tasks["prompt_ids"].to_pylist()]
    return [
        Request(
            str(row),
            prompt if len(prompt) <= max_prompt_tokens else prompt[:0],
            max_new_tokens,
            group,
            np.asarray(previous, np.int32) if previous else None,
            seed=int.from_bytes(key.encode()),
        )
        for row, (prompt, group, previous, key) in enumerate(
            zip(
                prompts,
                *(tasks[name].to_pylist() for name in ("group_id", "previous_ids", "request_key")),
                strict=True,
            )
        )
    ]


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
    num_prompt = len(task["prompt_ids"])
    error = generation.error
    if num_prompt > max_prompt_tokens:
        error = f"the prompt has {num_prompt} tokens; prompts.max_tokens is {max_prompt_tokens}"
    kept = {name: task[name] for name in TASKS.names if name in KNOWLEDGE.names}
    return kept | {
        "text": tokenizer.decode(generation.token_ids),
        "token_ids": generation.token_ids,
        "finish_reason": generation.finish_reason,
        "prompt_tokens": num_prompt,
        "forward_passes": statistics.forward_passes,
        "relaxed_tokens": statistics.relaxed_tokens,
        "relaxed_cost": statistics.relaxed_cost,
        "drafted_by_source": statistics.drafted_by_source,
        "accepted_by_source": statistics.accepted_by_source,
        "drafted_by_depth": statistics.drafted_by_depth,
        "accepted_by_depth": statistics.accepted_by_depth,
        "error": error,
    }
