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
* Pools are frozen, as for every other drafter here. The code inserts a row's prompt and output as
  it goes, and counts in the prompt outweigh all others; here what the row's own text says comes
  first, its output included, and the pool's tree fills the rest. Texts of rows before do not grow
  the pool.
* Pools are whole. The code prunes them to 1024 nodes per first token when a request has ended.
* Siblings that are equally frequent stand in the order of their ids, not of their insertion.
"""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from pipeline.engine.types import ROOT, DraftTree, RowView
from pipeline.schemas import SOURCES
from retrieval_pools.compiled import CHILD, Index, read_only
from retrieval_pools.depth_first import DEPTH, QUERY, SIZE, SPOT, flatten
from retrieval_pools.pool import Pool, PoolSet
from retrieval_pools.suffix_array import SEPARATOR
from retrieval_pools.trie import find

_FOUND = 4096  # a child whose share of its parent is smaller than 1 / 4096 may be overlooked
_NO_POOL = Pool(0, 0, 0, 0)
_OWN = SOURCES.index("own")


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
        self._stop_words = frozenset(stop_words)
        is_global = scope == "global"
        suffixes = pools.global_suffixes if is_global else pools.group_suffixes
        self._everything = Pool(0, len(suffixes), 0, 0) if is_global else None
        self._groups = pools.groups
        self._source = SOURCES.index(scope)
        self._index = Index(pools.tokens, suffixes)
        self._spots = np.empty(SIZE * (DEPTH + 1), SPOT)
        self._found = np.empty(_FOUND, CHILD)
        self._tree = np.empty(SIZE, SPOT)

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        """Give one tree of at most `max_nodes` nodes for every row, own text first."""
        most = min(max_nodes, SIZE - 1)
        if most < 1:
            return [DraftTree.empty() for _ in rows]
        return [self._draft(row, most) for row in rows]

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """The code learns nothing from what is accepted."""

    def _draft(self, row: RowView, most: int) -> DraftTree:
        """Two tokens are looked up, then one, which overwrites unless it is a stop word."""
        written = len(row.tokens) - len(row.request.prompt_ids)
        # The last token comes from the model anyway: a node for it gains nothing.
        levels = max(0, min(self._depth, row.request.max_new_tokens - written - 1))
        pool = self._everything or self._groups.get(row.request.group, _NO_POOL)
        text = read_only(np.append(row.tokens, np.int32(SEPARATOR)))
        nodes = _Merged(most)
        for match in range(min(QUERY, len(row.tokens)), 0, -1):
            first = len(row.tokens) - match
            if match == 1 and int(text[first]) in self._stop_words:
                break
            nodes = _Merged(most)
            own = Index(text, _occurrences(text, match, levels))
            nodes.add(self._grown(own, 0, len(own.suffixes), match, levels, most), _OWN)
            lo, hi = find(self._index, pool.first, pool.last, 0, text, first, match)
            nodes.add(self._grown(self._index, lo, hi, match, levels, most), self._source)
            if 1 + len(nodes.tokens) >= DEPTH:
                break
        return nodes.tree()

    def _grown(
        self, index: Index, lo: int, hi: int, match: int, levels: int, most: int
    ) -> np.ndarray:
        """Nodes below the suffixes [lo, hi), which share `match` tokens: (nodes,) SPOT."""
        if lo >= hi:
            return self._tree[:0]
        end = flatten(index, lo, hi, match, levels, most, self._spots, self._found, self._tree, 0)
        return self._tree[:end]


class _Merged:
    """A tree of at most `most` nodes, made of several that come one after the other."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.tokens: list[int] = []
        self._parents: list[int] = []
        self._sources: list[int] = []
        self._places: dict[tuple[int, int], int] = {}  # (parent, token) -> node

    def add(self, spots: np.ndarray, source: int) -> None:
        """Take over nodes that are not there yet, (nodes,) SPOT, while there is room."""
        renumbered: dict[int, int] = {ROOT: ROOT}
        pairs = zip(spots["token"].tolist(), spots["parent"].tolist(), strict=True)
        for number, (token, parent) in enumerate(pairs):
            if parent not in renumbered:
                continue  # its parent found no room
            key = renumbered[parent], token
            if key not in self._places:
                if len(self.tokens) == self._most:
                    continue
                self._places[key] = len(self.tokens)
                self.tokens.append(token)
                self._parents.append(key[0])
                self._sources.append(source)
            renumbered[number] = self._places[key]

    def tree(self) -> DraftTree:
        """Every node claims to survive, for all are verified."""
        size = len(self.tokens)
        return DraftTree(
            np.array(self.tokens, np.int32),
            np.array(self._parents, np.int32),
            np.ones(size, np.float32),
            np.array(self._sources, np.int8),
            np.zeros(size, np.int32),
        )


def _occurrences(text: np.ndarray, match: int, levels: int) -> np.ndarray:
    """Where the last `match` tokens of `text`, before its end mark, stand earlier: sorted int32.

    They are sorted by what follows, over `levels` tokens.
    """
    last = len(text) - 1 - match
    starts = np.flatnonzero(text[:last] == text[last])
    for offset in range(1, match):
        starts = starts[text[starts + offset] == text[last + offset]]
    order = sorted(starts.tolist(), key=lambda at: text[at : at + match + levels].tolist())
    return read_only(np.array(order, np.int32))
