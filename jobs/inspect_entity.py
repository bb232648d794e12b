"""What a run knows of one entity: what the model was asked, what it wrote, and from where.

    laser inspect --entity user/42

The prompt is not stored: it is made again from the run's catalog, and shown as the one that was
asked only if its hash is.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import difflib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from features.formats import clipped
from features.page.pieces import RELAXED, Splitter, origin_of
from jobs.stage_order import require_before
from jobs.terminal_text import printable
from jobs.waves import open_prompts_of
from pipeline.asked_again import Again, asked_again
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.language_model import ChatTokenizer, load_tokenizer
from pipeline.parts import read_batches
from pipeline.prompts import Kind, prompt_hash
from pipeline.schemas import KINDS, KNOWLEDGE, SOURCES
from pipeline.store import Store

_ORIGINS = "token_origins"
_AS_STORED = (
    *("text", "error", "wave", "rule", "finish_reason", "prompt_tokens", "source_events"),
    *("forward_passes", "relaxed_tokens"),
)
_COLUMNS = (
    *("kind", "entity_id", "group_id", "prompt_hash", "token_ids", _ORIGINS, "relaxed_cost"),
    *_AS_STORED,
)
_VECTORS = {
    "own": "of its own text",
    "group": "the mean of its group: no usable text of its own",
    "default": "the mean of its kind: no usable text in its group",
    "none": "zero: no usable text of its kind",
}
_NEAR = 5  # ids that are named instead of one that is not there
_MOST_COMPARED = 20_000  # ids that one is held against


def facts_of(config: RunConfig, store: Store, entity: str) -> dict[str, Any]:
    """Prompt, text, origins of its tokens and source of its vector, as plain data.

    `prompt` is None where what was asked cannot be made again; with no `prompt_today` either,
    `why_no_prompt` says why nothing would be asked now.

    Raises:
        ConfigError: `entity` is not kind/id.
        DataError: the run has no finished texts, or none of that entity.
    """
    kind, name = _parsed(entity)
    require_before("encode_features", config, store)
    row = _row_of(store, kind, name)
    again = again_of(config, store, kind, name)
    prompt = again.text
    was_asked = prompt is not None and prompt_hash(prompt) == row["prompt_hash"]
    return {
        "run": config.run,
        "entity": entity,
        "title": _title(store, kind, name),
        "group": row["group_id"],
        "prompt": prompt if was_asked else None,
        "prompt_today": None if was_asked else prompt,
        "why_no_prompt": again.error or again.why_not,
        **{name: row[name] for name in _AS_STORED},
        "tokens": len(row["token_ids"]),
        "relaxed_nats": round(row["relaxed_cost"], 3),
        "by_source": _by_source(row[_ORIGINS]),
        "pieces": _pieces(row, load_tokenizer(config.language_model)),
        "vector": _vector(store, kind, name),
    }


def again_of(config: RunConfig, store: Store, kind: Kind, entity_id: str) -> Again:
    """What a run's config and catalog make of an entity today, or why they make nothing of it."""
    own, none = pa.array([entity_id]), pa.array([], pa.string())
    users, items = (own, none) if kind == "user" else (none, own)
    return asked_again(open_prompts_of(config, store, users, items), kind, own)[0]


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The same for a terminal."""
    return map(printable, _lines(facts))


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    title = f" {clipped(facts['title'])!r}" if facts["title"] else ""
    yield f"{facts['entity']}{title} of run {facts['run']}, group {facts['group']}"
    yield ""
    yield from _asked(facts)
    yield ""
    yield from _written(facts)
    if vector := facts["vector"]:
        yield f"vector of {vector['dim']} numbers: {_VECTORS[vector['source']]}"
    else:
        yield "no vector yet; `laser encode` makes it"


def _asked(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts["prompt"] is not None:
        yield f"asked ({facts['prompt_tokens']} tokens, {facts['source_events']} interactions):"
        yield from (f"  | {line}" for line in facts["prompt"].splitlines())
        return
    yield "what it was asked is not known any more: catalog, wording or settings have changed since"
    if facts["prompt_today"] is None:
        yield f"it would be asked nothing now: {facts['why_no_prompt']}"
        return
    yield "now it would be asked:"
    yield from (f"  | {line}" for line in facts["prompt_today"].splitlines())


def _written(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts["error"]:
        yield f"no text: {facts['error']}"
        return
    yield (
        f"written in wave {facts['wave']}, {facts['rule']}, {facts['tokens']} tokens in "
        f"{facts['forward_passes']} passes, ended by {facts['finish_reason']}:"
    )
    yield from (f"  | {line}" for line in facts["text"].splitlines())
    yield ""
    if not facts["by_source"]:
        yield "where its tokens came from is not known: it was written by an older program"
        return
    counts = ", ".join(f"{tokens} {source}" for source, tokens in facts["by_source"].items())
    relaxed = facts["relaxed_tokens"]
    more = f"; {relaxed} relaxed, for {facts['relaxed_nats']:g} nats" if relaxed else ""
    yield f"tokens by who drafted them: {counts}{more}"
    for piece in facts["pieces"] if len(facts["by_source"]) > 1 else ():
        mark = " relaxed" if piece["is_relaxed"] else ""
        yield f"  {piece['source'] + mark:<16} {piece['text']!r}"


def _parsed(entity: str) -> tuple[Kind, str]:
    kind, slash, name = entity.partition("/")
    if kind not in KINDS or not slash or not name:
        raise ConfigError(f"--entity takes user/ID or item/ID, got {entity!r}")
    return kind, name  # pyright: ignore[reportReturnType] (KINDS are the Kinds)


def _row_of(store: Store, kind: str, name: str) -> dict[str, Any]:
    """Its row of KNOWLEDGE; of the others only some are in memory at once."""
    count = 0
    for ids in _ids(store, kind):
        count += len(ids)
        if pc.any(pc.equal(ids, name)).as_py():
            break
    else:
        near = _near(name, store, kind, count)
        raise DataError(f"{store.files.address} has no text of {kind} {name!r}{near}")
    for batch in read_batches(store.parts("knowledge"), KNOWLEDGE, _COLUMNS):
        is_it = pc.and_(pc.equal(batch["kind"], kind), pc.equal(batch["entity_id"], name))
        if found := batch.filter(is_it).to_pylist():
            return found[0]
    raise AssertionError("it was there a moment ago")


def _ids(store: Store, kind: str) -> Iterator[pa.ChunkedArray]:
    """Of the texts of a kind, some at a time."""
    for batch in read_batches(store.parts("knowledge"), KNOWLEDGE, ["kind", "entity_id"]):
        yield batch.filter(pc.equal(batch["kind"], kind))["entity_id"]


def _near(name: str, store: Store, kind: str, count: int) -> str:
    """Ids, of `count`, that are like one that is not there: of many, a sample is looked at."""
    if not count:
        return ", nor of any other of its kind (generation.kinds)"
    some, step, seen = [], -(-count // _MOST_COMPARED), 0
    for ids in _ids(store, kind):
        some += ids.take(pa.array(range(-seen % step, len(ids), step), pa.int64())).to_pylist()
        seen += len(ids)
    near = difflib.get_close_matches(name, some, _NEAR, cutoff=0.5)
    if near:
        return f"; the nearest of {count:,} ids are {', '.join(near)}"
    return f"; none of {count:,} ids is like it: {', '.join(some[:_NEAR])}, ..."


def _by_source(origins: Sequence[int]) -> dict[str, int]:
    """Tokens by who drafted them, those without a draft first."""
    names = [_source(origin) for origin in range(len(SOURCES) + 1)]
    found = [_source(origin) for origin in origins]
    return {name: found.count(name) for name in names if name in found}


def _source(origin: int) -> str:
    place = origin % RELAXED
    return SOURCES[place - 1] if place else "nobody"


def _pieces(row: Mapping[str, Any], tokenizer: ChatTokenizer) -> list[dict[str, Any]]:
    """The text in order, cut where its tokens come from somewhere else."""
    ids, origins = row["token_ids"], row[_ORIGINS]
    if not ids or len(ids) != len(origins):
        return []
    said, place = [], 0
    for piece in Splitter(tokenizer.decode_exactly).split(ids):
        said.append((piece, origin_of(origins[place : place + piece.tokens])))
        place += piece.tokens
    return [
        {
            "source": _source(origin),
            "is_relaxed": origin >= RELAXED,
            "text": "".join(piece.text for piece, _ in same),
            "tokens": sum(piece.tokens for piece, _ in same),
        }
        for origin, group in groupby(said, key=lambda pair: pair[1])
        for same in [list(group)]
    ]


def _title(store: Store, kind: str, name: str) -> str:
    """Of an item that is in the catalog, else nothing."""
    if kind != "item" or store.manifest("items") is None:
        return ""
    items = store.read("items", ["item_id", "title"])
    found = items.filter(pc.equal(items["item_id"], name))["title"].to_pylist()
    return found[0] if found else ""


def _vector(store: Store, kind: str, name: str) -> dict[str, Any] | None:
    """Where its vector comes from; None if features are not made, or not of this knowledge."""
    if store.manifest("features") is None or not store.is_consistent("features"):
        return None
    table = store.read("features", ["kind", "entity_id", "source", "source_events"])
    is_it = pc.and_(pc.equal(table["kind"], kind), pc.equal(table["entity_id"], name))
    found = table.filter(is_it).to_pylist()
    if not found:
        return None
    dim = store.require("features").facts.get("dim")
    return {"dim": dim, "source": found[0]["source"], "source_events": found[0]["source_events"]}
