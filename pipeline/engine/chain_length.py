"""How many tokens a draft model should draft, so that decoding is never slower for it.

With alpha_i the share of rows whose first i drafts all stay, k drafts for each of B rows yield
1 + sum_{i<=k} alpha_i tokens per row and take T_target(B (1 + k)) + k T_draft(B) seconds; the best
k maximises their ratio (Leviathan et al., arXiv 2211.17192; SmartSpec, arXiv 2406.14066).
"""

from collections.abc import Sequence

import numpy as np

from pipeline.engine.budget import CostTable
from pipeline.engine.types import DraftTree

_MEMORY = 256.0  # row steps that the shares look back on
_OPTIMISM = 0.8  # of each draft, before any was seen
_PRIOR = 4.0  # row steps that this optimism counts for
_DEEPER = 16  # steps between two looks one token further than pays
_TRIAL = 8  # steps of a trial
_PAUSE, _LONGEST_PAUSE = 32, 1024  # steps before a trial; doubled after each


class ChainLength:
    """Learns what chains of drafts earn, and weighs it against what they cost.

    Nothing here looks at the tokens of the chain at hand, so cutting one never favours any.
    """

    def __init__(self, most: int, target: CostTable, draft: CostTable) -> None:
        self._most = most
        self._target = target
        self._draft = draft
        self._offered = np.zeros(most)
        self._accepted = np.zeros(most)
        self._steps = 0  # that drafted
        self._idle = 0  # steps since drafts paid or were tried
        self._pause = _PAUSE

    @property
    def survival(self) -> np.ndarray:
        """alpha_i, the share of rows whose first i drafts all stay: (most,) float32, not rising."""
        hoped = _PRIOR * _OPTIMISM ** np.arange(1, self._most + 1)
        shares = (self._accepted + hoped) / (self._offered + _PRIOR)
        return np.minimum.accumulate(shares).astype(np.float32)

    def choose(self, rows: int, unread: int, remaining: int, context: float) -> int:
        """How many tokens to draft for each of `rows` rows; 0 if no draft pays.

        The draft model has not read `unread` tokens of these rows. What it costs to catch up is
        spread over the steps that the row with the most `remaining` new tokens will take.
        `context` is the mean number of tokens of a row.
        """
        lengths = np.arange(self._most + 1)
        tokens = 1.0 + np.append(0.0, np.cumsum(self.survival))
        seconds = self._target.step_seconds(rows, rows * (1 + lengths), context)
        passes, usual, all_unread = self._draft.step_seconds(
            rows, np.array([rows, min(unread, 2 * rows), unread]), context
        )
        drafting = lengths * passes + (all_unread - usual) * tokens / max(remaining, 1)
        best = int(np.argmax(tokens / (seconds + np.where(lengths, drafting, 0.0))))
        if not best:
            return 0
        self._idle, self._pause = 0, _PAUSE
        self._steps += 1
        return min(best + (self._steps % _DEEPER == 0), self._most)

    def is_trial(self) -> bool:
        """Whether a step in which no draft pays should draft for one row all the same.

        Trials are a few steps long and come ever more seldom.
        """
        self._idle += 1
        if self._idle <= self._pause:
            return False
        if self._idle == self._pause + _TRIAL:
            self._idle, self._pause = 0, min(2 * self._pause, _LONGEST_PAUSE)
        return True

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """Count the drafts of a step that stayed, by depth."""
        for tree, outcome in zip(trees, outcomes, strict=True):
            if not len(tree):  # nothing was tried: what is known stays known
                continue
            self._offered *= 1.0 - 1.0 / _MEMORY
            self._accepted *= 1.0 - 1.0 / _MEMORY
            self._offered[: len(tree)] += 1.0
            self._accepted[: len(tree)] += outcome == 1
