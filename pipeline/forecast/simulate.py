"""A fan-out as events on a clock: what the closed form leaves out, which is all that waits.

Devices start, take blocks of rows from a queue, and end a wave together, since the next wave's
pools need all of its texts. Machines differ in speed, and die: what was in flight is lost, the rest
of the block goes back into the queue, and the device returns after a while.

Approximated: a block is one piece of work, whose rows' lengths add up to a normal sum; a device
writes at the speed of a full batch until its wave runs dry, and then needs the longest rows' time
beyond the average once (`Wave.drain_seconds`); devices do not slow each other down; an idle device
does not die. Ten million rows are some ten thousand blocks, so many seeds take seconds.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_READY, _DIES = 0, 1


@dataclass(frozen=True)
class Wave:
    """Rows that may be written at once."""

    rows: int
    row_seconds: float  # of a device, on average
    drain_seconds: float = 0.0  # of the last rows, while a batch runs empty
    pools_seconds: float = 0.0  # before it begins: nobody writes while pools are built


@dataclass(frozen=True)
class Cluster:
    """Devices, and what goes wrong with them."""

    devices: int
    block_rows: int = 512
    rows_in_flight: int = 64  # unfinished, so lost with a device
    start_seconds: float = 0.0  # before a device takes its first block: to load a model
    slow_share: float = 0.0  # of machines
    slow_factor: float = 1.0  # time of theirs over that of others
    hours_between_faults: float = math.inf  # of one device, exponentially distributed
    restart_seconds: float = 0.0
    length_deviation: float = 0.0  # standard deviation of a row's time over its mean


@dataclass
class _Run:
    """One seed's events."""

    cluster: Cluster
    random: np.random.Generator
    slowness: np.ndarray  # (devices,)
    events: list[tuple[float, int, int, int]] = field(default_factory=list)
    useful: float = 0.0  # device seconds that wrote what stayed
    lost: float = 0.0
    faults: int = 0
    number: int = 0  # of an event, so that equal times keep their order

    def push(self, when: float, what: int, device: int) -> None:
        """Let something happen."""
        self.number += 1
        heapq.heappush(self.events, (when, self.number, what, device))


@dataclass(frozen=True)
class Outcome:
    """All seeds."""

    hours: np.ndarray  # (seeds,) on the clock
    utilisation: np.ndarray  # (seeds,) device time that wrote what stayed, over all that is paid
    faults: np.ndarray  # (seeds,)
    lost_share: np.ndarray  # (seeds,) device time whose work was lost

    def percentile(self, share: float) -> float:
        """Hours that so many percent of the seeds stay below."""
        return float(np.percentile(self.hours, share))


def simulate(waves: Sequence[Wave], cluster: Cluster, seeds: int = 20, seed: int = 2026) -> Outcome:
    """Run a job `seeds` times."""
    runs = [_simulate_once(waves, cluster, np.random.default_rng([seed, n])) for n in range(seeds)]
    return Outcome(*map(np.array, zip(*runs, strict=True)))


def _simulate_once(
    waves: Sequence[Wave], cluster: Cluster, random: np.random.Generator
) -> tuple[float, float, float, float]:
    """Hours, utilisation, faults and lost share."""
    is_slow = random.random(cluster.devices) < cluster.slow_share
    run = _Run(cluster, random, np.where(is_slow, cluster.slow_factor, 1.0))
    now = cluster.start_seconds
    free = np.full(cluster.devices, now)
    for wave in waves:
        now, free = _run_wave(run, wave, np.maximum(free, now + wave.pools_seconds))
    paid = now * cluster.devices
    return now / 3600.0, run.useful / paid, float(run.faults), run.lost / paid


def _run_wave(run: _Run, wave: Wave, free: np.ndarray) -> tuple[float, np.ndarray]:
    """When the last row is written, and when each device may work again (it may be restarting)."""
    cluster = run.cluster
    queue = deque(_blocks(run, wave).tolist())
    working: dict[int, float] = {}  # device -> work of its block, in seconds of a device at speed 1
    began: dict[int, float] = {}
    idle: list[int] = []
    ready, end = free.copy(), float(free.min())
    run.events.clear()
    for device in np.argsort(free, kind="stable").tolist():
        run.push(float(free[device]), _READY, device)
    while run.events:
        now, _, what, device = heapq.heappop(run.events)
        if device in working:
            work = working.pop(device)
            if what == _DIES:
                queue.append(_left_of(run, wave, device, work, now - began[device]))
                ready[device] = now + cluster.restart_seconds
                run.push(float(ready[device]), _READY, device)
                if idle:
                    run.push(now, _READY, idle.pop())
                continue
            run.useful += work * run.slowness[device]
            end = max(end, now)
        if not queue:
            idle.append(device)
            continue
        working[device], began[device] = queue.popleft(), now
        _go_on(run, device, working[device], now)
    end += wave.drain_seconds
    return end, np.maximum(ready, end)


def _go_on(run: _Run, device: int, work: float, now: float) -> None:
    """Either the block ends or, before that, the device."""
    duration, between = work * run.slowness[device], run.cluster.hours_between_faults
    if math.isfinite(between):
        fault = run.random.exponential(between * 3600.0)
        if fault < duration:
            run.faults += 1
            run.push(now + fault, _DIES, device)
            return
    run.push(now + duration, _READY, device)


def _left_of(run: _Run, wave: Wave, device: int, work: float, spent: float) -> float:
    """Work that is left of a block whose device died after so many seconds.

    Rows in flight were half written on average.
    """
    done = spent / run.slowness[device]
    in_flight = min(done, run.cluster.rows_in_flight * wave.row_seconds / 2.0)
    run.useful += (done - in_flight) * run.slowness[device]
    run.lost += in_flight * run.slowness[device]
    return work - (done - in_flight)


def _blocks(run: _Run, wave: Wave) -> np.ndarray:
    """Seconds of each block on a device of speed 1: (blocks,)."""
    size = run.cluster.block_rows
    rows = np.full(math.ceil(wave.rows / size), size, float)
    rows[-1:] = wave.rows - size * (len(rows) - 1)
    noise = run.random.standard_normal(len(rows)) * run.cluster.length_deviation * np.sqrt(rows)
    return np.maximum(rows + noise, 1e-3 * rows) * wave.row_seconds
