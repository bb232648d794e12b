"""What the pools of a run's latest wave hold, and what they draft, for a person to look at.

    python -m jobs.inspect_pool --config conf/demo.yaml --group user/collab-0 --text "She likes"

Looks only, also while a job writes the run. Prints every group, the phrases that one group repeats
most (the largest group unless `--group` names another), and with `--text` the tree that its pool
drafts after such a text.
"""

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from jobs import cli
from jobs.waves import last_wave, pools_name
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
from retrieval_pools.phrases import top_phrases
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
    tokenizer = load_tokenizer(config.language_model)
    name = _latest(config, store)
    pools = open_pools(store.files.local(name), tokenizer.fingerprint)
    chosen = _group_of(pools, group, name)
    print(f"{store.files.address}/{name}: {pools.bytes_per_token:.1f} bytes per token")
    print("\n".join(_table(pools)))
    print(f"\nWhat {chosen} repeats most, {_PHRASES} phrases of 4 tokens or more:")
    print("\n".join(_phrases(pools, chosen, tokenizer)))
    if text is not None:
        print(
            f"\nWhat {chosen} drafts after {text!r}, with the chance that all of a path is right:"
        )
        print("\n".join(_drafts(config, pools, chosen, text, tokenizer)))
    return 0


def _latest(config: RunConfig, store: Store) -> str:
    """Name of the pools of the latest wave."""
    for wave in range(last_wave(config), 0, -1):
        name = pools_name(wave)
        if store.manifest(name) is not None:
            return name
    raise DataError(
        f"{store.files.address} has no pools; run the job generate_knowledge or build_pools, or "
        "set another `run` name"
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


def _table(pools: PoolSet) -> Iterator[str]:
    """One line for every group and one for all."""
    yield (
        f"{'group':<28} {'texts':>7} {'relaxed':>7} {'tokens':>9} {'bytes':>11}"
        f" {'distinct-3':>10} {'similarity':>10}"
    )
    every: list[np.ndarray] = []
    for group, pool in pools.groups.items():
        texts = pools.texts(group)
        every += texts
        counts = (pool.num_documents, pool.num_relaxed, pool.num_tokens)
        yield _line(group, *counts, size_of(pool.last - pool.first), texts)
    counts = (pools.num_documents, pools.num_relaxed, pools.num_tokens)
    yield _line("all", *counts, size_of(pools.num_tokens + pools.num_documents), every)


def _line(
    name: str, documents: int, relaxed: int, tokens: int, size: int, texts: Sequence[np.ndarray]
) -> str:
    measured = diversity(texts)
    return (
        f"{name:<28} {documents:>7} {relaxed:>7} {tokens:>9} {size:>11}"
        f" {_number(measured.distinct_3):>10} {_number(measured.similarity):>10}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _phrases(pools: PoolSet, group: str, tokenizer: ChatTokenizer) -> Iterator[str]:
    pool = pools.groups[group]
    suffixes = pools.group_suffixes[pool.first : pool.last]
    phrases = top_phrases(pools.tokens, suffixes, pools.depth, _PHRASES)
    for phrase in phrases:
        yield f"{phrase.count:>7}  {tokenizer.decode_exactly(phrase.token_ids)!r}"
    if not phrases:
        yield "nothing is said twice"


def _drafts(
    config: RunConfig, pools: PoolSet, group: str, text: str, tokenizer: ChatTokenizer
) -> Iterator[str]:
    """The tree as lines, a child below its parent and further in."""
    drafter = PoolDrafter(pools, config.pools.depth, ("group", "global"))
    ids = tokenizer.encode_exactly(text).tolist()
    row = Row(Request("text", np.empty(0, np.int32), len(ids) + config.pools.depth + 1, group), 0)
    for token in ids:
        row.append(token, Stops([]))
    (tree,) = drafter.propose([row], config.engine.draft_nodes)
    if not len(tree):
        yield "nothing: no text of the pools goes on after the last token of it"
    yield from _below(tree, ROOT, 0, tokenizer)


def _below(tree: DraftTree, parent: int, depth: int, tokenizer: ChatTokenizer) -> Iterator[str]:
    for node in np.flatnonzero(tree.parents == parent).tolist():
        said = tokenizer.decode_exactly(tree.token_ids[node : node + 1])
        source = SOURCES[tree.sources[node]]
        yield f"{tree.survival[node]:>7.3f}  {'  ' * depth}{said!r}  {source}"
        yield from _below(tree, node, depth + 1, tokenizer)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.look(run, __doc__, argv, _OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
