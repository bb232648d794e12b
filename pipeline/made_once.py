"""One process of a machine at a time fills a folder; the others wait."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let no two processes of this machine do this in one folder at once; `<root>.lock` stays."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_name(f"{root.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """`folder`, which is complete or absent; where it is absent, `fill` fills another one first.

    Any number of processes may ask at once: one makes it, the others wait for it. What a process
    leaves that is killed meanwhile is removed by the next one that makes the folder.
    """
    if folder.is_dir():
        return folder
    with alone(folder.parent):
        if not folder.is_dir():
            temporary = folder.with_name(f".{folder.name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                temporary.mkdir(parents=True)
                fill(temporary)
                temporary.rename(folder)
            except BaseException:  # a disk that is full must not stay so
                shutil.rmtree(temporary, ignore_errors=True)
                raise
    return folder
