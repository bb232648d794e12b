"""Rows of large text files, batch by batch, all columns as strings.

A line that is no row does not hide the others: all of them are counted before any is refused.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from pipeline.bad_lines import BadLines
from pipeline.column_files import names_of, require_columns
from pipeline.data_sets import damaged
from pipeline.errors import DataError
from pipeline.text_reader import as_strings

_BATCH_BYTES = 16 * 2**20
_NOWHERE = "\x1f"  # no text has it, so a line is one column
_TO_STRINGS = pc.CastOptions.unsafe(pa.string())  # broken UTF-8 is for `columns` to mend


def csv_rows(file: Path, columns: Sequence[str], origin: str) -> Iterator[pa.Table]:
    """These columns of a CSV file with a header; `origin` says how to get a good one.

    Raises:
        DataError: the file cannot be read, lacks a column, or has lines of another width.
    """
    remedies = dict.fromkeys(columns, f"get the file anew: {origin}")
    skip = pacsv.ParseOptions(invalid_row_handler=lambda _: "skip")
    with _open(file, origin, skip) as reader:
        there = names_of(reader.schema, str(file))
    require_columns(remedies, there, str(file))
    bad = BadLines(file, f"rows of {len(there)} columns")

    def refuse(row: pacsv.InvalidRow) -> str:
        bad.add(row.text)
        return "skip"

    options = pacsv.ParseOptions(invalid_row_handler=refuse)
    yield from _tables(file, origin, options, convert_options=as_strings(columns))
    bad.require_none(origin)


def pattern_rows(file: Path, pattern: str, what: str, origin: str) -> Iterator[pa.Table]:
    """Of every line that is not blank, what the named groups of `pattern` match.

    For files whose columns are parted by more than one character. `what` a line should be and
    `origin` are for the message.

    Raises:
        DataError: the file cannot be read, or has lines that do not match.
    """
    bad, number = BadLines(file, what), 1
    whole = pacsv.ParseOptions(delimiter=_NOWHERE, quote_char=False, ignore_empty_lines=False)
    names = pacsv.ReadOptions(column_names=["line"], block_size=_BATCH_BYTES)
    as_bytes = pacsv.ConvertOptions(column_types={"line": pa.binary()})
    for table in _tables(file, origin, whole, read_options=names, convert_options=as_bytes):
        lines = table["line"]
        found = pc.extract_regex(lines, pattern)
        is_blank = pc.match_substring_regex(lines, r"^\s*$")
        is_bad = pc.and_not(pc.is_null(found), is_blank)
        for place in pc.indices_nonzero(is_bad).to_pylist():
            bad.add(lines[place].as_py().decode("utf-8", "replace"), number + place)
        number += len(lines)
        rows = pa.Table.from_struct_array(found.filter(pc.is_valid(found)))
        yield pa.table({name: _as_strings(rows[name]) for name in rows.column_names})
    bad.require_none(origin)


def _as_strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, options=_TO_STRINGS)


def _tables(
    file: Path, origin: str, options: pacsv.ParseOptions, **more: Any
) -> Iterator[pa.Table]:
    """All batches of a file."""
    with _open(file, origin, options, **more) as reader:
        batches = iter(reader)
        while (batch := _next(batches, file, origin)) is not None:
            yield pa.Table.from_batches([batch])


def _open(
    file: Path, origin: str, options: pacsv.ParseOptions, **more: Any
) -> pacsv.CSVStreamingReader:
    read = more.pop("read_options", pacsv.ReadOptions(block_size=_BATCH_BYTES))
    try:
        return pacsv.open_csv(file, read_options=read, parse_options=options, **more)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(file, origin, error) from error


def _next(batches: Iterator[pa.RecordBatch], file: Path, origin: str) -> pa.RecordBatch | None:
    try:
        return next(batches, None)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(file, origin, error) from error


def _unreadable(file: Path, origin: str, error: Exception) -> DataError:
    if "straddl" in str(error):  # a line began before this batch and ends behind it
        return damaged(file, f"has a line of more than {_BATCH_BYTES:,} bytes", origin)
    return damaged(file, f"cannot be read as text ({error})", origin)
