"""Drafts from what the entity's previous text, the row's own and the pools say next."""

import itertools
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipeline.engine.types import DraftTree, RowView
from pipeline.schemas import SOURCES
from retrieval_pools.calibration import Calibration
from retrieval_pools.compiled import Index, Limits, Sources, read_only
from retrieval_pools.expansion import draft
from retrieval_pools.matching import MATCHES, OCCURRENCES
from retrieval_pools.pool import Pool, PoolSet
from retrieval_pools.row_texts import RowTexts

_LONGEST_MATCH = 16  # tokens; a longer one tells little more
_ROWS_PER_THREAD = 16  # fewer are drafted before another thread wakes
_NO_TEXT = read_only(np.empty(0, np.int32))
_NO_POOL = Pool(0, 0, 0, 0)


class PoolDrafter:
    """Proposes what follows the row's last words in texts of the entity, its kin and itself.

    Remembers where the words of the rows in flight stand; all it learns is the calibration.
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
        self._texts = RowTexts("previous" in self._use)
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
        places = self._place(rows)
        parts = min(os.cpu_count() or 1, max(1, len(rows) // _ROWS_PER_THREAD))
        if parts == 1:
            return self._draft(places, max_nodes)
        size = -(-len(rows) // parts)
        shares = [places[first : first + size] for first in range(0, len(rows), size)]
        drafted = self._threads.map(lambda share: self._draft(share, max_nodes), shares)
        return list(itertools.chain.from_iterable(drafted))

    def _draft(self, places: np.ndarray, max_nodes: int) -> list[DraftTree]:
        """Trees of the rows at `places`, (rows,) ROW."""
        local = np.empty(2 * MATCHES * OCCURRENCES, np.int32)
        sources = Sources(
            Index(self._texts.text, read_only(local)), self._texts.earlier, *self._pools
        )
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

    def _place(self, rows: Sequence[RowView]) -> np.ndarray:
        """Where each row's texts and pool are, and how deep it may draft: (rows,) ROW."""
        places = self._texts.place(rows)
        pools = [self._groups.get(row.request.group, _NO_POOL) for row in rows]
        places["group_lo"] = [pool.first for pool in pools]
        places["group_hi"] = [pool.last for pool in pools]
        # The last token comes from the model anyway: a node for it gains nothing.
        most = np.array([row.request.max_new_tokens - 1 for row in rows])
        written = places["own_end"] - places["output_first"]
        places["max_depth"] = np.minimum(self._limits.depth, most - written)
        return places
