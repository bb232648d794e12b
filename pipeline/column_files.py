"""Columns of one Parquet, CSV or tab-separated file by their names, text as strings throughout."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipeline.errors import DataError

_COMMA = pacsv.ParseOptions(newlines_in_values=True)
_TAB = pacsv.ParseOptions(delimiter="\t", quote_char=False)
_TEXT_FORMATS = {".csv": _COMMA, ".user": _TAB, ".item": _TAB, ".inter": _TAB}


def read_columns(file: Path, remedies: Mapping[str, str], name: str, remedy: str) -> pa.Table:
    """Columns of one file under their own names.

    `remedies` says for every wanted column what to do if it is missing, `remedy` what to do if the
    file cannot be read; `name` is the table's.

    Raises:
        DataError: the file cannot be read, or lacks a column.
    """
    wanted = list(remedies)
    where = f"{name}: {file}"
    options = _TEXT_FORMATS.get(Path(file.name.removesuffix(".gz")).suffix)
    try:
        if options is None:
            with pq.ParquetFile(file) as parquet:
                require_columns(remedies, parquet.schema_arrow.names, where)
                return parquet.read(columns=wanted)
        with pacsv.open_csv(file, parse_options=options) as reader:
            require_columns(remedies, reader.schema.names, where)
        return pacsv.read_csv(file, parse_options=options, convert_options=as_strings(wanted))
    except (pa.ArrowInvalid, OSError) as error:
        kind = "Parquet" if options is None else "a text table"
        raise DataError(f"{where} cannot be read as {kind} ({error}); {remedy}") from error


def as_strings(columns: Sequence[str]) -> pacsv.ConvertOptions:
    """These columns and no others, none of them guessed at."""
    return pacsv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        check_utf8=False,  # a broken title is no reason to refuse a catalog; see `columns`
    )


def require_columns(remedies: Mapping[str, str], there: Sequence[str], where: str) -> None:
    """Refuse a file that lacks a column of `remedies`, or has it twice.

    Raises:
        DataError: names every such column, and what to do.
    """
    problems = []
    for column, remedy in remedies.items():
        near = difflib.get_close_matches(column, there, n=1)
        if column not in there:
            likely = f"; the nearest is {near[0]!r}" if near else ""
            problems.append(f"  {column!r} is missing{likely}; {remedy}")
        elif there.count(column) > 1:
            problems.append(
                f"  {column!r} is there {there.count(column)} times; rename or drop one"
            )
    if problems:
        raise DataError("\n".join([f"{where} has the columns {', '.join(there)}", *problems]))
