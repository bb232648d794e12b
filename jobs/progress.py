"""A heartbeat for long work: what the workers have done so far, every few seconds.

Lines go to the job's logger, so they stand in a terminal and in the run's log alike.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.engine.statistics import EngineStatistics

_INTERVAL = 10.0  # seconds between lines
_SLOW = 10.0  # tokens/s; a rate below has a decimal
_LOOK = 1.0  # seconds between looks at what the workers are at


@dataclass(frozen=True)
class Progress:
    """Sums over all workers of this job; rows that were stored before it do not count."""

    rows: int = 0
    tokens: int = 0
    forward_passes: int = 0
    errors: int = 0  # rows
    engines: EngineStatistics = field(default_factory=EngineStatistics)  # of their steps
    phases: tuple[str, ...] = ()  # what any worker has begun on its way to the first row, in order


class ProgressBoard:
    """A Ray actor that adds up what is reported to it."""

    def __init__(self) -> None:
        self._progress = Progress()

    def add(self, rows: int, tokens: int, forward_passes: int, errors: int = 0) -> None:
        """Count finished rows, each once: a worker that dies has its rows done again."""
        old = self._progress
        self._progress = replace(
            old,
            rows=old.rows + rows,
            tokens=old.tokens + tokens,
            forward_passes=old.forward_passes + forward_passes,
            errors=old.errors + errors,
        )

    def step(self, more: EngineStatistics) -> None:
        """Count steps of an engine that were not counted before."""
        old = self._progress
        self._progress = replace(old, engines=old.engines.plus(more))

    def enter(self, phase: str) -> None:
        """Note what a worker does now; several workers do the same."""
        if phase not in self._progress.phases:
            self._progress = replace(self._progress, phases=(*self._progress.phases, phase))

    def read(self) -> Progress:
        """Sums so far."""
        return self._progress


@contextmanager
def heartbeat(log: logging.Logger, what: str, total: int) -> Iterator[str]:
    """Give the name of a board for the workers, and log what it says until the block ends.

    A name, not a handle: a worker that takes another's place finds the board again. It lives on
    the driver's machine, so that it is lost with no other.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor: Any = ray.remote(ProgressBoard)
    name = f"board-{uuid.uuid4().hex}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    board = actor.options(num_cpus=0, name=name, scheduling_strategy=here).remote()
    done = threading.Event()
    lines = Lines(total)

    def beat() -> None:
        while not done.wait(_LOOK):
            for line in lines.due(ray.get(board.read.remote()), time.monotonic()):
                log.info("%s: %s", what, line)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield name
    finally:
        done.set()
        thread.join()
        ray.kill(board)


def board_of(name: str) -> Any:
    """The handle of a board, in a worker."""
    import ray

    return ray.get_actor(name)


def read_board(name: str) -> Progress:
    """What a board says, while its heartbeat lasts."""
    import ray

    return ray.get(board_of(name).read.remote())


class Lines:
    """What is worth a line: each new phase at once, and the sums every few seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began = self._last = time.monotonic()
        self._phases = 0

    def due(self, progress: Progress, now: float) -> list[str]:
        """The lines to log at the time `now`."""
        lines = [*progress.phases[self._phases :]]
        self._phases = len(progress.phases)
        if now - self._last >= _INTERVAL:
            self._last = now
            lines.append(describe(progress, self._total, self._began))
        return lines


def describe(progress: Progress, total: int, began: float) -> str:
    """One line: rows, rate, tokens per forward pass, time left."""
    if not progress.rows:
        phase = progress.phases[-1] if progress.phases else "workers are starting"
        return f"0/{total} rows, {phase}"
    seconds = time.monotonic() - began
    parts = [f"{progress.rows}/{total} rows"]
    if progress.tokens:  # there are none while all rows have failed
        rate = progress.tokens / seconds
        parts += [
            f"{rate:.{0 if rate >= _SLOW else 1}f} tokens/s with start-up",
            f"{progress.tokens / max(progress.forward_passes, 1):.2f} tokens per forward pass",
        ]
    if progress.errors:
        parts.append(f"{progress.errors} errors")
    if progress.rows * 10 >= total:  # before that, start-up would spoil the guess
        parts.append(f"about {seconds / progress.rows * (total - progress.rows):.0f} s left")
    return ", ".join(parts)
