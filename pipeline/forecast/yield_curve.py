"""How many tokens drafts bring: extra tokens of a row's step over drafted tokens of a row's step.

A node of survival s brings s tokens (see `pipeline.engine.budget`), and the budget takes the nodes
of largest survival first. So what a row gains is concave in what it drafts, whoever drafts, and one
curve says all a forecast needs of pools, texts and rule. It is averaged over rows: the budget
gives to each step of each row by what it can expect, so at a mean of three drafts some rows have
none and some have ten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import DataError

_DRAFTS_OF_A_STEP = 5.5  # under the strict rule


@dataclass(frozen=True)
class YieldCurve:
    """Concave, from (0, 0); straight between its points, flat after the last."""

    drafts: np.ndarray  # (k,) tokens drafted for a row's step, ascending
    extra: np.ndarray  # (k,) tokens that stay of them
    source: str

    @staticmethod
    def through(points: Sequence[tuple[float, float]], source: str) -> "YieldCurve":
        """The least concave curve that no point lies above.

        Raises:
            DataError: no point has drafts, or some bring more than one token for one drafted.
        """
        known = sorted((float(m), float(y)) for m, y in points if m > 0.0)
        if not known or any(not 0.0 <= y <= m for m, y in known):
            raise DataError(f"{source} says nothing of drafts that a forecast could rest on")
        hull = [(0.0, 0.0)]
        for point in known:
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], point):
                hull.pop()
            if point[1] > hull[-1][1] and point[0] > hull[-1][0]:
                hull.append(point)
        drafts, extra = np.array(hull).T
        return YieldCurve(drafts, extra, source)

    @property
    def said(self) -> str:
        """Where it is from, and where what it knows ends."""
        return f"{self.source} (known up to {self.drafts[-1]:.2g} drafts for a row)"

    def extra_at(self, drafts: np.ndarray) -> np.ndarray:
        """Tokens that stay of so many drafted (m,)."""
        return np.interp(drafts, self.drafts, self.extra)

    def scaled(self, factor: float) -> "YieldCurve":
        """Every node's survival times `factor`, but at most 1."""
        slopes = np.minimum(np.diff(self.extra) / np.diff(self.drafts) * factor, 1.0)
        extra = np.append(0.0, np.cumsum(slopes * np.diff(self.drafts)))
        return YieldCurve(self.drafts, extra, self.source)


NONE = YieldCurve(np.array([0.0, 1.0]), np.array([0.0, 0.0]), "no drafts")


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0]) if right[0] > left[0] else 0.0


def of_benchmark(benchmark: Mapping[str, Any], arm: str, kind: str = "all") -> YieldCurve:
    """From `benchmark.json`: a point for every batch size, where the budget of that run put it.

    Prompts are in the packed tokens of a step; how many is known from plain decoding's.

    Raises:
        DataError: the benchmark lacks the arm.
    """
    source = f"benchmark, {arm}"
    try:
        points = [point_of(benchmark, arm, kind, batch) for batch in batches_of(benchmark, arm)]
    except (KeyError, TypeError, StopIteration) as error:
        raise DataError(f"{source}: not in this file ({error!r})") from error
    return YieldCurve.through(points, source)


def batches_of(benchmark: Mapping[str, Any], arm: str) -> list[int]:
    """Batch sizes at which an arm was measured."""
    return sorted({record["batch"] for record in benchmark["arms"] if record["arm"] == arm})


def record_of(benchmark: Mapping[str, Any], arm: str, kind: str, batch: int) -> Mapping[str, Any]:
    """What was measured of an arm."""
    wanted = (arm, kind, batch)
    return next(
        record
        for record in benchmark["arms"]
        if (record["arm"], record["kind"], record["batch"]) == wanted
    )


def point_of(benchmark: Mapping[str, Any], arm: str, kind: str, batch: int) -> tuple[float, float]:
    """Drafts and extra tokens of a row's step."""
    own, plain = (record_of(benchmark, name, kind, batch) for name in (arm, "plain"))
    prompts = own["rows"] * computed_prompt(plain)
    drafts = (_packed(own) - prompts) / _passes(own) - 1.0
    return drafts, own["tokens_per_forward"] / plain["tokens_per_forward"] - 1.0


def computed_prompt(plain: Mapping[str, Any]) -> float:
    """Prompt tokens that plain decoding computed for a row; the others it shared with rows before.

    All else in its steps is one token for each row.
    """
    return (_packed(plain) - _passes(plain)) / plain["rows"]


def _packed(record: Mapping[str, Any]) -> float:
    return record["step"]["steps"] * record["step"]["packed_tokens"]


def _passes(record: Mapping[str, Any]) -> float:
    return record["new_tokens"] / record["tokens_per_forward"]


def of_report(report: Mapping[str, Any]) -> YieldCurve:
    """From `report.json`: what was drafted and what stayed, level by level.

    The mean of a level hides that some of its nodes were surer than others, so the curve is a
    little low; and it ends where that run's budget ended.

    Raises:
        DataError: the run drafted nothing, or the file is no report.
    """
    try:
        levels = report["acceptance"]["by_depth"]
        waves = [wave for wave in report["acceptance"]["waves"] if wave["rules"] != ["plain"]]
        passes = float(sum(wave["forward_passes"] for wave in waves))
        nodes = sorted(
            ((level["drafted"], level["accepted"]) for level in levels if level["drafted"]),
            key=lambda level: level[1] / level[0],
            reverse=True,
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"no report with what was accepted: {error!r}") from error
    if not nodes or not passes:
        raise DataError("the run of this report drafted nothing; take another profile")
    sums = np.cumsum(np.array(nodes, float), axis=0) / passes
    return YieldCurve.through([(m, y) for m, y in sums.tolist()], "report")


def of_comparison(comparison: Mapping[str, Any], arm: str, shape: YieldCurve) -> YieldCurve:
    """From `comparison.json`, which knows tokens per pass only: `shape`, scaled to give them.

    How many tokens were drafted is not in the file. They are taken to be as many as the budget
    usually has at that batch size, and all survivals to differ from `shape`'s by one factor.

    Raises:
        DataError: the file has no such arm.
    """
    try:
        rates = {
            record["arm"]: record["tokens_per_forward"]
            for record in comparison["arms"]
            if record["kind"] == "all"
        }
        extra = rates[arm] / rates["plain"] - 1.0
        batch = min(int(comparison["batch_rows"]), int(comparison["rows"]))
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise DataError(f"no comparison with an arm {arm}: {error!r}") from error
    usual = usual_drafts(shape, batch)
    factor = extra / float(shape.extra_at(np.array([usual]))[0])
    scaled = shape.scaled(max(factor, 0.0))
    return YieldCurve(
        scaled.drafts, scaled.extra, f"comparison, {arm}, in the shape of {shape.source}"
    )


def usual_drafts(shape: YieldCurve, batch: int) -> float:
    """Drafts of a row's step at a batch size, as the budget gave them on two cores.

    `make bench` has 5.9 at one row and 0.32 at sixteen: as many for the whole step.
    """
    return float(min(_DRAFTS_OF_A_STEP / batch, shape.drafts[-1]))
