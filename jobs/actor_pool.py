"""Blocks of rows through a pool of actors: how every model-holding worker is started and replaced.

Plain Ray actors, and no restarts by Ray: a block whose worker has died may then go to any other
that is alive, though no machine be left for a new one, and whoever kills its worker is found out.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from jobs.cluster import Workers
from pipeline.errors import WorkerError

log = logging.getLogger("jobs.actor_pool")

_MOST_DEATHS = 4  # of workers in one place without an answer between, and of those with one block
_SUSPECT = 2  # deaths that make the rows of a block suspects

Refuse = Callable[[pa.Table, str], pa.Table]  # of a row and the cause of its worker's end


class WorkerBroken(Exception):
    """Raised by a worker that cannot go on: its process is ended, and another takes its place."""


class ActorPool:
    """Actors of one class, kept from one pass over blocks to the next.

    Every actor is built with `arguments`, and called with `held` blocks at a time (its `__call__`
    must then be async). An actor among the arguments would be lost with its node: give its name.
    """

    def __init__(
        self, kind: type, arguments: Sequence[Any], workers: Workers, held: int = 1
    ) -> None:
        import ray

        resources = {"num_cpus": workers.threads_each, "num_gpus": workers.gpus_each}
        remote: Any = ray.remote(kind).options(**resources, max_concurrency=held)
        self._build = lambda: remote.remote(*arguments)
        self._most, self._held = workers.actors, held
        self._idle: list[Any] = []

    def __enter__(self) -> "ActorPool":
        return self

    def __exit__(self, *_: object) -> None:
        """End the idle actors. Where a job is stopped others have work, and Ray would mourn it."""
        import ray

        for actor in self._idle:
            ray.kill(actor)

    def through(
        self,
        blocks: Iterable[pa.Table],
        num_blocks: int,
        ordered: bool,
        task: Sequence[Any] | None = None,
        refuse: Refuse | None = None,
    ) -> Iterator[pa.Table]:
        """What actors answer to each block: in the order of `blocks`, or as they finish.

        With `task`, an actor's `begin` gets it before the first block.
        A block whose worker ends is tried again. With `refuse`, whose answers come in no order, its
        rows are at last tried one by one, alone; a row that still ends its worker gets `refuse`'s.

        Raises:
            WorkerError: workers end again and again. All that others have in work is answered
                first.
            RayTaskError: a worker raised; likewise.
        """
        actors = self.size(num_blocks)
        held = min(self._held, math.ceil(num_blocks / max(actors, 1)))
        most_early = actors * held if ordered else None
        run = _Pass(lambda: self._begun(task), blocks, held, most_early, refuse)
        yield from run.answers(actors)
        self._idle += run.survivors
        if run.failure is not None:
            raise run.failure

    def size(self, num_blocks: int) -> int:
        """How many actors work on so many blocks."""
        return min(self._most, num_blocks)

    def _begun(self, task: Sequence[Any] | None) -> tuple[Any, Any]:
        """An actor, and the reference that is there when it is ready."""
        actor = self._idle.pop() if self._idle else self._build()
        ready = actor.__ray_ready__.remote() if task is None else actor.begin.remote(*task)
        return actor, ready


@dataclass(eq=False)
class _Block:
    number: int
    rows: pa.Table
    deaths: int = 0  # of workers that held it

    @property
    def is_suspect(self) -> bool:
        return self.deaths >= _SUSPECT


class _Worker:
    """One actor."""

    def __init__(self, actor: Any, deaths: int) -> None:
        self.actor = actor
        self.deaths = deaths  # of workers in this place, since the last answer
        self.is_ready = False
        self.blocks: list[_Block] = []


class _Pass:
    """Hands out blocks once, and replaces workers that die."""

    def __init__(
        self,
        start: Callable[[], tuple[Any, Any]],
        blocks: Iterable[pa.Table],
        held: int,
        most_early: int | None,
        refuse: Refuse | None,
    ) -> None:
        """Answers come in order if some may be early, else as they are."""
        self._start = start
        self._source = (_Block(number, rows) for number, rows in enumerate(blocks))
        self._is_exhausted = False  # the source
        self._held = held
        self._most_early = most_early
        self._early: dict[int, pa.Table] = {}
        self._due = 0
        self._refuse = refuse
        self._workers: list[_Worker] = []  # alive, as far as is known
        self._work: dict[Any, tuple[_Worker, _Block | None]] = {}  # by Ray's reference
        self._again: deque[_Block] = deque()
        self._suspects: deque[_Block] = deque()  # handed out last, and each alone
        self._verdicts: list[pa.Table] = []  # refused, until an answer shows that workers do work
        self.failure: Exception | None = None

    def answers(self, workers: int) -> Iterator[pa.Table]:
        """All answers of so many workers, or all up to a failure."""
        for _ in range(workers):
            self._hire(0)
        self._hand_out()
        while self._is_busy:
            yield from self._settled()
            self._hand_out()
        if self.failure is None:
            yield from self._verdicts

    @property
    def survivors(self) -> list[Any]:
        """Actors that are alive, as far as is known."""
        return [worker.actor for worker in self._workers]

    @property
    def _is_busy(self) -> bool:
        """Whether an answer is still to come."""
        in_work = any(block is not None for _, block in self._work.values())
        return in_work or bool(self._again or self._suspects) or not self._is_exhausted

    def _hire(self, deaths: int) -> None:
        actor, ready = self._start()
        worker = _Worker(actor, deaths)
        self._workers.append(worker)
        self._work[ready] = worker, None

    def _hand_out(self) -> None:
        """Fill the workers that are there, the emptiest first."""
        while worker := min(filter(self._has_room, self._workers), key=_load, default=None):
            block = self._next_block(is_alone=not worker.blocks)
            if block is None:
                return
            worker.blocks.append(block)
            self._work[worker.actor.__call__.remote(block.rows)] = worker, block

    def _has_room(self, worker: _Worker) -> bool:
        has_suspect = any(block.is_suspect for block in worker.blocks)
        return worker.is_ready and not has_suspect and len(worker.blocks) < self._held

    def _next_block(self, is_alone: bool) -> _Block | None:
        if self._again:
            return self._again.popleft()
        if self._most_early is not None and len(self._early) >= self._most_early:
            return None
        block = next(self._source, None)
        self._is_exhausted = block is None
        if block is None and is_alone and self._suspects:
            return self._suspects.popleft()
        return block

    def _settled(self) -> list[pa.Table]:
        """Wait for one call to end; the answers that this brings."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        (reference, *_), _ = ray.wait(list(self._work))
        worker, block = self._work.pop(reference)
        if block is not None:
            worker.blocks.remove(block)
        try:
            answer = ray.get(reference)
        except WorkerBroken as error:
            self._lost(worker, block, str(getattr(error, "cause", error)))
        except RayTaskError as error:
            self._fail(error)
        except RayError as error:  # all that Ray says of an actor, a node or an object that is gone
            self._lost(worker, block, str(error))
        else:
            if block is not None:
                return self._accepted(worker, block, answer)
            worker.is_ready = True
        return []

    def _accepted(self, worker: _Worker, block: _Block, answer: pa.Table) -> list[pa.Table]:
        worker.deaths = 0
        if self._most_early is None:
            verdicts, self._verdicts = self._verdicts, []
            return [answer, *verdicts]
        self._early[block.number] = answer
        ready = []
        while self._due in self._early:
            ready.append(self._early.pop(self._due))
            self._due += 1
        return ready

    def _lost(self, worker: _Worker, block: _Block | None, cause: str) -> None:
        """A call did not end because its worker did."""
        import ray

        if worker in self._workers:  # the first of its calls to say so
            self._workers.remove(worker)
            ray.kill(worker.actor)  # one that is merely out of reach must not come back
            self._replace(worker.deaths + 1, cause)
        if block is not None and self.failure is None:
            block.deaths += 1
            self._send_back(block, cause)

    def _replace(self, deaths: int, cause: str) -> None:
        log.warning("a worker has ended (%d of %d in a row): %s", deaths, _MOST_DEATHS, cause)
        if deaths == _MOST_DEATHS:
            self._fail(_worker_error(f"{deaths} workers in a row ended without an answer", cause))
        elif self.failure is None:
            self._hire(deaths)

    def _send_back(self, block: _Block, cause: str) -> None:
        if self._refuse is None and block.deaths == _MOST_DEATHS:
            self._fail(_worker_error(f"{block.deaths} workers ended with the same block", cause))
        elif self._refuse is None or not block.is_suspect:
            self._again.append(block)
        elif block.deaths == _SUSPECT:
            rows = (block.rows.slice(row, 1) for row in range(block.rows.num_rows))
            self._suspects += [_Block(block.number, row, block.deaths) for row in rows]
        else:
            self._verdicts.append(self._refuse(block.rows, cause))

    def _fail(self, error: Exception) -> None:
        """Hand out no more; what is in work may end."""
        self.failure = self.failure or error
        self._source, self._is_exhausted = iter(()), True
        self._again.clear()
        self._suspects.clear()


def _load(worker: _Worker) -> int:
    return len(worker.blocks)


def _worker_error(what: str, cause: str) -> WorkerError:
    return WorkerError(
        f"{what}. What is finished is stored; remove the cause, and the same command goes on from "
        f"there. The last cause: {cause}"
    )
