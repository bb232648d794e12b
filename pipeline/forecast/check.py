"""The forecast held against what `make bench` measured on two cores.

Step costs come from the engine's own table, what drafts bring from replays with all drafts
verified; tokens per second, which is what is predicted, from neither.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.forecast.best import Engine, Row
from pipeline.forecast.lengths import mean_rows
from pipeline.forecast.named_models import named_size
from pipeline.forecast.profiles import measured, named_curves
from pipeline.forecast.step_time import HostTime, MeasuredSteps
from pipeline.forecast.yield_curve import NONE

KINDS = ("user", "item")


@dataclass(frozen=True)
class Check:
    """Tokens per second of an arm."""

    arm: str
    batch: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Share by which the prediction is too high."""
        return self.predicted / self.measured - 1.0


def checks() -> Iterator[Check]:
    """Plain, strict and relaxed decoding at all batch sizes measured."""
    speeds = measured()["speeds"]
    for record in speeds:
        seconds = sum(_seconds(record["arm"], record["batch"], kind) for kind in KINDS)
        tokens = sum(rows_of(kind)["new_tokens"] for kind in KINDS)
        yield Check(record["arm"], record["batch"], tokens / seconds, record["tokens_per_second"])


def rows_of(kind: str) -> Mapping[str, Any]:
    """Mean tokens of rows of a kind, and the lengths of some."""
    return measured()["rows"][kind]


def _seconds(arm: str, batch: int, kind: str) -> float:
    """Seconds of the machine for an average row of a kind.

    A block of the benchmark is twice as many rows as the batch has room for (four, if it has room
    for one), so the batch runs empty at the end.
    """
    own = rows_of(kind)
    block = [own["lengths"][n % len(own["lengths"])] for n in range(max(4, 2 * batch))]
    rows = mean_rows(block, batch)
    curve = NONE if arm == "plain" else named_curves(kind)[arm]
    row = Row(own["prompt_tokens"], own["new_tokens"], own["shared_tokens"])
    steps = MeasuredSteps.from_json(measured()["costs"])
    share = named_size("smollm2-135m").prompt_share
    engine = Engine(steps, HostTime(), row, curve, prompt_share=share)
    low, part = int(rows), rows - int(rows)
    points = [engine.at(size) for size in (low, low + 1)]
    return sum(
        share * point.row_seconds
        for share, point in zip((1.0 - part, part), points, strict=True)
        if point is not None
    )
