"""Measures what a step costs, as the table the draft budget needs."""

import time
from collections.abc import Callable

import numpy as np

from pipeline.engine.budget import CostTable
from pipeline.engine.packing import Step, pack
from pipeline.engine.row import Row
from pipeline.engine.runner import ModelRunner
from pipeline.engine.types import ROOT, DraftTree, Request

# Mean tokens of a row that are measured. The first few drafts cost more than the next, because
# they end the kernels' special cases for one token per row.
_PER_ROW = (1, 1.2, 1.5, 2, 3, 4, 8, 16, 32)
_MOST_TOKENS = {"cpu": 128, "cuda": 2048}  # beyond, time goes on along the last slope
_FAR = 100_000  # tokens per row; the table's end


def measure_costs(
    runner: ModelRunner,
    batch_rows: int,
    repeats: int = 5,
    tell: Callable[[str], object] = lambda _: None,
) -> CostTable:
    """Time steps of 1, a quarter of and all `batch_rows` rows with short and with long contexts.

    Takes seconds on a CPU, more for a large model, and so `tell` hears how far it is; the KV cache
    holds nothing worth keeping afterwards.
    """
    length = runner.cache.max_length
    contexts = sorted({length // 8, length * 3 // 4})
    sizes = sorted({1, max(1, batch_rows // 4), batch_rows})
    per_row = np.append(_PER_ROW, _FAR)
    settings = [(context, rows) for context in contexts for rows in sizes]
    curves = []
    for number, (context, rows) in enumerate(settings, 1):
        tell(f"measuring step costs, {number} of {len(settings)}")
        curves.append(_extended(*_curve(runner, rows, context, repeats), per_row))
    seconds = np.array(curves).reshape(len(contexts), len(sizes), -1)
    # Whatever disturbed one of them: neither shorter contexts nor fewer rows cost more.
    for axis in (0, 1):
        seconds = np.flip(np.minimum.accumulate(np.flip(seconds, axis), axis), axis)
    return CostTable(np.array(contexts), np.array(sizes), per_row, seconds)


def _curve(
    runner: ModelRunner, rows: int, context: int, repeats: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens per row, and seconds of a step of `rows` rows with so many; never falling."""
    room = runner.cache.max_length - context
    most = _MOST_TOKENS.get(runner.device.type, _MOST_TOKENS["cpu"])
    means = [n for n in _PER_ROW if n <= 2 or rows * n <= most]
    widths = [np.minimum(_widths(rows, n), room) for n in means if n <= room]
    steps = [_step(runner, context, width) for width in widths]
    runner.forward(steps[-1])  # the first pass warms up
    # Round after round, so that no size is measured only while something else was busy; whatever
    # disturbs makes a step slower, so no size costs more than a larger one was seen to cost.
    rounds = [[_seconds(runner, step) for step in steps] for _ in range(repeats)]
    least = np.min(rounds, axis=0)
    measured, first = np.unique([width.mean() for width in widths], return_index=True)
    return measured, np.minimum.accumulate(least[::-1])[::-1][first]


def _extended(measured: np.ndarray, curve: np.ndarray, per_row: np.ndarray) -> np.ndarray:
    """The curve at all of `per_row`, going on along the slope of its second half."""
    half = int(np.searchsorted(measured, measured[-1] / 2))
    slope = (curve[-1] - curve[half]) / (measured[-1] - measured[half])
    beyond = np.maximum(per_row - measured[-1], 0)
    return np.interp(per_row, measured, curve) + slope * beyond


def _widths(rows: int, mean: float) -> np.ndarray:
    """Tokens of every row: (rows,) int, `mean` on average.

    Some rows find much to draft and many find nothing, so trees are exponentially distributed.
    """
    quantiles = -np.log1p(-(np.arange(rows) + 0.5) / rows)
    ends = np.round(np.cumsum(quantiles) / quantiles.sum() * rows * (mean - 1))
    return 1 + np.diff(ends, prepend=0.0).astype(int)


def _step(runner: ModelRunner, context: int, widths: np.ndarray) -> Step:
    """Rows that decode, each with a chain of drafts that makes it so wide."""
    rows = [
        Row(Request("", np.ones(context + 1, np.int32), 1), slot) for slot in range(len(widths))
    ]
    for row in rows:
        row.num_cached, row.chunk = context, 1
    return pack(rows, [_chain(width - 1, runner.vocabulary) for width in widths], runner.layout)


def _chain(size: int, vocabulary: int) -> DraftTree:
    nodes = np.arange(size, dtype=np.int32)
    zeros = np.zeros(size)
    return DraftTree(
        nodes % vocabulary, nodes + ROOT, zeros.astype(np.float32), zeros.astype(np.int8), nodes
    )


def _seconds(runner: ModelRunner, step: Step) -> float:
    """Time of a step, the device's work included."""
    began = time.perf_counter()
    runner.forward(step).argmax(-1).tolist()
    return time.perf_counter() - began
