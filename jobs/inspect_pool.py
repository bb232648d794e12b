"""What the pools of a run's latest wave hold, and what they draft, for a person to look at.

    python -m jobs.inspect_pool --config conf/demo.yaml --group user/collab-0 --text "She likes"

Looks only, also while a job writes the run. Prints every group, the phrases that one group repeats
most (the largest group unless `--group` names another), and with `--text` the tree that its pool
drafts after such a text.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jobs import cli
from jobs.stage_order import require_before
from jobs.terminal_text import printable
from jobs.wave_names import last_wave, pools_name
from pipeline.config import RunConfig
from pipeline.engine.row import Row
from pipeline.engine.stops import Stops
from pipeline.engine.types import ROOT, DraftTree, Request
from pipeline.errors import DataError
from pipeline.language_model import ChatTokenizer, load_tokenizer
from pipeline.schemas import SOURCES
from pipeline.store import Store
from retrieval_pools.diversity import diversity
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.eviction import size_of
from retrieval_pools.phrases import Phrase, top_phrases
from retrieval_pools.pool import PoolSet
from retrieval_pools.pool_folder import open_pools

_OPTIONS = {
    "group": "group whose phrases and drafts are shown; the largest one if absent",
    "text": "what a row has written so far; its drafts are shown",
}
_PHRASES = 12
_MOST_NAMES = 20  # in an error


def run(config: RunConfig, store: Store, group: str | None = None, text: str | None = None) -> int:
    """Print the pools of the latest wave that has any; return 0."""
    for line in lines(facts_of(config, store, group, text)):
        print(line)
    return 0


def facts_of(
    config: RunConfig, store: Store, group: str | None = None, text: str | None = None
) -> dict[str, Any]:
    """Groups, the phrases of one of them, and what it drafts after `text`, as plain data.

    Raises:
        DataError: there are no pools, they hold nothing, or none is of that group.
    """
    name = _latest(config, store)
    tokenizer = load_tokenizer(config.language_model)
    pools = open_pools(store.files.local(name), tokenizer.fingerprint)
    chosen = _group_of(pools, group, name)
    return {
        "pools": f"{store.files.address}/{name}",
        "bytes_per_token": pools.bytes_per_token,
        "groups": list(_table(pools)),
        "group": chosen,
        "phrases": [
            {"count": phrase.count, "text": tokenizer.decode_exactly(phrase.token_ids)}
            for phrase in _phrases(pools, chosen)
        ],
        "text": text,
        "drafts": [] if text is None else list(_drafts(config, pools, chosen, text, tokenizer)),
    }


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The same for a terminal."""
    return map(printable, _lines(facts))


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    group = facts["group"]
    yield f"{facts['pools']}: {facts['bytes_per_token']:.1f} bytes per token"
    yield (
        f"{'group':<28} {'texts':>7} {'relaxed':>7} {'tokens':>9} {'bytes':>11}"
        f" {'distinct-3':>10} {'similarity':>10}"
    )
    for row in facts["groups"]:
        yield (
            f"{row['group']:<28} {row['texts']:>7} {row['relaxed']:>7} {row['tokens']:>9}"
            f" {row['bytes']:>11} {_number(row['distinct_3']):>10}"
            f" {_number(row['similarity']):>10}"
        )
    yield ""
    yield f"What {group} repeats most, {_PHRASES} phrases of 4 tokens or more:"
    for phrase in facts["phrases"]:
        yield f"{phrase['count']:>7}  {phrase['text']!r}"
    if not facts["phrases"]:
        yield "nothing is said twice"
    if facts["text"] is None:
        return
    yield ""
    after = f"What {group} drafts after {facts['text']!r}"
    yield f"{after}, with the chance that all of a path is right:"
    for node in facts["drafts"]:
        yield f"{node['survival']:>7.3f}  {'  ' * node['depth']}{node['token']!r}  {node['source']}"
    if not facts["drafts"]:
        yield "nothing: no text of the pools goes on after the last token of it"


def _latest(config: RunConfig, store: Store) -> str:
    """Name of the pools of the latest wave."""
    for wave in range(last_wave(config), 0, -1):
        name = pools_name(wave)
        if store.manifest(name) is not None:
            return name
    require_before("build_pools", config, store)
    raise DataError(
        f"{store.files.address} has no pools; run `laser generate`, or set another `run` name"
    )


def _group_of(pools: PoolSet, group: str | None, name: str) -> str:
    if not pools.num_documents:
        raise DataError(f"{name} holds no text; look for errors in the knowledge of its waves")
    if group is None:
        return max(pools.groups, key=lambda one: pools.groups[one].num_tokens)
    if group not in pools.groups:
        known = [*pools.groups][:_MOST_NAMES]
        more = ", ..." if len(pools.groups) > len(known) else ""
        raise DataError(f"--group {group}: {name} has no such group, but {', '.join(known)}{more}")
    return group


def _table(pools: PoolSet) -> Iterator[dict[str, Any]]:
    """One row for every group and one for all."""
    every: list[np.ndarray] = []
    for group, pool in pools.groups.items():
        texts = pools.texts(group)
        every += texts
        counts = (pool.num_documents, pool.num_relaxed, pool.num_tokens)
        yield _row(group, *counts, size_of(pool.last - pool.first), texts)
    counts = (pools.num_documents, pools.num_relaxed, pools.num_tokens)
    yield _row("all", *counts, size_of(pools.num_tokens + pools.num_documents), every)


def _row(
    name: str, documents: int, relaxed: int, tokens: int, size: int, texts: Sequence[np.ndarray]
) -> dict[str, Any]:
    measured = diversity(texts)
    return {
        "group": name,
        "texts": documents,
        "relaxed": relaxed,
        "tokens": tokens,
        "bytes": size,
        "distinct_3": measured.distinct_3,
        "similarity": measured.similarity,
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _phrases(pools: PoolSet, group: str) -> list[Phrase]:
    pool = pools.groups[group]
    suffixes = pools.group_suffixes[pool.first : pool.last]
    return list(top_phrases(pools.tokens, suffixes, pools.depth, _PHRASES))


def _drafts(
    config: RunConfig, pools: PoolSet, group: str, text: str, tokenizer: ChatTokenizer
) -> Iterator[dict[str, Any]]:
    """The tree, a child below its parent and deeper."""
    drafter = PoolDrafter(pools, config.pools.depth, ("group", "global"))
    ids = tokenizer.encode_exactly(text).tolist()
    row = Row(Request("text", np.empty(0, np.int32), len(ids) + config.pools.depth + 1, group), 0)
    for token in ids:
        row.append(token, Stops([]))
    (tree,) = drafter.propose([row], config.engine.draft_nodes)
    yield from _below(tree, ROOT, 0, tokenizer)


def _below(
    tree: DraftTree, parent: int, depth: int, tokenizer: ChatTokenizer
) -> Iterator[dict[str, Any]]:
    for node in np.flatnonzero(tree.parents == parent).tolist():
        yield {
            "survival": float(tree.survival[node]),
            "depth": depth,
            "token": tokenizer.decode_exactly(tree.token_ids[node : node + 1]),
            "source": SOURCES[tree.sources[node]],
        }
        yield from _below(tree, node, depth + 1, tokenizer)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.look(run, __doc__, argv, _OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
