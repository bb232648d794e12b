"""Rows of a step as padded blocks for masked attention: any device, any floating-point type.

The rows that decode form one block, because one masked call per layer beats a loop over rows, and a
row much wider than the others one of its own, because it would pad them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.engine.lines import Line, reveal

# What attention costs, in queries of one row: reading the row's keys and values, and the
# calls of one more segment (measured with scaled_dot_product_attention at 336 keys, 3 heads).
_ROW = 7
_SEGMENT = 10


@dataclass(frozen=True)
class Segment:
    """Rows `first..last` of the arena, padded to one width of queries and one length of keys."""

    first: int
    last: int  # exclusive
    length: int  # arena positions in sight
    queries: torch.Tensor  # (rows * width,) packed index of every query, 0 where padded
    real: torch.Tensor  # (tokens,) index into `queries` of the unpadded ones
    packed: torch.Tensor  # (tokens,) their packed index
    width: int
    masks: dict[int, torch.Tensor]  # window -> additive (rows, 1, fold * width, length)


def plan_segments(
    lines: list[Line], windows: Sequence[int], fold: int, dtype: torch.dtype, device: torch.device
) -> list[Segment]:
    """Segments and their masks; see `Layout` for the arguments."""
    return [_segment(part, windows, fold, dtype, device) for part in _partition(lines)]


def _partition(lines: list[Line]) -> list[list[Line]]:
    """Lines up to some width together, padded to it, and each wider one alone: the cheapest way."""
    splits = [_split(lines, width) for width in {len(line) for line in lines}]
    return min(splits, key=lambda parts: sum(map(_attention_cost, parts)))


def _split(lines: list[Line], width: int) -> list[list[Line]]:
    return [
        [line for line in lines if len(line) <= width],
        *([line] for line in lines if len(line) > width),
    ]


def _attention_cost(lines: list[Line]) -> int:
    slots = [line.slot for line in lines]
    span = max(slots) - min(slots) + 1
    return _SEGMENT + span * (_ROW + max(map(len, lines)))


def _segment(
    lines: list[Line], windows: Sequence[int], fold: int, dtype: torch.dtype, device: torch.device
) -> Segment:
    first, last = min(line.slot for line in lines), max(line.slot for line in lines) + 1
    width = max(len(line) for line in lines)
    length = max(line.cached + len(line) for line in lines)
    queries = np.zeros((last - first, width), np.int64)
    is_real = np.zeros((last - first, width), bool)
    for line in lines:
        queries[line.slot - first, : len(line)] = line.start + np.arange(len(line))
        is_real[line.slot - first, : len(line)] = True
    real = np.flatnonzero(is_real)
    masks = {}
    for window in windows:
        mask = torch.from_numpy(_mask(lines, first, last, width, length, window))
        masks[window] = mask.repeat(1, 1, fold, 1).to(device, dtype)
    return Segment(
        first,
        last,
        length,
        queries=torch.from_numpy(queries.ravel()).to(device),
        real=torch.from_numpy(real).to(device),
        packed=torch.from_numpy(queries.ravel()[real]).to(device),
        width=width,
        masks=masks,
    )


def _mask(
    lines: list[Line], first: int, last: int, width: int, length: int, window: int
) -> np.ndarray:
    """(rows, 1, width, length) float32: 0 where a query sees a key, -inf elsewhere."""
    mask = np.full((last - first, 1, width, length), -np.inf, np.float32)
    mask[:, :, :, 0] = 0.0  # a padded query must see something, or softmax gives NaN
    for line in lines:
        rows = mask[line.slot - first, 0, : len(line)]
        rows[:, 0] = -np.inf
        reveal(rows, line.cached, line.parents, line.positions, window or np.iinfo(np.int32).max)
    return mask
