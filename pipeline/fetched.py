"""Local copies of remote inputs: tables, models, encoders.

A version (names, sizes and times of all objects) is fetched once per machine, into a folder that is
complete or absent, and stays: `.cache/fetched/` may be removed while no job runs.
"""

import hashlib
import logging
from functools import partial
from pathlib import Path

from pyarrow import fs

from pipeline.errors import DataError
from pipeline.locations import is_remote
from pipeline.made_once import made_once
from pipeline.mirror import Mirror

log = logging.getLogger(__name__)

_CACHE = Path(".cache/fetched")


def local_copy(location: Path | str) -> Path:
    """A local file or folder with what is at `location`, which it is itself if it is local.

    Raises:
        DataError: nothing is there, or the store cannot be asked.
    """
    if not is_remote(location):
        return Path(location)
    source, name, files = _look(location)
    told = [(below, info.size, info.mtime_ns) for below, info in files.items()]
    version = hashlib.sha256(repr((location, told)).encode()).hexdigest()[:16]
    return made_once(_CACHE / version, partial(_fetch, source, files)) / name


def name_of(file: Path) -> str:
    """What an input file is called wherever it was fetched to."""
    if file.is_relative_to(_CACHE):
        return Path(*file.relative_to(_CACHE).parts[1:]).as_posix()
    return file.as_posix()


def _look(uri: str) -> tuple[Mirror, str, dict[str, fs.FileInfo]]:
    """Where to ask, the name of the file or folder, and its files by their place in the copy.

    No Python file is among them: nothing that is fetched may be run.
    """
    source = Mirror(uri)
    name = source.address.rpartition("/")[2]
    if info := source.info(""):
        return source, name, {name: info}
    files = {f"{name}/{below}": info for below, info in source.files().items()}
    wanted = {below: info for below, info in files.items() if not below.endswith(".py")}
    if not wanted:
        raise DataError(f"{source.address} does not exist; correct the URI")
    return source, name, wanted


def _fetch(source: Mirror, files: dict[str, fs.FileInfo], folder: Path) -> None:
    size = sum(info.size for info in files.values())
    log.info("fetching %s once, %d files, %.1f MB", source.address, len(files), size / 1e6)
    for below, info in files.items():
        source.download(info, folder / below)
