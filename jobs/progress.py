"""A heartbeat for long work: what the workers have done so far, every few seconds.

Lines go to the job's logger, so they stand in a terminal and in the run's log alike. Rows come in
lumps, and long ones not at all for a minute, so tokens are counted while they are written.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from features.formats import count, counted, duration
from pipeline.engine.statistics import EngineStatistics

_INTERVAL = 10.0  # seconds between lines
_SLOW = 10.0  # tokens/s; a rate below has a decimal
_LOOK = 1.0  # seconds between looks at what the workers are at
_KNOWN = 10  # finished rows that tell how long the others will be; before, all count as longest


@dataclass(frozen=True)
class Progress:
    """Sums over all workers of this job; rows that were stored before it do not count."""

    rows: int = 0
    tokens: int = 0  # of those rows
    forward_passes: int = 0
    errors: int = 0  # rows
    engines: EngineStatistics = field(default_factory=EngineStatistics)  # of their steps
    phases: tuple[str, ...] = ()  # what any worker has begun on its way to the first row, in order

    @property
    def written(self) -> int:
        """Tokens, those of rows that are not finished included."""
        return max(self.tokens, self.engines.tokens)


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
def heartbeat(log: logging.Logger, what: str, total: int, longest: int) -> Iterator[str]:
    """Give the name of a board for the workers, and log what it says until the block ends.

    `total` rows are to come, of `longest` tokens at most.
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
    lines = Lines(total, longest)

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

    def __init__(self, total: int, longest: int) -> None:
        """`total` rows are to come, of `longest` tokens at most."""
        self._total, self._longest = total, longest
        self._began = self._last = self._entered = time.monotonic()
        self._writing: float | None = None  # since; loading a model says nothing of the pace
        self._phases = 0

    def due(self, progress: Progress, now: float) -> list[str]:
        """The lines to log at the time `now`."""
        lines = [*progress.phases[self._phases :]]
        if lines:
            self._phases, self._entered = len(progress.phases), now
        if self._writing is None and progress.written:
            self._writing = max(now - _LOOK, self._began)  # there was nothing at the last look
        if now - self._last >= _INTERVAL:
            self._last = now
            if not lines or self._writing is not None:
                lines.append(self._sums(progress, now))
        return lines

    def _sums(self, progress: Progress, now: float) -> str:
        if self._writing is not None or progress.rows:
            writing = now - (self._writing or self._began)
            return describe(progress, self._total, self._longest, writing)
        phase = progress.phases[-1] if progress.phases else "workers are starting"
        return f"{phase}, for {duration(now - self._entered)} so far"


def describe(progress: Progress, total: int, longest: int, seconds: float) -> str:
    """One line: rows, tokens, rate, tokens per forward pass, time left.

    `seconds` are those since the first token; `longest` is what a row may have of tokens.
    """
    rows = f"{progress.rows:,} of {total:,} rows"
    failed = [f"{counted(progress.errors, 'rows')} failed"] if progress.errors else []
    if not progress.written:  # there are none while all rows have failed
        return ", ".join([rows, *failed])
    rate = progress.written / seconds
    parts = [rows, f"{counted(progress.written, 'tokens')} at {_rate(rate)} tokens/s"]
    if progress.tokens:
        per_pass = progress.tokens / max(progress.forward_passes, 1)
        parts.append(f"{per_pass:.2f} tokens per forward pass")
    is_known = progress.rows >= _KNOWN
    of_a_row = progress.tokens / progress.rows if is_known else longest
    begun = progress.written - progress.tokens  # tokens of rows that are not finished
    left = max(of_a_row * (total - progress.rows) - begun, 0.0) / rate
    if left < 1 or (not is_known and seconds < _INTERVAL):  # no pace yet, or nothing to tell
        return ", ".join([*parts, *failed])
    given = "" if is_known else " if all rows are as long as allowed"
    return ", ".join([*parts, *failed, f"about {duration(left)} left{given}"])


def _rate(rate: float) -> str:
    return f"{rate:,.{0 if rate >= _SLOW else 1}f}"


class Countdown:
    """Work of many small pieces: how many are done and how long the others take, now and then."""

    def __init__(
        self, log: logging.Logger, what: str, unit: str, total: int, done: int = 0
    ) -> None:
        """Of `total` pieces, named by `unit` in the plural, so many are done already."""
        self._log, self._what, self._unit, self._total = log, what, unit, total
        self._last = time.monotonic()  # when a line was logged
        self._done = done
        self._first: tuple[float, int] | None = None  # when the first came, and how many were done
        self._pace = 0.0  # seconds for a piece, once there were two

    def count(self, pieces: int = 1) -> None:
        """Some more are done; tell, if the last line is some seconds old."""
        now = self.add(pieces)
        if now - self._last >= _INTERVAL and self._done < self._total:
            self.tell()

    def add(self, pieces: int = 1) -> float:
        """Some more are done, which is told later; the time by the clock of `time.monotonic`."""
        self._done += pieces
        now = time.monotonic()
        if self._first is None:  # what came before it was start-up
            self._first = now, self._done
        began, before = self._first
        if self._done > before:
            self._pace = (now - began) / (self._done - before)
        return now

    def tell(self, doing: str = "") -> None:
        """Log a line now, with what is being done."""
        self._last = time.monotonic()
        owed = self._total - self._done
        left = f", about {duration(self._pace * owed)} left" if self._pace else ""
        done, total = count(self._done), count(self._total)
        now = f", now {doing}" if doing else ""
        self._log.info("%s: %s of %s %s%s%s", self._what, done, total, self._unit, now, left)
