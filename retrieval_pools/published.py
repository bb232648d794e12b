"""Drafts as LASER's published code makes them: what `make bench` measures our drafts against.

The code (YunjiaXi/LASER, a fork of Lookahead, arXiv 2312.12728) looks the last two tokens up in
the pool of the row's group. If what it finds has fewer than 12 tokens, the root included, it takes
what follows the last token alone instead, unless that is punctuation. Of the nodes it finds it
keeps those that occur as often as the 64th most frequent one, and flattens them depth first, the
more frequent sibling first, until root and drafts are 64. ReSD, the paper's baseline, is the same
on one pool of all texts, verified strictly.

What differs from the code:
* Counts are interval lengths in sorted suffixes, not walks over dictionaries: the same trees in
  microseconds, not milliseconds. A slow baseline would be none.
* Pools are frozen, as for every other drafter here. The code also inserts the prompt and the
  output while it decodes, so that texts depend on the rows before; drafts from the row itself are
  what it loses here.
* Pools are whole. The code prunes them to 1024 nodes per first token when a request has ended.
* Siblings that are equally frequent stand in the order of their ids, not of their insertion.
"""

import itertools
from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from pipeline.engine.types import DraftTree, RowView
from retrieval_pools.compiled import CHILD, ROW, Index, read_only
from retrieval_pools.depth_first import DEPTH, QUERY, SIZE, SPOT, draft_depth_first
from retrieval_pools.matching import GLOBAL, GROUP
from retrieval_pools.pool import Pool, PoolSet

_FOUND = 4096  # a child whose share of its parent is smaller than 1 / 4096 may be overlooked
_NO_POOL = Pool(0, 0, 0, 0)


class PublishedDrafter:
    """LASER's draft rule over our pools; every node claims to survive, for all are verified."""

    def __init__(
        self,
        pools: PoolSet,
        scope: Literal["group", "global"] = "group",
        stop_words: Collection[int] = (),
    ) -> None:
        """Draft from the pool of a row's group, or from one of all texts.

        `stop_words` are tokens that the code never looks up alone: comma, full stop, white space.
        """
        self._depth = min(DEPTH, pools.depth - QUERY)
        self._stop_words = read_only(np.array(sorted(stop_words), np.int32))
        is_global = scope == "global"
        suffixes = pools.global_suffixes if is_global else pools.group_suffixes
        self._everything = Pool(0, len(suffixes), 0, 0) if is_global else None
        self._groups = pools.groups
        self._source = GLOBAL if is_global else GROUP
        self._index = Index(pools.tokens, suffixes)
        self._spots = np.empty(SIZE * (DEPTH + 1), SPOT)
        self._found = np.empty(_FOUND, CHILD)

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        """Give one tree of at most `max_nodes` nodes for every row, nodes depth first."""
        most = min(max_nodes, SIZE - 1)
        if not rows or most < 1:
            return [DraftTree.empty() for _ in rows]
        places, start = [], 0
        texts = [row.tokens[-QUERY:] for row in rows]
        for row, text in zip(rows, texts, strict=True):
            written = len(row.tokens) - len(row.request.prompt_ids)
            # The last token comes from the model anyway: a node for it gains nothing.
            levels = max(0, min(self._depth, row.request.max_new_tokens - written - 1))
            pool = self._everything or self._groups.get(row.request.group, _NO_POOL)
            end = start + len(text)
            places.append((start, start, end, 0, 0, pool.first, pool.last, levels))
            start = end
        trees = np.empty(len(rows) * most, SPOT)
        ends = np.empty(len(rows), np.int64)
        draft_depth_first(
            read_only(np.array(places, ROW)),
            read_only(np.concatenate(texts, dtype=np.int32)),
            self._index,
            self._stop_words,
            most,
            self._spots,
            self._found,
            trees,
            ends,
        )
        return [self._tree(trees[a:b]) for a, b in itertools.pairwise([0, *ends.tolist()])]

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """The code learns nothing from what is accepted."""

    def _tree(self, spots: np.ndarray) -> DraftTree:
        return DraftTree(
            spots["token"].copy(),
            spots["parent"].copy(),
            np.ones(len(spots), np.float32),
            np.full(len(spots), self._source, np.int8),
            np.zeros(len(spots), np.int32),
        )
