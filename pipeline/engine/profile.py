"""Measures what a step costs, as the table the draft budget needs."""

import time

import numpy as np

from pipeline.engine.budget import CostTable
from pipeline.engine.packing import Step, pack
from pipeline.engine.row import Row
from pipeline.engine.runner import ModelRunner
from pipeline.engine.types import ROOT, DraftTree, Request

_PER_ROW = (1, 2, 3, 4, 8, 16, 32)  # tokens of each row that are measured
_MOST_TOKENS = 128  # beyond, time goes on along the last slope
_FAR = 100_000  # tokens per row; the table's end


def measure_costs(runner: ModelRunner, batch_rows: int, repeats: int = 5) -> CostTable:
    """Time steps of 1, a quarter of and all `batch_rows` rows at half the cache's length.

    Takes seconds on a CPU; the KV cache holds nothing worth keeping afterwards.
    """
    sizes = sorted({1, max(1, batch_rows // 4), batch_rows})
    curves = [_curve(runner, rows, repeats) for rows in sizes]
    per_row = np.append(_PER_ROW, _FAR)
    seconds = [_extended(measured, curve, per_row) for measured, curve in curves]
    return CostTable(np.array(sizes), per_row, np.array(seconds))


def _curve(runner: ModelRunner, rows: int, repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens per row, and seconds of a step of `rows` rows with so many; never falling."""
    room = runner.cache.max_length - runner.cache.max_length // 2
    sizes = [n for n in _PER_ROW if n <= 2 or (rows * n <= _MOST_TOKENS and n <= room)]
    steps = [_step(runner, rows, n) for n in sizes]
    runner.forward(steps[-1])  # the first pass warms up
    # Round after round, so that no size is measured only while something else was busy; whatever
    # disturbs makes a step slower, so no size costs more than a larger one was seen to cost.
    rounds = [[_seconds(runner, step) for step in steps] for _ in range(repeats)]
    least = np.min(rounds, axis=0)
    return np.array(sizes), np.minimum.accumulate(least[::-1])[::-1]


def _extended(measured: np.ndarray, curve: np.ndarray, per_row: np.ndarray) -> np.ndarray:
    """The curve at all of `per_row`, going on along its mean slope where it was not measured."""
    slope = (curve[-1] - curve[0]) / (measured[-1] - measured[0])
    beyond = np.maximum(per_row - measured[-1], 0)
    return np.interp(per_row, measured, curve) + slope * beyond


def _step(runner: ModelRunner, num_rows: int, tokens_per_row: int) -> Step:
    """Rows that decode, each with a chain of drafts."""
    cached = runner.cache.max_length // 2
    nodes = np.arange(tokens_per_row - 1, dtype=np.int32)
    zeros = np.zeros(len(nodes))
    chain = DraftTree(nodes, nodes + ROOT, zeros.astype(np.float32), zeros.astype(np.int8), nodes)
    rows = [Row(Request("", np.ones(cached + 1, np.int32), 1), slot) for slot in range(num_rows)]
    for row in rows:
        row.num_cached, row.chunk = cached, 1
    return pack(rows, [chain] * num_rows, runner.layout)


def _seconds(runner: ModelRunner, step: Step) -> float:
    """Time of a step, the device's work included."""
    began = time.perf_counter()
    runner.forward(step).argmax(-1).tolist()
    return time.perf_counter() - began
