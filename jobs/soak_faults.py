"""What `jobs.soak` does to a running job: only to processes that it has started itself."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from jobs.processes import actors_of
from pipeline.parts import list_parts
from pipeline.store import Store

_LOOK = 0.02  # s between looks at processes


@dataclass(frozen=True)
class Fault:
    """Something that happens to a job, and how the job may end after it."""

    name: str
    strike: Callable[[subprocess.Popen, Store], bool]  # says whether there was anything to strike
    codes: tuple[int, ...]  # besides 0, where the job was done before


def kill_actor(job: subprocess.Popen, store: Store) -> bool:
    """SIGKILL one actor, once there is one."""
    while job.poll() is None:
        for actor in actors_of(job.pid):
            return _kill(actor)
        time.sleep(_LOOK)
    return False


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_driver(job: subprocess.Popen, store: Store) -> bool:
    """SIGKILL the job itself; its local Ray goes with it."""
    if job.poll() is not None:
        return False
    job.kill()
    job.wait()
    return True


def terminate(job: subprocess.Popen, store: Store) -> bool:
    """SIGTERM, as a scheduler sends it."""
    if job.poll() is not None:
        return False
    job.terminate()
    return True


def tear_part(job: subprocess.Popen, store: Store) -> bool:
    """Kill the job, and leave half a part behind: a write that did not end."""
    if not kill_driver(job, store):
        return False
    for folder in sorted(store.root.glob("waves/*/knowledge")):
        if not (folder / "manifest.json").is_file():
            whole = next((part.read_bytes() for part in list_parts(folder)), b"PAR1")
            torn = folder / f"part-{len(list_parts(folder)):05d}.tmp"
            torn.write_bytes(whole[: len(whole) // 2])
    return True


FAULTS = (
    Fault("kill an actor", kill_actor, ()),
    Fault("kill the driver", kill_driver, (-signal.SIGKILL,)),
    Fault("terminate", terminate, (128 + signal.SIGTERM, -signal.SIGTERM)),
    Fault("tear a part", tear_part, (-signal.SIGKILL,)),
)
