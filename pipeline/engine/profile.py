"""Measures what a step costs, as the table the draft budget needs."""

import time
from collections.abc import Callable

import numpy as np
import torch

from pipeline.engine.budget import CostTable
from pipeline.engine.packing import Step, pack
from pipeline.engine.row import Row
from pipeline.engine.runner import ModelRunner
from pipeline.engine.types import DraftTree, Request

_PER_ROW = (1, 2, 4, 8, 16, 32)  # tokens per row measured
_MOST_TOKENS = 256  # beyond, time is extrapolated along the last segment


def measure_costs(runner: ModelRunner, batch_rows: int, repeats: int = 2) -> CostTable:
    """Time steps of 1 and of `batch_rows` rows at half the cache's length.

    Takes a few seconds on a CPU; the KV cache holds nothing worth keeping afterwards.
    """
    sizes = sorted({1, batch_rows})
    totals = np.array(
        sorted({rows * n for rows in sizes for n in _PER_ROW if rows * n <= _MOST_TOKENS})
    )
    forward = [_curve(runner, rows, totals, repeats) for rows in sizes]
    width = runner.forward(_step(runner, 1, 1)).shape[-1]
    head = [
        _seconds(lambda n=rows: runner.logits(_hidden(runner, n, width)), repeats) for rows in sizes
    ]
    grid = np.append(totals, totals[-1] * 8)
    return CostTable(np.array(sizes), grid, np.array(forward), np.array(head))


def _curve(runner: ModelRunner, rows: int, totals: np.ndarray, repeats: int) -> np.ndarray:
    """Seconds at `totals` packed tokens, and proportionally at eight times the last."""
    measured = [
        (rows * n, _seconds(lambda n=n: runner.forward(_step(runner, rows, n)), repeats))
        for n in _PER_ROW
        if rows * n <= _MOST_TOKENS
    ]
    tokens, seconds = map(np.array, zip(*measured, strict=True))
    curve = np.interp(totals, tokens, np.maximum.accumulate(seconds))
    slope = seconds[-1] / tokens[-1]
    curve = np.where(totals > tokens[-1], seconds[-1] + slope * (totals - tokens[-1]), curve)
    return np.append(curve, curve[-1] + curve[-1] / totals[-1] * totals[-1] * 7)


def _step(runner: ModelRunner, rows: int, tokens_per_row: int) -> Step:
    cached = runner.cache.max_length // 2
    lines = []
    for slot in range(rows):
        prompt = np.ones(cached + tokens_per_row, np.int32)
        row = Row(Request("", prompt, 1), slot)
        row.num_cached, row.chunk = cached, tokens_per_row
        lines.append(row)
    trees = [DraftTree.empty()] * rows
    return pack(lines, trees, runner.layout)


def _hidden(runner: ModelRunner, rows: int, width: int) -> torch.Tensor:
    return torch.zeros(rows, width, device=runner.device, dtype=runner.cache.keys.dtype)


def _seconds(work: Callable[[], torch.Tensor], repeats: int) -> float:
    """Best of `repeats`, so that the first one may warm up; waits for the device."""
    best = np.inf
    for _ in range(repeats):
        began = time.perf_counter()
        work().sum().item()
        best = min(best, time.perf_counter() - began)
    return best
