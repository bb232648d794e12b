"""The files of a dataset: Parquet parts and small JSON, each complete or absent.

A file is written under a temporary name, synced, and renamed.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.schemas import with_vector_width
from pipeline.stored_types import misfit

_BATCH = 4096  # rows of texts in memory at once
_ROW_GROUP = 65_536  # rows read at once; a map of attributes must not reach 2 GiB in one


def append_part(folder: Path, table: pa.Table, schema: pa.Schema, name: str) -> Path:
    """Store `table` as the next part in `folder`, and name it; `name` is the dataset's, for errors.

    Raises:
        DataError: the table does not fit `schema`.
    """
    parts = list_parts(folder)
    number = part_number(parts[-1]) + 1 if parts else 0
    part = folder / f"part-{number:05d}.parquet"
    temporary = part.with_suffix(".tmp")
    pq.write_table(
        conform(table, schema, name), temporary, row_group_size=_ROW_GROUP, compression="zstd"
    )
    sync(temporary)
    temporary.rename(part)
    return part


def conform(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """`table` under its schema; fails when columns are missing, extra, null or of another type."""
    if table.schema.names != schema.names:
        raise DataError(f"{name}: columns are {table.schema.names}, expected {schema.names}")
    for column in schema.names:
        if table[column].null_count:
            raise DataError(f"{name}.{column}: {table[column].null_count} null values")
    if "vector" in schema.names and table.num_rows:
        widths = set(pc.list_value_length(table["vector"]).to_pylist())  # pyright: ignore
        if len(widths) != 1:
            raise DataError(f"{name}.vector: widths differ: {sorted(widths)}")
        schema = with_vector_width(schema, widths.pop())
    try:
        stored = table.cast(schema)
    except pa.ArrowInvalid as error:
        raise DataError(f"{name}: a column has another type than its schema: {error}") from error
    if problem := misfit(stored, schema):
        raise DataError(f"{name}: {problem}")
    return stored


def count_rows(part: Path) -> int:
    """Rows of a part, from its footer."""
    try:
        return pq.read_metadata(part).num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise damaged(part, error) from error


def damaged(file: Path | str, error: Exception) -> DataError:
    """The error that names a file which cannot be read, by its path or its URI."""
    folder = str(file).rpartition("/")[0]
    return DataError(f"{file} is damaged ({error}); move {folder} away and run again")


def list_parts(folder: Path) -> list[Path]:
    """Parts in the order written."""
    return sorted(folder.glob("part-*.parquet"), key=part_number)


def part_number(part: Path) -> int:
    """`part-00007.parquet` is number 7."""
    return int(part.stem.removeprefix("part-"))


def read_parts(
    parts: list[Path], schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.Table:
    """All rows of `parts`, and all columns or those named.

    Raises:
        DataError: a part is damaged or is not what `schema` says.
    """
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    tables = []
    for part in parts:
        try:
            table = pq.read_table(part, columns=schema.names)
        except (pa.ArrowInvalid, OSError) as error:
            raise damaged(part, error) from error
        if problem := misfit(table, schema):
            raise damaged(part, ValueError(problem))
        tables.append(table)
    filled = [table for table in tables if table.num_rows]  # an empty part knows no vector width
    try:
        return pa.concat_tables(filled or tables or [schema.empty_table()])
    except pa.ArrowInvalid as error:
        raise DataError(f"the parts in {parts[0].parent} differ in type: {error}") from error


def read_batches(
    parts: Sequence[Path], schema: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """The rows of `parts` in their order, a few at a time, for who cannot hold all.

    Raises:
        DataError: a part is damaged or is not what `schema` says.
    """
    schema = pa.schema([schema.field(name) for name in columns])
    yield schema.empty_table()
    for part in parts:
        try:
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches(_BATCH, columns=schema.names):
                    table = pa.Table.from_batches([batch])
                    table = table.select([name for name in columns if name in table.column_names])
                    if problem := misfit(table, schema):
                        raise damaged(part, ValueError(problem))
                    yield table
        except (pa.ArrowInvalid, OSError) as error:
            raise damaged(part, error) from error


def content_hash(folder: Path, leave_out: Collection[str]) -> str:
    """One hash of all files of a dataset, their names included; unfinished ones do not count."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix != ".tmp" and file.name not in leave_out:
            digest.update(f"{file.relative_to(folder)}\0".encode())
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


def parse_json(data: bytes, path: Path | str) -> dict[str, Any]:
    """The object in the JSON file at `path`, a path or a URI, which holds `data`."""
    try:
        value = json.loads(data.decode())
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
    except ValueError as error:  # or not JSON, or not even UTF-8
        raise damaged(path, error) from error
    return value


def write_atomically(path: Path, data: bytes) -> None:
    """Write a small file: the old one stays until the new one is whole."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    sync(temporary)
    temporary.rename(path)


def sync(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
