"""A folder of an object store, with the few things we do to it.

No file is ever half there: an object store puts an object whole or not at all. On a file system,
which tests use for its speed, a file is written beside its place and moved there.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs

from pipeline.errors import DataError
from pipeline.remote import explained, is_object_store, open_location


def _anyone() -> None:
    """Whoever asks may write."""


@dataclass(frozen=True)
class Mirror:
    """The folder at `uri`/`folder`; names are relative to it, with slashes.

    Picklable: a worker on another machine opens it for itself, and gets leave to write anew.
    """

    uri: str
    folder: str = ""
    may_write: Callable[[], None] = _anyone  # raises where another job writes here by now

    def __reduce__(self) -> tuple[type["Mirror"], tuple[str, str]]:
        return Mirror, (self.uri, self.folder)

    @property
    def address(self) -> str:
        """The folder for people, without the options of the URI."""
        bare = self.uri.partition("?")[0].rstrip("/")
        return f"{bare}/{self.folder}" if self.folder else bare

    def files(self, name: str = "") -> dict[str, fs.FileInfo]:
        """All files below `name`, by their names below it, in order; none if it is not there.

        Raises:
            DataError: the store cannot be asked, or a name would lead out of the folder.
        """
        filesystem, path = self._open(name)
        with explained(self.address):
            try:
                found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
            except FileNotFoundError:
                return {}
        prefix = f"{path}/"
        files = {
            info.path.removeprefix(prefix): info
            for info in found
            if info.type == fs.FileType.File and not info.path.endswith(".tmp")
        }
        for below in files:
            if ".." in PurePosixPath(below).parts:
                raise DataError(f"{self.address}/{name}/{below} leads out of its folder; remove it")
        return dict(sorted(files.items()))

    def folders(self) -> list[str]:
        """Names of the folders right below this one, in order."""
        filesystem, path = self._open("")
        with explained(self.address):
            try:
                found = filesystem.get_file_info(fs.FileSelector(path))
            except FileNotFoundError:
                return []
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def info(self, name: str) -> fs.FileInfo | None:
        """Size and time of a file; None if it is not there."""
        filesystem, path = self._open(name)
        with explained(self.address):
            info: Any = filesystem.get_file_info(path)
        return info if info.type == fs.FileType.File else None

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if it is not there."""
        filesystem, path = self._open(name)
        with explained(f"{self.address}/{name}"):
            try:
                with filesystem.open_input_file(path) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Put a small file in its place."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "data"
            file.write_bytes(data)
            self._put(file, name)

    def upload(self, file: Path, name: str) -> None:
        """Put a local file in its place here; it gets the time of its copy (see `is_copy`)."""
        self._put(file, name)
        if info := self.info(name):
            os.utime(file, ns=(info.mtime_ns, info.mtime_ns))

    def download(self, info: fs.FileInfo, target: Path) -> None:
        """Copy a file of `files` to `target`, which is complete or absent at all times.

        Raises:
            DataError: it is gone, or has another size by now.
        """
        filesystem, _ = self._open("")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        place = f"{self.address}: {info.path}"
        try:
            with _reading(place):
                _copy(filesystem, info.path, fs.LocalFileSystem(), str(temporary))
            if temporary.stat().st_size != info.size:
                raise DataError(f"{place} has another size than it had just now; run again")
            os.utime(temporary, ns=(info.mtime_ns, info.mtime_ns))
            temporary.rename(target)
        finally:  # a disk that is full must not stay so
            temporary.unlink(missing_ok=True)

    def count_rows(self, info: fs.FileInfo) -> int:
        """Rows of a Parquet file of `files`, from its footer.

        Raises:
            DataError: it is gone by now, or damaged.
        """
        filesystem, _ = self._open("")
        with _reading(f"{self.address}: {info.path}"):
            return pq.read_metadata(info.path, filesystem=filesystem).num_rows

    def copy(self, name: str, to: str) -> None:
        """Copy a file within the store."""
        self.may_write()
        filesystem, source = self._open(name)
        target = self._open(to)[1]
        with explained(f"{self.address}/{name}"):
            _make_parent(filesystem, target)
            filesystem.copy_file(source, target)

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        self.may_write()
        filesystem, path = self._open(name)
        with explained(f"{self.address}/{name}"):
            try:
                filesystem.delete_file(path)
            except FileNotFoundError:
                return

    def _put(self, file: Path, name: str) -> None:
        # One call of pyarrow's: `with open_output_stream` closes, and so completes, an object whose
        # writing an exception or a signal has cut short.
        self.may_write()
        filesystem, path = self._open(name)
        with explained(f"{self.address}/{name}"):
            _make_parent(filesystem, path)
            if is_object_store(filesystem):
                _copy(fs.LocalFileSystem(), str(file), filesystem, path)
                return
            _copy(fs.LocalFileSystem(), str(file), filesystem, f"{path}.tmp")
            filesystem.move(f"{path}.tmp", path)

    def _open(self, name: str) -> tuple[fs.FileSystem, str]:
        filesystem, base = open_location(self.uri)
        return filesystem, "/".join(part for part in (base, self.folder, name) if part)


def is_copy(file: Path, info: fs.FileInfo) -> bool:
    """Whether a local file is what `info` tells of: uploads and downloads leave both alike."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    return (found.st_size, found.st_mtime_ns) == (info.size, info.mtime_ns)


@contextmanager
def _reading(place: str) -> Iterator[None]:
    """As `explained`, for a file that was there just now."""
    try:
        with explained(place):
            yield
    except FileNotFoundError as error:
        raise DataError(f"{place} has gone while it was read; run again") from error


def _copy(source: fs.FileSystem, path: str, target: fs.FileSystem, to: str) -> None:
    fs.copy_files(path, to, source_filesystem=source, destination_filesystem=target)


def _make_parent(filesystem: fs.FileSystem, path: str) -> None:
    if not is_object_store(filesystem):
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
