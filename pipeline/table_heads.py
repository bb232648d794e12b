"""The first rows of a table of which nothing is known but its path, whatever its columns are."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipeline.column_files import (
    SEPARATORS,
    names_of,
    odd_rows_of,
    require_closed_quotes,
    text_format,
)
from pipeline.errors import DataError
from pipeline.foreign_files import (
    LOOKED_AT,
    is_mostly_utf8,
    looks_like_text,
    not_utf8,
    require_header,
    require_table,
)
from pipeline.own_tables import files_at
from pipeline.row_widths import ODD_WIDTH
from pipeline.text_reader import TextReader, open_text

_NUMBER = re.compile(r"[-+]?[0-9]+([.,][0-9]+)?")
_LINES = 200
_ALIKE = 0.9  # of the lines have as many columns as the header


@dataclass(frozen=True)
class Head:
    """A table's first rows; the columns of a text table are strings."""

    path: Path | str  # as given
    table: pa.Table
    separator: str | None  # of a text table, where its name says another
    is_whole: bool

    @property
    def name(self) -> str:
        """What a person calls the table."""
        return Path(str(self.path)).name

    @property
    def word(self) -> str:
        """The same without what it ends in: `books` of `data/books.csv.gz`."""
        return self.name.split(".")[0] or self.name


def read_head(location: Path | str, rows: int) -> Head:
    """At most so many rows of a file, or of the Parquet files in a folder.

    Raises:
        DataError: it is not there, is no table, has no rows, two columns of a name, or is not
            UTF-8.
    """
    files = files_at(location, "tables")
    file = files[0]
    separator = None
    try:
        require_table(file, str(location), is_text=text_format(file) is not None)
        separator = _other_separator(file)
        options = text_format(file, separator)  # as a run reads it
        if options:
            table, is_whole = _text_rows(file, options, rows)
        else:
            table, is_whole = _parquet_rows(files, rows)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{location} cannot be read as a table ({error})") from error
    if not table.num_rows:
        raise DataError(f"{location} has no rows; fill it, or leave it out if it is not needed")
    names = [name for name in table.column_names if name.strip()]  # one without is a row number
    if 2 * sum(_NUMBER.fullmatch(name.strip()) is not None for name in names) >= len(names):
        raise DataError(
            f"{location} seems to have no header: its columns are called {', '.join(names[:5])}; "
            "put a line with the names of the columns before the first row"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{location} has two columns {twice[0]!r}; rename or drop one")
    return Head(location, table.select(names), separator, is_whole)


def _parquet_rows(files: list[Path], rows: int) -> tuple[pa.Table, bool]:
    batches: list[pa.RecordBatch] = []
    total = 0
    for file in files:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(batch_size=min(rows, 65_536)):
                if batches and batch.schema != batches[0].schema:
                    return pa.Table.from_batches(batches), False  # ids of another type, say
                batches.append(batch)
                total += batch.num_rows
                if total >= rows:
                    return pa.Table.from_batches(batches).slice(0, rows), False
    return pa.Table.from_batches(batches) if batches else pa.table({}), True


def _text_rows(file: Path, parse: pacsv.ParseOptions, rows: int) -> tuple[pa.Table, bool]:
    reader = TextReader(file, parse)
    names = names_of(reader.schema(), str(file))
    if len(set(names)) < len(names):
        return pa.Table.from_arrays([pa.array([""])] * len(names), names), True
    table, is_whole = reader.head(names, rows)
    if is_whole:
        require_closed_quotes(file, parse, table.num_rows + reader.skipped, len(names), str(file))
    odd = odd_rows_of(file, reader.skipped, parse, len(names))
    if odd and odd.count > table.num_rows:
        raise DataError(
            f"{file}: {odd.count:,} of {table.num_rows + odd.count:,} rows {ODD_WIDTH} "
            f"({odd.told}); begin the file with the names of the columns, and part all rows "
            "alike"
        )
    return table, is_whole


def _other_separator(file: Path) -> str | None:
    """What stands between the columns of a text table, where its name does not say so.

    Raises:
        DataError: the file is not UTF-8.
    """
    options = text_format(file)
    if options is None:
        return _separator(file, pacsv.ParseOptions()) if looks_like_text(file) else None
    found = _separator(file, options)
    return None if found == options.delimiter else found


def _separator(file: Path, usual: pacsv.ParseOptions) -> str:
    """The usual separator, if lines agree with the header by it; else another by which they do."""
    with open_text(file) as stream:
        start = stream.read(LOOKED_AT)
    require_header(start, file, str(file))
    if not is_mostly_utf8(start):
        raise not_utf8(start, file, str(file))
    text = start.decode("utf-8", "replace").lstrip("\ufeff")
    others = [text_format(file, one) or usual for one in SEPARATORS]
    fits = [one for one in (usual, *others) if _share_alike(text, one) >= _ALIKE]
    return fits[0].delimiter if fits else usual.delimiter


def _share_alike(text: str, options: pacsv.ParseOptions) -> float:
    """Share of lines with as many columns as the header has; 0 if that is one."""
    quoting = csv.QUOTE_MINIMAL if options.quote_char else csv.QUOTE_NONE
    rows = csv.reader(io.StringIO(text), delimiter=options.delimiter, quoting=quoting)
    widths = [len(row) for row in _some(rows) if row]
    if not widths or widths[0] < 2:
        return 0.0
    rest = widths[1:-1] or widths[1:]  # the last may be cut
    return sum(width == widths[0] for width in rest) / max(len(rest), 1)


def _some(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """The first of them; what csv cannot read ends them."""
    try:
        for _, row in zip(range(_LINES), rows, strict=False):
            yield row
    except csv.Error:
        return
