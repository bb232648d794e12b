"""Which published data set lies in a folder, told by the names of its files; and damage to them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.errors import DataError


@dataclass(frozen=True)
class DataSet:
    """Files that belong together; each may be there packed (`.gz`) or unpacked."""

    name: str
    origin: str  # how to get it
    files: Mapping[str, str]  # table -> name; that of the interactions tells the data set


def identify(folder: Path, known: Sequence[DataSet]) -> tuple[DataSet, dict[str, Path]]:
    """The data set in `folder`, and the file of every table.

    Raises:
        DataError: none or several of the known ones are there, or a file of it is missing.
    """
    there = [(one, file) for one in known for file in _present(folder, one.files["interactions"])]
    if not there:
        expected = "\n".join(
            f"  {one.name}: {', '.join(one.files.values())}; {one.origin}" for one in known
        )
        state = "holds no data set that is known" if folder.is_dir() else "is no folder"
        raise DataError(
            f"catalog.path: {folder} {state}; correct it, or put these files there:\n{expected}"
        )
    if len(there) > 1:
        names = " and ".join(file.name for _, file in there)
        raise DataError(f"catalog.path: {folder} holds {names}; leave one of them there")
    found = there[0][0]
    return found, {table: _the(folder, name, found) for table, name in found.files.items()}


def damaged(file: Path, what: str, origin: str) -> DataError:
    """The complaint that `file` is not as it was published: `what` it is, how to get a good one."""
    return DataError(f"{file} {what}; get the file anew: {origin}")


def some_rows(tables: Iterable[pa.Table], file: Path, origin: str) -> Iterator[pa.Table]:
    """The same tables of a file.

    Raises:
        DataError: they have no rows, which no published file is without.
    """
    rows = 0
    for table in tables:
        rows += table.num_rows
        yield table
    if not rows:
        raise damaged(file, "holds no rows", origin)


def _the(folder: Path, name: str, owner: DataSet) -> Path:
    """The file of this name, packed or not."""
    files = _present(folder, name)
    if not files:
        raise DataError(
            f"catalog.path: {folder / name} does not exist, which belongs to {owner.name}; "
            f"{owner.origin}"
        )
    return files[0]


def _present(folder: Path, name: str) -> list[Path]:
    bare = name.removesuffix(".gz")
    files = [folder / name for name in (bare, f"{bare}.gz")]
    return [file for file in files if file.is_file()][:1]
