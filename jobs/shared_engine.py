"""One engine for several callers: no caller waits for the rows of another."""

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from jobs.actor_pool import WorkerBroken
from jobs.isolation import Isolation
from pipeline.engine.types import Generation, Request

log = logging.getLogger("jobs.shared_engine")

_GRACE = 5.0  # s in which the last answers leave a process
_PULSE = 1.0  # s; rows may be at work for minutes before any of them ends


def end_process_soon() -> None:
    """End this process whatever it still does, after a moment in which its last answers leave."""
    try:
        threading.Timer(_GRACE, os._exit, (1,)).start()
    except (MemoryError, RuntimeError):  # not even a thread can be had
        os._exit(1)


class SharedEngine:
    """Rows of all callers decode together, so the engine never drains while anyone has rows.

    One thread steps; callers wait for their own rows. An engine that cannot go on ends all calls,
    and its process: memory that ran out, or a CUDA context that is lost, does not come back.
    """

    def __init__(
        self,
        rows: Isolation,
        thread: ThreadPoolExecutor,
        end: Callable[[], None] = end_process_soon,
        pulse: Callable[[], object] = lambda: None,
    ) -> None:
        """`thread`, an executor of one, is the engine's; `end` is called when it is given up.

        `pulse` is called between steps, about once a second while there is work.
        """
        self._rows = rows
        self._thread = thread
        self._end = end
        self._pulse = pulse
        self._keys = map(str, itertools.count())  # callers' own may be equal
        self._futures: dict[str, asyncio.Future[Generation]] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._broken: WorkerBroken | None = None

    async def finish(self, requests: Sequence[Request]) -> list[Generation]:
        """The generations of `requests`, in order.

        Raises:
            WorkerBroken: the engine cannot go on.
        """
        if self._broken is not None:
            raise self._broken
        loop = asyncio.get_running_loop()
        own = [replace(request, key=next(self._keys)) for request in requests]
        futures = {request.key: loop.create_future() for request in own}
        self._futures |= futures
        self._rows.submit(own)
        if self._stepping is None or self._stepping.done():
            self._stepping = loop.create_task(self._step_on())
        generations = await asyncio.gather(*futures.values())
        return [
            replace(generation, key=request.key)
            for request, generation in zip(requests, generations, strict=True)
        ]

    async def _step_on(self) -> None:
        """Step while anyone has rows."""
        loop = asyncio.get_running_loop()
        told = time.monotonic()
        try:
            while self._rows.has_work:
                for generation in await loop.run_in_executor(self._thread, self._next_ended):
                    self._futures.pop(generation.key).set_result(generation)
                if time.monotonic() - told >= _PULSE:
                    self._pulse()
                    told = time.monotonic()
        except Exception as error:
            self._give_up(error)

    def _next_ended(self) -> list[Generation]:
        """Rows that ended; none if none has for a while."""
        began = time.monotonic()
        while not (ended := self._rows.step()) and time.monotonic() - began < _PULSE:
            pass
        return ended

    def _give_up(self, error: Exception) -> None:
        self._end()  # first: without memory, what follows may fail
        log.error("the engine is given up", exc_info=error)
        self._broken = WorkerBroken(f"{type(error).__name__}: {error}")
        for future in self._futures.values():
            future.set_exception(self._broken)
        self._futures.clear()
