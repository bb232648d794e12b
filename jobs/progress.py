"""A heartbeat for long work: what the workers have done so far, every few seconds.

Lines go to the job's logger, so they stand in a terminal and in the run's log alike.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_INTERVAL = 10.0  # seconds between lines


@dataclass(frozen=True)
class Progress:
    """Sums over all workers."""

    rows: int = 0
    tokens: int = 0
    forward_passes: int = 0


class ProgressBoard:
    """A Ray actor that adds up what the workers report."""

    def __init__(self) -> None:
        self._progress = Progress()

    def add(self, rows: int, tokens: int, forward_passes: int) -> None:
        """Count finished rows."""
        old = self._progress
        self._progress = Progress(
            old.rows + rows, old.tokens + tokens, old.forward_passes + forward_passes
        )

    def read(self) -> Progress:
        """Sums so far."""
        return self._progress


@contextmanager
def heartbeat(log: logging.Logger, what: str, total: int) -> Iterator[Any]:
    """Give the handle of a board for the workers, and log its sums until the block ends."""
    import ray

    actor: Any = ray.remote(ProgressBoard)
    board = actor.options(num_cpus=0).remote()
    done = threading.Event()
    began = time.monotonic()

    def beat() -> None:
        while not done.wait(_INTERVAL):
            log.info("%s: %s", what, describe(ray.get(board.read.remote()), total, began))

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield board
    finally:
        done.set()
        thread.join()
        ray.kill(board)


def describe(progress: Progress, total: int, began: float) -> str:
    """One line: rows, rate, tokens per forward pass, time left."""
    if not progress.rows:
        return f"0/{total} rows, models are loading or the first rows are in work"
    seconds = time.monotonic() - began
    parts = [
        f"{progress.rows}/{total} rows",
        f"{progress.tokens / seconds:.0f} tokens/s with start-up",
        f"{progress.tokens / max(progress.forward_passes, 1):.2f} tokens per forward pass",
    ]
    if progress.rows * 10 >= total:  # before that, start-up would spoil the guess
        parts.append(f"about {seconds / progress.rows * (total - progress.rows):.0f} s left")
    return ", ".join(parts)
