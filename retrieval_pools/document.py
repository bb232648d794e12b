"""What pools are made of: a text that was written before, and how it came about."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Document:
    """A text, and what decides how far it is believed."""

    token_ids: np.ndarray  # (tokens,) int32, without the stop token
    is_relaxed: bool = False  # some token of it was not the model's first choice
    wave: int = 0  # that wrote it; texts of one wave are equally old
