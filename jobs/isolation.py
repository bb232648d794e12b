"""Steps that raise: the row at fault is found and becomes an error row, all others are written."""

import logging
from collections import deque
from collections.abc import Callable, Sequence

from jobs.fatal_errors import is_fatal
from pipeline.engine.engine import Engine
from pipeline.engine.types import Generation, Request

log = logging.getLogger("jobs.isolation")

_MOST_VERDICTS = 8  # with no good row between them: then it is the engine that is bad


class EngineBroken(Exception):
    """Every row fails, so no row is at fault."""


class Isolation:
    """Finishes requests in an engine, of which any step may raise.

    The rows that had a slot in such a step are tried again apart from all others, first one half
    and then the other. A row that fails by itself, and has failed before, is an error row.
    """

    def __init__(self, engine: Engine, renew: Callable[[], None]) -> None:
        """`renew` makes an engine without rows as good as new."""
        self._engine = engine
        self._renew = renew
        self._waiting: deque[Request] = deque()
        self._in_flight: dict[str, Request] = {}
        self._suspects: list[list[Request]] = []  # to be tried apart, the last ones first
        self._is_apart = False  # whether those in flight are
        self._have_failed: set[str] = set()
        self._verdicts: list[Generation] = []  # error rows, until a good row speaks for the engine

    @property
    def has_work(self) -> bool:
        """Whether any row is unfinished or unreported."""
        return bool(self._verdicts) or self._has_rows

    @property
    def _has_rows(self) -> bool:
        return bool(self._waiting or self._in_flight or self._suspects)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests with keys of their own; also from another thread, during a step."""
        self._waiting.extend(requests)

    def step(self) -> list[Generation]:
        """One step of the engine; the rows that ended.

        Raises:
            EngineBroken: rows fail one after another, and no other row ends between them.
            Exception: what the engine raised, where the process cannot go on.
        """
        self._admit()
        ended: list[Generation] = []
        if self._in_flight:
            try:
                ended = self._engine.step()
            except Exception as error:
                if is_fatal(error):
                    raise
                self._separate(error)
        for generation in ended:
            del self._in_flight[generation.key]
            self._have_failed.discard(generation.key)
        if ended or not self._has_rows:
            ended, self._verdicts = ended + self._verdicts, []
        return ended

    def _admit(self) -> None:
        """Give the engine the next suspects, alone, or whatever waits."""
        if self._is_apart and self._in_flight:
            return
        self._is_apart = bool(self._suspects)
        coming = self._suspects.pop() if self._is_apart else self._taken()
        self._engine.submit(coming)
        self._in_flight |= {request.key: request for request in coming}

    def _taken(self) -> list[Request]:
        """All that waits; what comes meanwhile may stay."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def _separate(self, error: Exception) -> None:
        """Take apart the rows of a step that raised."""
        suspects = [self._in_flight.pop(key) for key in self._engine.drop()]
        if not suspects:
            raise error
        log.warning("a step with %d rows failed: %r", len(suspects), error)
        self._waiting.extendleft(reversed(self._in_flight.values()))
        self._in_flight = {}
        middle = len(suspects) // 2
        if middle:
            self._suspects += [suspects[middle:], suspects[:middle]]
        elif suspects[0].key in self._have_failed:
            self._condemn(suspects[0].key, error)
        else:
            self._suspects.append(suspects)
        self._have_failed |= {request.key for request in suspects}
        self._renew()

    def _condemn(self, key: str, error: Exception) -> None:
        cause = f"{type(error).__name__}: {error}"
        self._verdicts.append(Generation.failed(key, f"the engine failed on this row: {cause}"))
        if len(self._verdicts) == _MOST_VERDICTS:
            raise EngineBroken(
                f"{_MOST_VERDICTS} rows failed one after another, each by itself, the last with "
                f"{cause}"
            ) from error
