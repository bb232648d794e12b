"""A row of the target model as a draft model holds it."""

import numpy as np
import torch

from pipeline.engine.branch import NO_TOKEN
from pipeline.engine.kv_cache import common_prefix
from pipeline.engine.row import Row
from pipeline.engine.stops import Stops
from pipeline.engine.types import Request, RowView

_NO_STOPS = Stops(())  # the target model judges them


class Follower(Row):
    """Committed tokens, then drafts that may be taken back.

    `num_cached` counts drafts too, for as long as they may still be committed.
    """

    def __init__(self, request: Request, slot: int) -> None:
        super().__init__(request, slot)
        self._num_committed = self._num_tokens
        self._num_distinct = len(self._distinct)
        self._num_wanted = 0
        self._uniforms = np.empty(0)
        self.proposals: list[torch.Tensor] = []  # (vocab,) of every draft, where they are drawn

    def belongs_to(self, row: RowView) -> bool:
        """Whether this is the row that is followed, and not its request generated once more."""
        return row.request is self.request and len(row.tokens) >= self._num_committed

    def follow(self, tokens: np.ndarray) -> None:
        """Take all drafts back, then append what `tokens` (prompt, output) has in their place."""
        agreed = common_prefix(self.tokens[: self.num_cached], tokens)
        self.num_cached = min(agreed, len(tokens) - 1)  # the logits of the last one are wanted
        self._num_tokens = self._num_committed
        while len(self._distinct) > self._num_distinct:
            self._distinct.popitem()
        for token in tokens[self._num_committed :].tolist():
            self.append(token, _NO_STOPS)
        self._num_committed = self._num_tokens
        self._num_distinct = len(self._distinct)

    def begin(self, count: int) -> None:
        """Prepare to draft `count` tokens.

        Their random numbers depend on the row's seed and its length only: a stream of its own for
        every chain, none shared with verification.
        """
        stream = np.random.SeedSequence(self.request.seed, spawn_key=(self._num_committed,))
        self._uniforms = np.random.Generator(np.random.Philox(stream)).random(count)
        self._num_wanted = count
        self.proposals = []

    def draft(self, token: int, proposal: torch.Tensor | None = None) -> None:
        """Append a draft, and the distribution it was drawn from; at `NO_TOKEN` the chain ends."""
        if token == NO_TOKEN:
            self._num_wanted = len(self.drafts)
            return
        self.append(token, _NO_STOPS)
        if proposal is not None:
            self.proposals.append(proposal)

    @property
    def drafts(self) -> np.ndarray:
        """Drafted tokens behind the committed ones: (drafts,) int32."""
        return self.tokens[self._num_committed :]

    @property
    def wants_more(self) -> bool:
        """Whether drafts are missing."""
        return len(self.drafts) < self._num_wanted

    @property
    def uniform(self) -> float:
        """The random number in [0, 1) that decides the next draft."""
        return float(self._uniforms[len(self.drafts)])

    @property
    def known(self) -> np.ndarray:
        """Committed tokens in the draft model's cache; they never change: (tokens,) int32."""
        return self.tokens[: min(self._num_committed, self.num_cached)]
