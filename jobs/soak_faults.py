"""What `jobs.soak` does to a running job, and how it finds the job's processes.

Processes are found in /proc, among the descendants of the job that the soak itself has started:
nothing else is ever signalled.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.cli import ROOT
from pipeline.parts import list_parts
from pipeline.store import Store

_LOOK = 0.02  # s between looks at processes
_ACTOR = "ray::GenerationActor"  # what Ray calls the process of one


@dataclass(frozen=True)
class Fault:
    """Something that happens to a job, and how the job may end after it."""

    name: str
    strike: Callable[[subprocess.Popen, Store], bool]  # says whether there was anything to strike
    codes: tuple[int, ...]  # besides 0, where the job was done before


def start_job(module: str, arguments: Sequence[str], output: Path) -> subprocess.Popen:
    """Start a job as a process of its own; what it says is added to `output`."""
    command = [sys.executable, "-m", module, *arguments]
    with output.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        text = _read(stat)
        if text:  # "pid (name) state parent ..."; a name may hold blanks and brackets
            parent = int(text.rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    found, open_ = [], [pid]
    while open_:
        children = parents.get(open_.pop(), [])
        found += children
        open_ += children
    return found


def actors_of(pid: int) -> list[int]:
    """Those descendants of a job that hold a language model."""
    return [
        one for one in descendants(pid) if _read(Path(f"/proc/{one}/cmdline")).startswith(_ACTOR)
    ]


def _read(path: Path) -> str:
    """Text of a file in /proc, empty if its process has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


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
