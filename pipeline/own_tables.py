"""The user's own Parquet or CSV tables, with names of columns of their own."""

import difflib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pipeline.catalog_config import CatalogSettings, TableSettings
from pipeline.column_files import read_rows, text_format
from pipeline.errors import ConfigError, DataError
from pipeline.fetched import local_copy
from pipeline.raw_tables import (
    REQUIRED,
    RawTables,
    our_table,
    read_all,
    unread_value,
    users_of,
)
from pipeline.row_widths import OddRows

_LIKED = 1.0  # the rating of all where there are none: prompts then say "liked", of no stars


def read_own_tables(settings: CatalogSettings) -> RawTables:
    """Read `catalog.tables`.

    Raises:
        DataError: a file is missing or unreadable, or lacks a column, or a column cannot be what it
            should be; all tables are looked at.
        ConfigError: `columns` or `attributes` name what a table cannot have.
    """
    given = [name for name in REQUIRED if _own(name, settings)]
    reads = read_all(*(partial(_read, name, settings) for name in given))
    found = dict(zip(given, reads, strict=True))
    tables = {name: one.table for name, one in found.items()}
    odd = {name: one.odd for name, one in found.items() if one.odd}
    filled = {"users": users_of(tables["interactions"])} | tables
    return RawTables(**filled, odd=odd, unread=found["interactions"].unread)


class _Read(NamedTuple):
    """A table, and what of its files could not be read."""

    table: pa.Table
    odd: OddRows | None
    unread: dict[str, str]  # by column: a value


def own_files(settings: CatalogSettings) -> list[Path]:
    """Every file that `read_own_tables` reads.

    Raises:
        DataError: there is none where the settings say; all that are missing are named.
    """
    tables = {name: _own(name, settings) for name in REQUIRED}
    given = [partial(_files, name, table) for name, table in tables.items() if table]
    return [file for files in read_all(*given) for file in files]


def _read(name: str, settings: CatalogSettings) -> _Read:
    table = _own(name, settings)
    assert table is not None  # `read_own_tables` reads what there is
    theirs = _their_columns(name, table, settings.positive_rating is not None)
    remedies = _remedies(name, table, theirs)
    parts, odd, path = [], None, f"catalog.tables.{name}.path"
    unread: dict[str, str] = {}
    # File by file: parts written on different days may disagree about the type of an id.
    for file in _files(name, table):
        anew = f"correct {path} or write the file anew"
        raw, odd = read_rows(file, remedies, name, anew, table.separator)
        columns = {ours: raw[column] for ours, column in theirs.items()}
        attributes = {column: raw[column] for column in table.attributes}
        ours = our_table(columns, attributes, settings.timestamp_unit, file, theirs)
        if name == "interactions" and "rating" not in theirs:
            ours = ours.append_column("rating", pa.repeat(_LIKED, ours.num_rows))
        for column in {"rating", "timestamp"} & set(theirs):
            if value := unread_value(columns[column], ours[column]):
                unread.setdefault(column, value)
        parts.append(ours)
    return _Read(pa.concat_tables(parts), odd, unread)  # a text table is one file


def _remedies(name: str, table: TableSettings, theirs: Mapping[str, str]) -> dict[str, str]:
    """What to do where a column is missing, for each column that is wanted."""
    where = f"catalog.tables.{name}"
    required = {
        column: f"correct {where}.columns.{ours}"
        if ours in table.columns
        else f"give your name for it under {where}.columns, as {ours}: yours"
        for ours, column in theirs.items()
    }
    listed = f"correct {where}.attributes, which lists columns by your names"
    return dict.fromkeys(table.attributes, listed) | required


def _own(name: str, settings: CatalogSettings) -> TableSettings | None:
    assert settings.tables is not None  # CatalogSettings checks it
    return getattr(settings.tables, name)


def _their_columns(name: str, table: TableSettings, has_ratings: bool) -> dict[str, str]:
    """Our column -> theirs, for the columns a table of this kind must have."""
    where = f"catalog.tables.{name}"
    for ours in table.columns:
        if ours not in REQUIRED[name]:
            near = _nearest(ours, REQUIRED[name])
            raise ConfigError(f"{where}.columns.{ours}: unknown column; the nearest is {near}")
    if name == "interactions" and table.attributes:
        raise ConfigError(f"{where}.attributes: interactions have none; remove the key")
    needed = [ours for ours in REQUIRED[name] if ours != "rating" or has_ratings]
    if "rating" in table.columns and not has_ratings:
        raise ConfigError(
            f"{where}.columns.rating names a column, but catalog.positive_rating: null says that "
            "there are no ratings; remove one of the two"
        )
    return {ours: table.columns.get(ours, ours) for ours in needed}


def _files(name: str, table: TableSettings) -> list[Path]:
    return files_at(table.path, f"catalog.tables.{name}.path")


def files_at(location: Path | str, where: str) -> list[Path]:
    """The file itself, or the Parquet files under a folder in order of their names.

    Raises:
        DataError: there is none; `where` it was looked for, for the message.
    """
    path = local_copy(location)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{where}: {location} does not exist; correct the path")
    files = sorted(
        file
        for file in path.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
    if not files:
        there = sorted(file.name for file in path.iterdir() if text_format(file))
        hint = f" (but {there[0]}: text tables are given one by one)" if there else ""
        raise DataError(
            f"{where}: no *.parquet file in the folder {location}{hint}; correct the path"
        )
    return files


def _nearest(word: str, words: Sequence[str]) -> str:
    return difflib.get_close_matches(word, words, n=1, cutoff=0.0)[0] if words else ""
