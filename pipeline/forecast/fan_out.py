"""From a priced arm to waves of a simulated cluster."""

import math
from dataclasses import dataclass

from pipeline.forecast.job import Arm, Job
from pipeline.forecast.lengths import longest_over_mean
from pipeline.forecast.simulate import Cluster, Wave, simulate

_MOST_BLOCKS = 20_000  # beyond, blocks are taken larger: only their number costs time here
_POOL_SECONDS = 0.8e-6  # for a token of text, from rows to a folder of pools (README)


@dataclass(frozen=True)
class FanOut:
    """How a job is spread, and what goes wrong with it."""

    waves: int  # that draft
    first_share: float  # of the entities, in a wave before them that has no pools yet
    length_deviation: float  # standard, of a text over the mean
    block_rows: int
    slow_share: float  # of machines
    slow_factor: float
    hours_between: float | None  # faults of one device; None: there are none
    start_seconds: float
    restart_seconds: float
    seeds: int
    seed: int


def fan_out(job: Job, arm: Arm, plain: Arm, how: FanOut) -> dict[str, float]:
    """Hours on the clock and utilisation of an arm; its first wave is decoded as `plain`."""
    cluster = Cluster(
        devices=job.fleet.devices,
        block_rows=max(how.block_rows, math.ceil(job.entities / _MOST_BLOCKS)),
        rows_in_flight=arm.point.rows,
        start_seconds=how.start_seconds,
        slow_share=how.slow_share,
        slow_factor=how.slow_factor,
        hours_between_faults=how.hours_between or math.inf,
        restart_seconds=how.restart_seconds,
        length_deviation=how.length_deviation,
    )
    found = simulate(waves_of(job, arm, plain, how), cluster, how.seeds, how.seed)
    return {
        "hours": round(float(found.hours.mean()), 3),
        "hours_p5": round(found.percentile(5), 3),
        "hours_p95": round(found.percentile(95), 3),
        "utilisation": round(float(found.utilisation.mean()), 4),
        "lost_share": round(float(found.lost_share.mean()), 5),
        "faults": round(float(found.faults.mean()), 1),
    }


def waves_of(job: Job, arm: Arm, plain: Arm, how: FanOut) -> list[Wave]:
    """The first without drafts, the others in equal parts, each after pools of those before."""
    if arm is plain:
        return [_wave(job, arm, job.entities, 0, how)]
    first = round(job.entities * how.first_share)
    rest, count = job.entities - first, how.waves
    parts = [rest * (n + 1) // count - rest * n // count for n in range(count)]
    found, written = [_wave(job, plain, first, 0, how)] if first else [], first
    for rows in filter(None, parts):
        found.append(_wave(job, arm, rows, written, how))
        written += rows
    return found


def _wave(job: Job, arm: Arm, rows: int, written: int, how: FanOut) -> Wave:
    """`written` rows are in the pools before it."""
    point = arm.point
    in_batch = min(point.rows, math.ceil(rows / job.fleet.devices))
    longer = longest_over_mean(how.length_deviation, in_batch) - 1.0
    steps = job.row.new_tokens / point.tokens_per_step
    return Wave(
        rows=rows,
        row_seconds=point.row_seconds,
        drain_seconds=steps * longer * point.step_seconds,  # at most: emptier batches are faster
        pools_seconds=written * job.row.new_tokens * _POOL_SECONDS,
    )
