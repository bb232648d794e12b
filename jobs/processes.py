"""Jobs as processes of their own, and the processes that they start, as Linux shows them."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.cli import ROOT

_ACTOR = "ray::GenerationActor"  # what Ray calls the process of one


def start_job(module: str, arguments: Sequence[str], output: Path) -> subprocess.Popen:
    """Start a job as a process of its own; what it says is added to `output`."""
    command = [sys.executable, "-m", module, *arguments]
    with output.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        text = read_proc(stat)
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
    names = {one: read_proc(Path(f"/proc/{one}/cmdline")) for one in descendants(pid)}
    return [one for one, name in names.items() if name.startswith(_ACTOR)]


def read_proc(path: Path) -> str:
    """Text of a file in /proc, empty if its process has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
