"""The batch size and the draft budget that write most tokens per second.

As the engine's budget, which maximises yield / time of each step (`pipeline.engine.budget`), but
over batch sizes as well: a larger batch shares the weights' reading and leaves less of the step
for drafts. All of a grid is evaluated, since time has corners and so there are local maxima.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.forecast.memory import Room
from pipeline.forecast.step_time import HostTime, StepTime
from pipeline.forecast.yield_curve import NONE, YieldCurve

WORTH = 1.05  # a gain below is within what a forecast cannot tell

_GRID = np.unique(
    np.concatenate([[0.0], np.geomspace(1 / 64, 1.0, 25), np.geomspace(1.0, 256.0, 129)])
)


@dataclass(frozen=True)
class Row:
    """An average row: tokens it reads, and tokens it writes."""

    prompt_tokens: float
    new_tokens: float
    shared_tokens: float = 0.0  # of its prompt, computed once for all rows that begin alike

    @property
    def own_tokens(self) -> float:
        """Prompt tokens that are computed for it."""
        return max(0.0, self.prompt_tokens - self.shared_tokens)

    @property
    def context(self) -> float:
        """Cached tokens while it is written, on average."""
        return self.prompt_tokens + self.new_tokens / 2.0


@dataclass(frozen=True)
class Point:
    """A batch size with a draft budget, and what a row takes of the device there."""

    rows: int
    drafts_per_row: float
    step_seconds: float
    tokens_per_step: float  # that a row gains, at least 1
    row_seconds: float  # of the device, its prompt included
    new_tokens: float

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all rows, prompts paid."""
        return self.new_tokens / self.row_seconds


@dataclass(frozen=True)
class Engine:
    """One model on one device, with those who draft for it."""

    step: StepTime
    host: HostTime
    row: Row
    curve: YieldCurve = NONE
    room: Room | None = None  # None: whatever is asked for fits
    prompt_share: float = 1.0  # of a decoded token's work; a prompt needs no output layer

    @cached_property
    def _drafts(self) -> np.ndarray:
        """Draft budgets that are tried: none to all the curve knows of, per row."""
        most = float(self.curve.drafts[-1]) if self.curve.extra[-1] > 0.0 else 0.0
        return np.append(_GRID[most > _GRID], most) if most else np.zeros(1)

    def at(self, rows: int) -> Point | None:
        """The best draft budget for `rows` rows, or None if they do not fit."""
        drafts = self._drafts
        seconds = self._row_seconds(rows, drafts)
        if self.room is not None:
            fits = [self.room.fit(rows, one).free >= 0.0 for one in drafts]
            seconds = np.where(fits, seconds, np.inf)
        best = int(np.argmin(seconds))
        return self._point(rows, best, seconds) if np.isfinite(seconds[best]) else None

    def fixed(self, rows: int, drafts_per_row: float) -> Point:
        """What a budget that nobody adapts would give, fit or not."""
        drafts = np.array([drafts_per_row])
        seconds = self._row_seconds(rows, drafts)
        steps = self._step_seconds(rows, drafts)
        gain = 1.0 + float(self.curve.extra_at(drafts)[0])
        return Point(
            rows, drafts_per_row, float(steps[0]), gain, float(seconds[0]), self.row.new_tokens
        )

    def best(self, choices: Sequence[int]) -> Point | None:
        """The best of some batch sizes; None if none fits."""
        points = [point for rows in choices if (point := self.at(rows)) is not None]
        return min(points, key=lambda point: (point.row_seconds, point.rows), default=None)

    def gain(self, rows: int) -> float:
        """Tokens per second with the best drafts over those without, memory left aside."""
        seconds = self._row_seconds(rows, self._drafts)
        return float(seconds[0] / seconds.min())

    def _point(self, rows: int, best: int, seconds: np.ndarray) -> Point:
        drafts = self._drafts
        return Point(
            rows,
            float(drafts[best]),
            float(self._step_seconds(rows, drafts)[best]),
            1.0 + float(self.curve.extra_at(drafts)[best]),
            float(seconds[best]),
            self.row.new_tokens,
        )

    def _step_seconds(self, rows: int, drafts: np.ndarray) -> np.ndarray:
        """Seconds of a step in which all rows decode: (m,)."""
        forward = self.step.seconds(rows, rows * (1.0 + drafts), self.row.context)
        return forward + self.host.seconds(rows, drafts)

    def _row_seconds(self, rows: int, drafts: np.ndarray) -> np.ndarray:
        """Seconds of the device that an average row takes: (m,).

        Its prompt rides in one step with the others; what that step takes longer is the prompt's.
        """
        tokens = rows * (1.0 + drafts)
        decoding = self._step_seconds(rows, drafts) / (rows * (1.0 + self.curve.extra_at(drafts)))
        forward = self.step.seconds(rows, tokens, self.row.context)
        prompt = self.prompt_share * self.row.own_tokens
        with_prompt = self.step.seconds(rows, tokens + prompt, self.row.context)
        return self.row.new_tokens * decoding + (with_prompt - forward)


def stops_paying(engine: Engine, most_rows: int = 1024) -> int | None:
    """The least batch from which on no larger one gains `WORTH`; None if that is none of these."""
    sizes = np.unique(np.geomspace(1, most_rows, 81).astype(int))
    pays = [engine.gain(int(rows)) >= WORTH for rows in sizes]
    if pays[-1]:
        return None
    last = max((place for place, is_paid in enumerate(pays) if is_paid), default=-1)
    return int(sizes[last + 1])
