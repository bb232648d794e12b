"""One job at a time writes a remote run: a lease in `lock.json`, renewed while the job lives.

A lease is free if there is none, or if its holder has not renewed it for `_PATIENCE` periods. Who
wants it writes it and reads it back a second later; so does its holder who could not renew it in
time, and writes nothing else before. What race remains: pyarrow has no put that fails where an
object is, so a put that takes longer than that second may replace the lease that another job has
taken, and read back, meanwhile. Then both work until that job renews, `PERIOD` seconds at most; it
finds the other's lease and stops. A dataset that got files of both in that time is not what its
manifest tells, and is refused when it is fetched. The clocks of the machines must agree to within a
period or two.
"""

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from jobs.repeating import repeating
from pipeline.errors import DataError, UserError
from pipeline.mirror import Mirror
from pipeline.mirrored_files import MirroredFiles
from pipeline.store import Store

log = logging.getLogger("jobs.lease")

LEASE = "lock.json"
PERIOD = 20.0  # s between two renewals
_PATIENCE = 3  # periods
_SETTLE = 1.0  # s from writing a lease to reading it back
_READS = 4  # of a lease that seems damaged


@contextmanager
def leased(store: Store) -> Iterator[None]:
    """Hold the lease of a remote run; a local run needs none.

    Raises:
        DataError: another job holds it; and at any write once it is lost to another job.
    """
    files = store.files
    if not isinstance(files, MirroredFiles):
        yield
        return
    free, lease = files.mirror, _Lease(files.mirror)
    try:
        lease.take()
        files.mirror = replace(free, may_write=lease.require)
        with repeating(lease.renew, PERIOD):
            yield
    finally:
        files.mirror = free
        lease.give_back()


def holder(store: Store) -> str | None:
    """Who holds the lease of a remote run by now, for people; None if nobody does."""
    assert isinstance(store.files, MirroredFiles), "a local run has a lock, not a lease"
    held = _read(store.files.mirror)
    return _who(held) if held is not None and _is_alive(held) else None


@dataclass
class _Lease:
    mirror: Mirror
    lost_to: str = ""

    def __post_init__(self) -> None:
        self._token = uuid.uuid4().hex
        self._renewed = 0.0  # by `_now`; the lease holds from here on for `_PATIENCE` periods
        self._was_asked_for = False

    def take(self) -> None:
        """Raises DataError where another job has it."""
        began = _now()
        held = _read(self.mirror)
        if held is not None and held["token"] != self._token:
            if _is_alive(held):
                raise DataError(self._refusal(_who(held)))
            log.info("%s does not write %s any more", _who(held), self.mirror.address)
        self._write()
        time.sleep(_SETTLE)
        held = _read(self.mirror)
        if held is None or held["token"] != self._token:
            raise DataError(self._refusal(_who(held) if held else "someone else"))
        self._renewed = began

    def renew(self) -> None:
        """Write the lease anew, unless it is another's by now or was removed."""
        if self.lost_to:
            return
        try:
            began = _now()
            held = _read(self.mirror)
            if held is None or held["token"] != self._token:
                self.lost_to = _who(held) if held else f"whoever has removed {LEASE}"
                log.error("the lease of %s was lost to %s", self.mirror.address, self.lost_to)
            elif self._has_run_out():  # another job may be taking it
                self.take()
            else:
                self._write()
                self._renewed = began
        except (UserError, OSError) as error:  # for a while there may be no network, or no room
            log.warning("the lease is not renewed: %s", error)

    def require(self) -> None:
        """Raises DataError where the lease is lost, or could not be renewed for too long."""
        if not self.lost_to and not self._has_run_out():
            return
        whom = self.lost_to or "whoever wants it, since it could not be renewed"
        raise DataError(
            f"the lease of {self.mirror.address} was lost to {whom}; nothing more is written here; "
            "run again when no other job writes this run"
        )

    def give_back(self) -> None:
        """Let others have it at once."""
        if not self._was_asked_for:
            return
        try:
            held = _read(self.mirror)
            if held is not None and held["token"] == self._token:
                self.mirror.delete(LEASE)
        except (UserError, OSError) as error:
            log.warning("the lease stays until it runs out: %s", error)

    def _write(self) -> None:
        self._was_asked_for = True
        lease = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "token": self._token,
            "renewed_at": time.time(),
        }
        self.mirror.write(LEASE, json.dumps(lease).encode())

    def _has_run_out(self) -> bool:
        return _now() - self._renewed > _PATIENCE * PERIOD

    def _refusal(self, who: str) -> str:
        return (
            f"{self.mirror.address} is being written by another job ({who}); wait for it, or set "
            f"another `run` name. If it has died, its lease ends {_PATIENCE * PERIOD:.0f} s after "
            "it was last renewed"
        )


def _read(mirror: Mirror) -> dict[str, Any] | None:
    """The lease as it stands; one that is damaged counts as none.

    A read asks for the size first and then for as many bytes, so it may fall between two leases of
    different length: what cannot be read is read again before it is taken for damaged.
    """
    for _ in range(_READS):
        data = mirror.read(LEASE)
        if data is None:
            return None
        with suppress(ValueError, TypeError):
            lease = json.loads(data)
            if {"host", "pid", "token", "renewed_at"} <= set(lease):
                return lease
        time.sleep(_SETTLE / _READS)
    return None


def _now() -> float:
    """Seconds, which pass while the machine sleeps as well."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _is_alive(lease: dict[str, Any]) -> bool:
    return time.time() - lease["renewed_at"] < _PATIENCE * PERIOD


def _who(lease: dict[str, Any]) -> str:
    return f"process {lease['pid']} on {lease['host']}"
