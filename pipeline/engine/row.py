"""A row in flight: its tokens, how much of them is cached, and why it ended."""

import numpy as np

from pipeline.engine.stops import Stops
from pipeline.engine.types import RELAXED_ORIGIN, Generation, Request, RowStatistics


class Row:
    """The state of one request while it holds a slot of the KV cache.

    `num_cached` tokens have keys and values in the cache; the rest of `tokens` is pending. While
    a row decodes exactly one token is pending: the last one, the root of its draft tree.
    """

    def __init__(self, request: Request, slot: int) -> None:
        prompt = request.prompt_ids
        self.request = request
        self.slot = slot
        self.num_cached = 0
        self.is_started = False  # whether anything of the prompt was computed for this row
        self.chunk = 0  # pending tokens computed in this step
        self.finish_reason = ""
        self.error = ""
        self.trusts_drafts = True  # until a draft leads to numbers that are none
        self.must_repeat = False  # whether this step's result is void, because of such a draft
        self.statistics = RowStatistics()
        self._buffer = np.empty(len(prompt) + request.max_new_tokens, np.int32)
        self._buffer[: len(prompt)] = prompt
        self._origins = np.zeros(request.max_new_tokens, np.int8)
        self._num_tokens = len(prompt)
        self._distinct = dict.fromkeys(prompt.tolist())  # insertion-ordered set
        self._random: np.random.Generator | None = None

    @property
    def tokens(self) -> np.ndarray:
        """Prompt and output so far, (tokens,) int32."""
        return self._buffer[: self._num_tokens]

    @property
    def output(self) -> np.ndarray:
        """Output so far, (new,) int32."""
        return self._buffer[len(self.request.prompt_ids) : self._num_tokens]

    @property
    def origins(self) -> np.ndarray:
        """Where each token of the output came from, see `RELAXED_ORIGIN`: (new,) int8."""
        return self._origins[: self._num_tokens - len(self.request.prompt_ids)]

    @property
    def num_pending(self) -> int:
        """Tokens without keys and values."""
        return self._num_tokens - self.num_cached

    @property
    def num_remaining(self) -> int:
        """New tokens still allowed."""
        return len(self._buffer) - self._num_tokens

    @property
    def is_ready(self) -> bool:
        """Whether this step computes the last pending token, so that the next can be chosen."""
        return 0 < self.chunk == self.num_pending

    @property
    def distinct_tokens(self) -> list[int]:
        """Every token id in prompt and output once."""
        return list(self._distinct)

    @property
    def random(self) -> np.random.Generator:
        """The row's own random numbers: its neighbours draw from others."""
        if self._random is None:
            self._random = np.random.Generator(np.random.Philox(self.request.seed))
        return self._random

    def append(self, token: int, stops: Stops, cost: float = 0.0, source: int = -1) -> bool:
        """Take the next token, which gave up `cost` nats; say whether it is part of the output.

        `source` says whose draft it was, -1 that it was none. Stops are judged here, in token
        order; the length comes last.
        """
        self.statistics.relaxed_tokens += cost > 0.0
        self.statistics.relaxed_cost += cost
        if token in stops.ids:
            self.finish_reason = "stop"
            return False
        self._buffer[self._num_tokens] = token
        if source >= 0:
            place = self._num_tokens - len(self.request.prompt_ids)
            self._origins[place] = 1 + source + (RELAXED_ORIGIN if cost > 0.0 else 0)
        self._num_tokens += 1
        self._distinct[token] = None
        if stops.are_completed_by(self.output):
            self.finish_reason = "stop"
        elif not self.num_remaining:
            self.finish_reason = "length"
        return True

    def fail(self, error: str) -> None:
        """End the row here; what it has written so far is kept."""
        self.finish_reason, self.error = "error", error

    def generation(self) -> Generation:
        """The finished row."""
        return Generation(
            self.request.key,
            self.output.copy(),
            self.finish_reason,
            self.statistics,
            self.error,
            self.origins.copy(),
        )
