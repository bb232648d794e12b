"""Columns of one Parquet, CSV or tab-separated file by their names, text as strings throughout."""

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipeline.encodings import by_iconv
from pipeline.errors import DataError
from pipeline.open_quotes import count_lines, find_open_quote

_COMMA = pacsv.ParseOptions(newlines_in_values=True)
_TAB = pacsv.ParseOptions(delimiter="\t", quote_char=False)
_QUOTED_TAB = pacsv.ParseOptions(delimiter="\t", newlines_in_values=True)
SEPARATORS = (",", ";", "\t", "|")
_TEXT_FORMATS = {
    ".csv": _COMMA,
    ".tsv": _QUOTED_TAB,
    ".user": _TAB,
    ".item": _TAB,
    ".inter": _TAB,
}


def read_columns(
    file: Path,
    remedies: Mapping[str, str],
    name: str,
    remedy: str,
    separator: str | None = None,
) -> pa.Table:
    """Columns of one file under their own names.

    `remedies` says for every wanted column what to do if it is missing, `remedy` what to do if the
    file cannot be read; `name` is the table's. With a `separator` it is a text table, whatever the
    file is called, unless that says Parquet.

    Raises:
        DataError: the file cannot be read, or lacks a column.
    """
    where = f"{name}: {file}"
    options = text_format(file, separator)
    if options:
        return _read_text(file, options, remedies, where, remedy)
    try:
        with pq.ParquetFile(file) as parquet:
            require_columns(remedies, parquet.schema_arrow.names, where)
            return parquet.read(columns=list(remedies))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{where} cannot be read as Parquet ({error}); {remedy}") from error


def text_format(file: Path, separator: str | None = None) -> pacsv.ParseOptions | None:
    """How to read a text table, by its name unless `separator` is given; None if it is Parquet."""
    suffix = Path(file.name.lower().removesuffix(".gz")).suffix
    if suffix == ".parquet" or not separator:
        return _TEXT_FORMATS.get(suffix)
    return pacsv.ParseOptions(delimiter=separator, newlines_in_values=True)


def _read_text(
    file: Path, options: pacsv.ParseOptions, remedies: Mapping[str, str], where: str, remedy: str
) -> pa.Table:
    there: list[str] = []
    try:
        header = _any_rows(options)
        with open_text(file) as stream, pacsv.open_csv(stream, parse_options=header) as reader:
            there = names_of(reader.schema, where)
        _require_separator(remedies, there, options.delimiter, where)
        require_columns(remedies, there, where)
        with open_text(file) as stream:
            convert = as_strings(list(remedies))
            table = pacsv.read_csv(stream, parse_options=options, convert_options=convert)
        if options.quote_char and _has_more_lines(file, table.num_rows + 1):
            _require_closed_quotes(file, options.delimiter, len(there), where)
    except (pa.ArrowInvalid, OSError) as error:
        if there and options.quote_char:
            with suppress(OSError):  # of a file that is cut, `error` tells already
                _require_closed_quotes(file, options.delimiter, len(there), where)
        raise DataError(f"{where} cannot be read as a text table ({error}); {remedy}") from error
    return table


def open_text(file: Path) -> pa.NativeFile:
    """The bytes of a text table, unpacked."""
    return pa.input_stream(file, compression="gzip" if file.suffix.lower() == ".gz" else None)


def _any_rows(options: pacsv.ParseOptions) -> pacsv.ParseOptions:
    """The same for who wants the header alone: rows of another width are judged later."""
    return pacsv.ParseOptions(
        delimiter=options.delimiter,
        quote_char=options.quote_char,
        newlines_in_values=options.newlines_in_values,
        invalid_row_handler=lambda _: "skip",
    )


def names_of(schema: pa.Schema, where: str) -> list[str]:
    """Names of all columns.

    Raises:
        DataError: they are not UTF-8.
    """
    try:
        return schema.names
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} has a header that is not UTF-8; {by_iconv(error.object)}"
        ) from error


def _require_separator(
    remedies: Mapping[str, str], there: Sequence[str], separator: str, where: str
) -> None:
    """Refuse a file of one column whose name is a whole header with another separator.

    Raises:
        DataError: names the separator that it has.
    """
    if len(there) != 1:
        return
    if "\0" in there[0]:
        raise DataError(f"{where} is not UTF-8; {by_iconv(there[0].encode('latin-1', 'replace'))}")
    for other in SEPARATORS:
        if other != separator and other in there[0] and there[0] not in remedies:
            raise DataError(
                f"{where} has no {separator!r} between its columns, but {other!r}; set `separator: "
                f'"{other}"` beside its path'.replace("\t", "\\t")
            )


def _has_more_lines(file: Path, lines: int) -> bool:
    with open_text(file) as stream:
        return count_lines(stream) > lines


def _require_closed_quotes(file: Path, delimiter: str, columns: int, where: str) -> None:
    with open_text(file) as stream:
        problem = find_open_quote(stream, delimiter, columns)
    if problem:
        raise DataError(
            f"{where}, {problem}; close the quote, or write it as two inside a quoted cell, or "
            "store the table as Parquet if the cell is right"
        )


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
