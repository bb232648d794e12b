"""Rows of a text table by Arrow, all columns as strings; rows of another width are counted."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

import pyarrow as pa
import pyarrow.csv as pacsv

_BLOCKS = (1 << 20, 1 << 26)  # bytes read at once; no row is longer than the last

Read = TypeVar("Read")


def open_text(file: Path) -> pa.NativeFile:
    """The bytes of a text table, unpacked."""
    return pa.input_stream(file, compression="gzip" if file.suffix.lower() == ".gz" else None)


def as_strings(columns: Sequence[str]) -> pacsv.ConvertOptions:
    """These columns and no others, none of them guessed at."""
    return pacsv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        check_utf8=False,  # a broken title is no reason to refuse a catalog; see `columns`
    )


class TextReader:
    """Reads a text table without rows of another width; `skipped` of these were seen."""

    def __init__(self, file: Path, options: pacsv.ParseOptions) -> None:
        self.skipped = 0
        self._counting = Lock()
        self._file = file
        self._options = pacsv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote_char,
            newlines_in_values=options.newlines_in_values,
            invalid_row_handler=self._skip,
        )

    def schema(self) -> pa.Schema:
        """The columns."""

        def read(block: int) -> pa.Schema:
            with self._opened(block) as reader:
                return reader.schema

        return self._read(read)

    def table(self, columns: Sequence[str]) -> pa.Table:
        """All rows."""

        def read(block: int) -> pa.Table:
            with open_text(self._file) as stream:
                return pacsv.read_csv(
                    stream,
                    read_options=pacsv.ReadOptions(block_size=block),
                    parse_options=self._options,
                    convert_options=as_strings(columns),
                )

        return self._read(read)

    def head(self, columns: Sequence[str], rows: int) -> tuple[pa.Table, bool]:
        """At most so many rows, and whether that is all."""

        def read(block: int) -> tuple[pa.Table, bool]:
            batches: list[pa.RecordBatch] = []
            with self._opened(block, columns) as reader:
                for batch in reader:
                    batches.append(batch)
                    if sum(map(len, batches)) >= rows:
                        return pa.Table.from_batches(batches).slice(0, rows), False
                return pa.Table.from_batches(batches, reader.schema), True

        return self._read(read)

    @contextmanager
    def _opened(
        self, block: int, columns: Sequence[str] = ()
    ) -> Iterator[pacsv.CSVStreamingReader]:
        with (
            open_text(self._file) as stream,
            pacsv.open_csv(
                stream,
                read_options=pacsv.ReadOptions(block_size=block),
                parse_options=self._options,
                convert_options=as_strings(columns),
            ) as reader,
        ):
            yield reader

    def _read(self, read: Callable[[int], Read]) -> Read:
        """By small blocks; by large ones if a row is larger than a small one."""
        *smaller, largest = _BLOCKS
        for block in smaller:
            self.skipped = 0
            try:
                return read(block)
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error):
                    raise
        self.skipped = 0
        try:
            return read(largest)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
            raise pa.ArrowInvalid(f"a row is of more than {largest:,} bytes") from error

    def _skip(self, row: pacsv.InvalidRow) -> str:
        with self._counting:  # Arrow reads blocks side by side
            self.skipped += 1
        return "skip"
