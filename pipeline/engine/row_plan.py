"""Rows of a step as units of work for the row attention kernel; see `row_attention`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.engine.lines import Line, reveal

# Tokens of a unit. With fewer, a row's keys are read too often; with more, a thread is left without
# work, or the scores leave the second-level cache.
_FEWEST, _MOST = 4, 16


@dataclass(frozen=True)
class Sight:
    """What every token of a step sees, for one sliding window."""

    oldest: np.ndarray  # (tokens,) int64, the first cached token that may be seen
    hidden: np.ndarray  # uint8, for every line (tokens, tokens): is the second out of sight?


@dataclass(frozen=True)
class RowPlan:
    """Units of work, the largest first, because threads take them one after the other."""

    units: np.ndarray  # (units, 7) int64; see `_units_of`
    most_tokens: int  # of a unit
    most_keys: int
    sights: dict[int, Sight]  # window -> sight


def plan_rows(lines: Sequence[Line], windows: Sequence[int]) -> RowPlan:
    """Units and sights of a step."""
    fair = sum(map(len, lines)) // (2 * torch.get_num_threads())
    size = min(max(fair, _FEWEST), _MOST)
    offsets = np.cumsum([0] + [len(line) ** 2 for line in lines])
    parts = [_units_of(line, offset, size) for line, offset in zip(lines, offsets, strict=False)]
    units = np.concatenate(parts)
    tokens, keys = units[:, 2], units[:, 2:5].sum(1)
    return RowPlan(
        units[np.argsort(-keys * tokens, kind="stable")],
        int(tokens.max()),
        int(keys.max()),
        {window: _sight(lines, window, offsets) for window in windows},
    )


def _units_of(line: Line, offset: int, size: int) -> np.ndarray:
    """Slot, first packed token, tokens, first of them in the line, cached tokens, tokens of the
    line, where in `hidden` the line is.
    """
    firsts = np.arange(0, len(line), size)
    units = np.empty((len(firsts), 7), np.int64)
    units[:, 0] = line.slot
    units[:, 1] = line.start + firsts
    units[:, 2] = np.minimum(size, len(line) - firsts)
    units[:, 3] = firsts
    units[:, 4:] = line.cached, len(line), offset
    return units


def _sight(lines: Sequence[Line], window: int, offsets: np.ndarray) -> Sight:
    window = window or np.iinfo(np.int32).max
    hidden = np.ones(offsets[-1], np.uint8)
    for line, offset in zip(lines, offsets, strict=False):
        square = hidden[offset : offset + len(line) ** 2].reshape(len(line), len(line))
        reveal(square, 0, line.parents, line.positions, window)
    positions = np.concatenate([line.positions for line in lines]).astype(np.int64)
    return Sight(np.maximum(positions - window + 1, 0), hidden)
