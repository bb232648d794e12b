"""Seconds of a decoding step, by a formula or by a table that was measured.

T(N, C) = t0 + max(weights read / bandwidth, 2 weights N / FLOP/s) + cache bytes of C / bandwidth
(SmartSpec, arXiv 2406.14066, has its linear form). N are the tokens of the step, drafts included,
C the cached tokens of its rows. Products wait either for weights or for arithmetic; attention
comes after them and waits for keys and values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.errors import DataError
from pipeline.forecast.accelerators import Accelerator
from pipeline.forecast.model_size import BYTES, ModelSize


class StepTime(Protocol):
    """What a step takes, without its drafting."""

    def seconds(self, rows: int, tokens: np.ndarray, context: float) -> np.ndarray:
        """Seconds for `tokens` (m,) tokens in `rows` rows that have `context` cached ones each."""
        ...


@dataclass(frozen=True)
class Roofline:
    """By the formula."""

    model: ModelSize
    device: Accelerator
    dtype: str

    def seconds(self, rows: int, tokens: np.ndarray, context: float) -> np.ndarray:
        """See `StepTime`."""
        width = BYTES[self.dtype]
        bandwidth = self.device.bandwidth * self.device.read_share
        flops = self.device.peak(self.dtype) * self.device.compute_share
        reading = np.array([self.model.read(one) for one in np.ravel(tokens)]) * width / bandwidth
        computing = 2.0 * self.model.active * np.ravel(tokens) / flops
        cache = rows * context * self.model.cache_per_token * width / bandwidth
        return self.device.step_seconds + np.maximum(reading, computing) + cache


@dataclass(frozen=True)
class MeasuredSteps:
    """By a table that the engine measured, as `.cache/costs/` keeps it."""

    contexts: np.ndarray  # (c,) cached tokens of each row, ascending
    rows: np.ndarray  # (r,)
    per_row: np.ndarray  # (t,) tokens of a row
    table: np.ndarray  # (c, r, t) seconds

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> "MeasuredSteps":
        """A stored cost table.

        Raises:
            DataError: it is none.
        """
        try:
            contexts, rows, per_row, table = (
                np.array(stored[name], float) for name in ("contexts", "rows", "per_row", "seconds")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"no table of step costs: {error}") from error
        if table.shape != (len(contexts), len(rows), len(per_row)):
            raise DataError("no table of step costs: its shapes differ")
        return MeasuredSteps(contexts, rows, per_row, table)

    def seconds(self, rows: int, tokens: np.ndarray, context: float) -> np.ndarray:
        """See `StepTime`; interpolated between what was measured, the same as the engine does."""
        by_context = self._between(self.contexts, context, self.table)  # (r, t)
        curve = self._between(self.rows, rows, by_context)  # (t,)
        return np.interp(np.ravel(tokens) / rows, self.per_row, curve)

    @staticmethod
    def _between(points: np.ndarray, value: float, values: np.ndarray) -> np.ndarray:
        place = float(np.interp(value, points, np.arange(len(points))))
        low = int(place)
        high = min(low + 1, len(points) - 1)
        return (1.0 - (place - low)) * values[low] + (place - low) * values[high]


@dataclass(frozen=True)
class HostTime:
    """What a step takes around its forward pass: drafting, verification, bookkeeping.

    Defaults are measured on one core by `make bench` at 1 and at 16 rows; drafting is from pools of
    some 30,000 tokens, and takes longer from larger ones (README).
    """

    step: float = 0.7e-3  # s, whatever is in it
    step_row: float = 0.1e-3  # s for each row
    draft: float = 0.38e-3  # s more where there are drafts
    draft_row: float = 0.045e-3

    def seconds(self, rows: int, drafts: np.ndarray) -> np.ndarray:
        """For `drafts` (m,) drafted tokens in `rows` rows."""
        plain = self.step + self.step_row * rows
        return plain + np.where(np.ravel(drafts) > 0, self.draft + self.draft_row * rows, 0.0)


# On a GPU verification is part of what a step takes anyway; drafts are made on the CPU beside it.
GPU_HOST = HostTime(step=0.0, step_row=0.0)
