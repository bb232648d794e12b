"""The decoding engine: continuous batching, draft trees, one packed forward pass per step."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.config import EngineSettings
from pipeline.engine.branch import Walk
from pipeline.engine.budget import CostTable, DraftBudget
from pipeline.engine.counting import count
from pipeline.engine.packing import pack
from pipeline.engine.processors import Processors
from pipeline.engine.profile import measure_costs
from pipeline.engine.row import Row
from pipeline.engine.rules import Rule, Strict
from pipeline.engine.runner import ModelRunner
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.statistics import EngineStatistics
from pipeline.engine.stops import Stops
from pipeline.engine.types import Drafter, DraftTree, Generation, NoDraft, Request
from pipeline.engine.verify import Verifier


class Engine:
    """Continues prompts; with any drafter and the strict rule the text is greedy decoding's."""

    def __init__(
        self,
        model: PreTrainedModel,
        settings: EngineSettings,
        stops: Stops,
        processors: Processors,
        costs: CostTable | None = None,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Prepare `model` (see `ModelRunner`) and measure what its steps cost, unless given.

        `tell` hears how far that is.
        Decodes plainly until `use` sets a drafter and a rule.
        """
        self.runner = ModelRunner(model, settings.batch_rows, settings.max_length)
        self.costs = (costs or measure_costs(self.runner, settings.batch_rows, tell=tell)).copy()
        self.statistics = EngineStatistics()
        self._settings = settings
        self._cache = self.runner.cache
        self.stops = stops
        self._processors = processors
        self._scheduler = self._new_scheduler()
        self._is_generating = False
        self.use(NoDraft(), Strict())

    def use(self, drafter: Drafter, rule: Rule, costs: CostTable | None = None) -> None:
        """Change drafts and verification; only while no row is in flight.

        The draft budget reckons with `costs`, those of the engine unless given. The cache forgets
        all prompts, so that each use pays for its own prefill.
        """
        if self._is_busy:
            raise RuntimeError("rows are in flight; finish or close `generate` before `use`")
        self._cache.forget()
        self._budget = DraftBudget(costs or self.costs)
        self._drafter = drafter
        self._verifier = Verifier(rule, self._processors, self.stops)
        self._scheduler = self._new_scheduler()

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests, also while others are in flight; `step` or `generate` finishes them.

        Raises:
            ValueError: two requests in flight would have one key; none of them is queued.
        """
        self._scheduler.submit(requests)

    def generate(self, requests: Iterable[Request]) -> Iterator[Generation]:
        """Finish all `requests`, and what was submitted before or is meanwhile, each exactly once.

        Generations come as they end. Rows that are in flight when the iterator is closed, or ends
        with an exception, are dropped.

        Raises:
            RuntimeError: another call has not ended; `submit` adds rows to it.
            ValueError: see `submit`.
        """
        if self._is_generating:
            raise RuntimeError("another `generate` has not ended; add rows to it with `submit`")
        self.submit(requests)
        self._is_generating = True
        try:
            while self._is_busy:
                yield from self.step()
        finally:
            self._is_generating = False
            if self._is_busy:
                self._scheduler = self._new_scheduler()

    def drop(self) -> list[str]:
        """Forget all rows, as after a step that raised; return the keys of those that had a slot.

        Only those can have had a part in it.
        """
        keys = self._scheduler.active_keys
        for slot in range(len(keys)):  # half a step may have left anything there
            self._cache.erase(slot)
        self._scheduler = self._new_scheduler()
        return keys

    @property
    def _is_busy(self) -> bool:
        return self._scheduler.has_work

    def _new_scheduler(self) -> Scheduler:
        settings = self._settings
        return Scheduler(
            self._cache, settings.batch_rows, settings.prefill_tokens, self.runner.vocabulary
        )

    def step(self) -> list[Generation]:
        """One forward pass for all rows."""
        clock, began = _Clock(), time.perf_counter()
        rows = self._scheduler.admit()
        if not rows:
            return self._scheduler.retire()
        trees = self._propose(rows)
        drafting = clock.lap()
        self.statistics.draft += drafting
        step = pack(rows, trees, self.runner.layout)
        self.statistics.bookkeeping += clock.lap()
        logits = self.runner.forward(step)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)  # or the clock would time the launch only
        seconds = clock.lap()
        self.statistics.forward += seconds
        is_decoding, context = all(row.chunk == 1 for row in rows), _mean_context(rows)
        room = _room(rows)
        walks = self._verifier.accept(rows, trees, step.roots, logits)
        self.statistics.tokens += room - _room(rows)
        self.statistics.verify += clock.lap()
        self._commit(rows, walks)
        # Before rows leave: a drafter that raises must not take finished ones with it.
        self._drafter.observe([walk.tree for walk in walks], [walk.outcomes for walk in walks])
        finished = self._scheduler.retire()
        self.statistics.steps += 1
        self.statistics.rows += len(rows)
        self.statistics.packed_tokens += len(step)
        self.statistics.bookkeeping += clock.lap()
        if is_decoding:  # pieces of prompts would tell the cost table of something else
            whole = time.perf_counter() - began
            self.costs.refine(len(rows), len(step), context, whole - drafting)
            self.statistics.decoding += whole
            self.statistics.decoding_overhead += whole - seconds
        return finished

    def _propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """Drafts for the rows whose next token this step decides, cut to what pays."""
        ready = [row for row in rows if row.is_ready]
        drafts = self._drafter.propose(ready, self._settings.draft_nodes)
        fitting = [self._fit(row, tree) for row, tree in zip(ready, drafts, strict=True)]
        base_tokens = sum(row.chunk for row in rows)
        affordable = iter(
            self._budget.afford(fitting, len(ready), len(rows), base_tokens, _mean_context(rows))
        )
        return [next(affordable) if row.is_ready else DraftTree.empty() for row in rows]

    def _fit(self, row: Row, tree: DraftTree) -> DraftTree:
        """Cut a tree to the room behind the row's tokens, and before the first malformed node."""
        sources = len(row.statistics.drafted_by_source)
        sound = tree.num_sound(self.runner.vocabulary, sources) if row.trusts_drafts else 0
        size = min(sound, self._cache.max_length - len(row.tokens))
        if size <= 0:
            return DraftTree.empty()
        return tree if size == len(tree) else tree.prefix(np.arange(len(tree)) < size)

    def _commit(self, rows: Sequence[Row], walks: Sequence[Walk]) -> None:
        """Keep the keys and values of prompts and accepted nodes."""
        for row in rows:
            if row.must_repeat:
                row.must_repeat = False
                self._cache.erase(row.slot, row.num_cached)
            else:
                row.num_cached += row.chunk
        starts = [walk.row.num_cached for walk in walks]
        self._cache.keep([walk.row.slot for walk in walks], starts, [walk.path for walk in walks])
        for walk in walks:
            walk.row.num_cached += len(walk.path)
        count(walks)
        for row in rows:
            self._cache.remember(row.slot, row.tokens[: row.num_cached])


def _room(rows: Sequence[Row]) -> int:
    """Tokens that may still be written."""
    return sum(row.num_remaining for row in rows)


def _mean_context(rows: Sequence[Row]) -> float:
    """Cached tokens per row."""
    return sum(row.num_cached for row in rows) / max(len(rows), 1)


class _Clock:
    """Time since the last lap."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds
