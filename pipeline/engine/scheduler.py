"""Continuous batching: which rows take part in a step, and how much of their prompts is read."""

from collections import deque
from collections.abc import Iterable

from pipeline.engine.kv_cache import KVCache, common_prefix
from pipeline.engine.row import Row
from pipeline.engine.types import Generation, Request

# A shared prefix shorter than this is not worth waiting a step for.
_PREFIX_WORTH_A_STEP = 16


class Scheduler:
    """Keeps the active rows in slots 0..B-1, so that attention reads the arena as it lies."""

    def __init__(
        self, cache: KVCache, batch_rows: int, prefill_tokens: int, vocabulary: int
    ) -> None:
        self._cache = cache
        self._batch_rows = batch_rows
        self._prefill_tokens = prefill_tokens
        self._vocabulary = vocabulary
        self._keys: set[str] = set()  # of all requests not reported yet
        self._waiting: deque[Request] = deque()
        self._active: list[Row] = []  # index = slot
        self._refused: list[Generation] = []

    @property
    def has_work(self) -> bool:
        """Whether any row is unfinished or unreported."""
        return bool(self._waiting or self._active or self._refused)

    @property
    def active_keys(self) -> list[str]:
        """Keys of the rows that have a slot."""
        return [row.request.key for row in self._active]

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests, all or none; one that can never run becomes an error."""
        requests = list(requests)
        keys = set(self._keys)
        for request in requests:
            if request.key in keys:
                raise ValueError(f"two requests have the key {request.key!r}")
            keys.add(request.key)
        self._keys = keys
        for request in requests:
            problem = self._problem_of(request)
            if problem:
                self._refused.append(Generation.failed(request.key, problem))
            else:
                self._waiting.append(request)

    def admit(self) -> list[Row]:
        """Give free slots to waiting rows, and share the prefill budget among pending prompts.

        Returns the rows that take part in this step. One that has ended and could not be retired,
        because something raised, waits for it.
        """
        while self._waiting and len(self._active) < self._batch_rows:
            self._active.append(Row(self._waiting.popleft(), len(self._active)))
        budget = self._prefill_tokens
        for row in self._active:
            if not row.is_started:
                self._start(row)
            decoding = row.num_cached >= len(row.request.prompt_ids) - 1
            if row.finish_reason or self._is_better_off_waiting(row):
                row.chunk = 0
            elif decoding:
                row.chunk = row.num_pending
            else:
                row.chunk = min(row.num_pending, budget)
                budget -= row.chunk
        working = [row for row in self._active if row.chunk]
        for row in working:
            row.is_started = True
        return working

    def retire(self) -> list[Generation]:
        """Take finished rows out; the last rows move into the slots they leave."""
        finished, self._refused = self._refused, []
        for slot in reversed(range(len(self._active))):
            if self._active[slot].finish_reason:
                finished.append(self._active[slot].generation())
                if self._active[slot].error:
                    self._cache.erase(slot)
                last = self._active.pop()
                if last.slot != slot:
                    self._cache.move(last.slot, slot)
                    last.slot = slot
                    self._active[slot] = last
        self._keys -= {done.key for done in finished}
        return finished

    def _problem_of(self, request: Request) -> str:
        need = len(request.prompt_ids) + request.max_new_tokens
        if not len(request.prompt_ids):
            return "the prompt is empty"
        if request.prompt_ids.min() < 0 or request.prompt_ids.max() >= self._vocabulary:
            return f"the prompt holds a token id outside the vocabulary of {self._vocabulary}"
        if request.max_new_tokens < 1:
            return "max_new_tokens is below 1"
        if need > self._cache.max_length:
            return (
                f"{len(request.prompt_ids)} prompt tokens + {request.max_new_tokens} new ones "
                f"exceed engine.max_length {self._cache.max_length}"
            )
        return ""

    def _start(self, row: Row) -> None:
        """Reuse what other rows have computed of this prompt."""
        row.num_cached = self._cache.reuse_prefix(row.slot, row.request.prompt_ids)

    def _is_better_off_waiting(self, row: Row) -> bool:
        """Whether a row before this one is just computing a prefix that both share."""
        prompt = row.request.prompt_ids
        if row.is_started or row.num_cached >= len(prompt) - 1:
            return False
        for other in self._active[: row.slot]:
            if other.chunk > 1:
                coming = other.tokens[: other.num_cached + other.chunk]
                if common_prefix(prompt[:-1], coming) >= row.num_cached + _PREFIX_WORTH_A_STEP:
                    return True
        return False
