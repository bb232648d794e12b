"""Whether a model and its rows fit a device: weights, keys and values, logits."""

from dataclasses import dataclass

from pipeline.forecast.accelerators import Accelerator
from pipeline.forecast.model_size import BYTES, ModelSize

_LOGIT_COPIES = 8  # bytes of a logit: two copies in float32, besides the one in the model's dtype


@dataclass(frozen=True)
class Fit:
    """Bytes of a batch on a device."""

    weights: float
    cache: float
    logits: float
    usable: float  # of the device

    @property
    def free(self) -> float:
        """What is left; below zero if it does not fit."""
        return self.usable - self.weights - self.cache - self.logits


@dataclass(frozen=True)
class Room:
    """A model on a device, and how long a row may grow."""

    model: ModelSize
    device: Accelerator
    dtype: str
    length: int  # tokens that the cache has room for in each row: prompt, text and drafts

    def fit(self, rows: int, drafts_per_row: float = 0.0) -> Fit:
        """A batch of `rows` rows that each verify so many drafts in a step."""
        width = BYTES[self.dtype]
        decided = rows * (1.0 + drafts_per_row)
        return Fit(
            weights=float(self.model.parameters * width),
            cache=float(rows * self.length * self.model.cache_per_token * width),
            logits=decided * self.model.vocabulary * (_LOGIT_COPIES + width),
            usable=self.device.memory * self.device.usable_memory,
        )

    def most_rows(self) -> int:
        """The largest batch that fits without drafts; 0 if not even one row does."""
        none, one = self.fit(0), self.fit(1)
        each = none.free - one.free
        return max(0, int(none.free // each))
