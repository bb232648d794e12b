"""Drafts from what the entity's previous text, the row's own and the pools say next."""

import itertools
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipeline.engine.types import DraftTree, RowView
from pipeline.schemas import SOURCES
from retrieval_pools.calibration import Calibration
from retrieval_pools.compiled import ROW, Index, Limits, Sources, read_only
from retrieval_pools.expansion import draft
from retrieval_pools.matching import MATCHES, OCCURRENCES
from retrieval_pools.pool import Pool, PoolSet
from retrieval_pools.suffix_array import SEPARATOR

_LONGEST_MATCH = 16  # tokens; a longer one tells little more
_ROWS_PER_THREAD = 16  # fewer are drafted before another thread wakes
_BREAK = np.array([SEPARATOR], np.int32)
_NO_TEXT = read_only(np.empty(0, np.int32))
_NO_POOL = Pool(0, 0, 0, 0)


class PoolDrafter:
    """Proposes what follows the row's last words in texts of the entity, its kin and itself.

    Knows nothing of a row but what it is handed; all it learns is the calibration.
    """

    def __init__(
        self,
        pools: PoolSet | None,
        depth: int,
        use: Collection[str] = SOURCES,
        floor: float = 0.005,
    ) -> None:
        """Draft at most `depth` levels, and nodes whose survival reaches `floor`.

        `use` names the sources to draft from.
        """
        if depth < 1 or not 0.0 < floor < 1.0 or not set(use) <= set(SOURCES):
            raise ValueError(f"depth {depth}, floor {floor} or sources {use} (of {SOURCES})")
        pools = pools if pools is not None else PoolSet.empty()
        self.calibration = Calibration()
        self._threads = ThreadPoolExecutor(os.cpu_count(), "draft")
        self._use = frozenset(use)
        self._limits = Limits(pools.depth, _LONGEST_MATCH, depth, floor)
        self._groups = pools.groups if "group" in self._use else {}
        everything = pools.global_suffixes if "global" in self._use else _NO_TEXT
        self._pools = (
            Index(pools.tokens, pools.group_suffixes),
            Index(pools.tokens, everything),
            pools.group_marks,
            pools.global_marks,
        )

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        """Give one tree of at most `max_nodes` nodes for every row, nodes by survival.

        Many rows are shared among threads: lookups in large pools wait for memory.
        """
        if not rows or max_nodes < 1:
            return [DraftTree.empty() for _ in rows]
        parts = min(os.cpu_count() or 1, max(1, len(rows) // _ROWS_PER_THREAD))
        if parts == 1:
            return self._draft(rows, max_nodes)
        size = -(-len(rows) // parts)
        shares = [rows[first : first + size] for first in range(0, len(rows), size)]
        drafted = self._threads.map(lambda share: self._draft(share, max_nodes), shares)
        return list(itertools.chain.from_iterable(drafted))

    def _draft(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        text, places = self._lay_out(rows)
        local = np.empty(2 * MATCHES * OCCURRENCES, np.int32)
        sources = Sources(Index(text, read_only(local)), *self._pools)
        own = "own" in self._use
        drafted = draft(
            places, sources, local, own, self.calibration.cells, self._limits, max_nodes
        )
        token_ids, parents, survival, origins, buckets, ends = drafted
        return [
            DraftTree(
                token_ids[first:last],
                parents[first:last],
                survival[first:last],
                origins[first:last],
                buckets[first:last],
            )
            for first, last in itertools.pairwise([0, *ends.tolist()])
        ]

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """Learn how often drafts with such evidence are accepted."""
        self.calibration.observe([tree.buckets for tree in trees], outcomes)

    def _lay_out(self, rows: Sequence[RowView]) -> tuple[np.ndarray, np.ndarray]:
        """Own and previous texts of all rows in one array, and where each stands, as ROW."""
        pieces: list[np.ndarray] = []
        places: list[tuple[int, ...]] = []
        start = 0
        for row in rows:
            request, tokens, own = row.request, row.tokens, start
            output = own + len(request.prompt_ids)
            end = own + len(tokens)
            pieces += (tokens, _BREAK)
            first = last = start = end + 1
            if request.previous_ids is not None and "previous" in self._use:
                pieces += (request.previous_ids, _BREAK)
                last = first + len(request.previous_ids)
                start = last + 1
            # The last token comes from the model anyway: a node for it gains nothing.
            levels = min(self._limits.depth, request.max_new_tokens - (end - output) - 1)
            pool = self._groups.get(request.group, _NO_POOL)
            places.append((own, output, end, first, last, pool.first, pool.last, levels))
        return read_only(np.concatenate(pieces, dtype=np.int32)), np.array(places, ROW)
