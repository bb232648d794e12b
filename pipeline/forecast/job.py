"""A job priced in several ways, each at its best batch; and what if the job differs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.forecast.accelerators import Accelerator
from pipeline.forecast.best import Engine, Point, Row, stops_paying
from pipeline.forecast.cost import Cost, Fleet, cost_at
from pipeline.forecast.memory import Room
from pipeline.forecast.model_size import ModelSize
from pipeline.forecast.step_time import GPU_HOST, HostTime, Roofline
from pipeline.forecast.yield_curve import NONE, YieldCurve

PLAIN, PLAIN_ALONE = "plain", "plain, one row at a time"
FIXED_DRAFTS = 8.0  # of a row, for those who draft always as much
_CONTEXTS = (256, 1024, 4096, 16384)


@dataclass(frozen=True)
class Job:
    """What is to be written, by what, on what."""

    entities: int
    row: Row
    model: ModelSize
    dtype: str
    device: Accelerator
    fleet: Fleet
    length: int  # tokens that the cache has room for in each row
    batch_sizes: Sequence[int]

    @property
    def room(self) -> Room:
        """Memory of one device."""
        return Room(self.model, self.device, self.dtype, self.length)

    @property
    def host(self) -> HostTime:
        """What steps take around their forward pass."""
        return HostTime() if self.device.is_host else GPU_HOST

    @property
    def batches(self) -> list[int]:
        """Batch sizes to choose from: none with more rows than a device gets."""
        most = math.ceil(self.entities / self.fleet.devices)
        return sorted({min(rows, most) for rows in self.batch_sizes})

    def engine(self, curve: YieldCurve = NONE) -> Engine:
        """One device, with drafts that bring what `curve` says."""
        steps = Roofline(self.model, self.device, self.dtype)
        return Engine(steps, self.host, self.row, curve, self.room, self.model.prompt_share)

    def with_tokens(self, factor: float) -> "Job":
        """Texts longer by a factor, in a cache that grows with them."""
        new = self.row.new_tokens * factor
        grown = round(max(0.0, new - self.row.new_tokens))
        row = replace(self.row, new_tokens=new)
        return replace(self, row=row, length=self.length + grown)


@dataclass(frozen=True)
class Arm:
    """One way to do the job."""

    name: str
    point: Point
    cost: Cost
    gain: float  # tokens per second over plain decoding at its best batch


def arms_of(job: Job, curves: Mapping[str, YieldCurve]) -> list[Arm]:
    """Plain decoding of one row at a time and at its best batch, then a way for every curve.

    Empty if not even one row fits the device.
    """
    plain = job.engine()
    alone, best = plain.at(1), plain.best(job.batches)
    if alone is None or best is None:
        return []
    found = {PLAIN_ALONE: alone, PLAIN: best}
    for name, curve in curves.items():
        point = job.engine(curve).best(job.batches)
        if point is not None:
            found[name] = point
    arms = []
    for name, point in found.items():
        cost = cost_at(point, job.entities, job.fleet)
        arms.append(Arm(name, point, cost, best.row_seconds / point.row_seconds))
    return arms


def by_batch(job: Job, curve: YieldCurve) -> list[dict[str, float]]:
    """At every batch size that fits: tokens per second plain, by the best and by a fixed budget."""
    rows = []
    plain, drafted = job.engine(), job.engine(curve)
    always = min(FIXED_DRAFTS, float(curve.drafts[-1]))  # beyond, nothing is known
    for size in job.batches:
        bare, best = plain.at(size), drafted.at(size)
        if bare is None or best is None:
            continue
        fixed = drafted.fixed(size, always)
        rows.append(
            {
                "rows": size,
                "plain": bare.tokens_per_second,
                "drafted": best.tokens_per_second,
                "fixed": fixed.tokens_per_second,
                "drafts_per_row": best.drafts_per_row,
                "fixed_drafts": always,
                "free_bytes": job.room.fit(size).free,
            }
        )
    return rows


def where_it_stops(job: Job, curve: YieldCurve) -> dict[str, int | None]:
    """By tokens that rows have in the cache: batch from which on drafts gain less than `WORTH`.

    Memory is left aside: such a batch may not fit.
    """
    found = {}
    for context in (job.row.context, *_CONTEXTS):
        prompt = max(0.0, context - job.row.new_tokens / 2.0)
        row = replace(job.row, prompt_tokens=prompt)
        engine = replace(job.engine(curve), row=row)
        found[f"{context:.0f}"] = stops_paying(engine)
    return found


def sensitivity(job: Job, curve: YieldCurve, changes: Sequence[float]) -> list[dict[str, Any]]:
    """What the job costs if acceptance, tokens or price are otherwise, each by itself."""
    records = []
    for change in changes:
        for factor in (1.0 - change, 1.0 + change):
            varied = {
                "acceptance": (job, curve.scaled(factor)),
                "new tokens": (job.with_tokens(factor), curve),
                "prompt tokens": (_with_prompts(job, factor), curve),
            }
            if job.fleet.price is not None:
                varied["price"] = (replace(job, fleet=job.fleet.with_price(factor)), curve)
            for name, (other, own) in varied.items():
                records.append({"what": name, "factor": factor} | _priced(other, own))
    return records


def _with_prompts(job: Job, factor: float) -> Job:
    prompts = job.row.prompt_tokens * factor
    grown = round(max(0.0, prompts - job.row.prompt_tokens))
    row = replace(job.row, prompt_tokens=prompts)
    return replace(job, row=row, length=job.length + grown)


def _priced(job: Job, curve: YieldCurve) -> dict[str, float | None]:
    point = job.engine(curve).best(job.batches)
    if point is None:
        return {"device_hours": None, "days": None, "money": None}
    cost = cost_at(point, job.entities, job.fleet)
    return {"device_hours": cost.device_hours, "days": cost.days, "money": cost.money}
