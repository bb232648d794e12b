"""Raw files -> three tables with our column names and types; nothing is judged here.

Two sources: the user's own Parquet or CSV tables, and MovieLens-100K as RecBole ships it ("atomic
files": tab-separated text whose header says `name:type`).
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipeline.columns import as_attributes, as_ids, as_numbers, as_text, as_timestamps
from pipeline.config import CatalogSettings, TableSettings
from pipeline.errors import ConfigError, DataError
from pipeline.fetched import local_copy

REQUIRED: dict[str, tuple[str, ...]] = {
    "users": ("user_id",),
    "items": ("item_id", "title"),
    "interactions": ("user_id", "item_id", "rating", "timestamp"),
}

_MOVIELENS_FILES = {"users": ".user", "items": ".item", "interactions": ".inter"}
_MOVIELENS_COLUMNS = {
    "users": {
        "user_id": "user_id:token",
        "age": "age:token",
        "gender": "gender:token",
        "occupation": "occupation:token",
    },
    "items": {
        "item_id": "item_id:token",
        "title": "movie_title:token_seq",
        "year": "release_year:token",
        "genres": "class:token_seq",
    },
    "interactions": {
        "user_id": "user_id:token",
        "item_id": "item_id:token",
        "rating": "rating:float",
        "timestamp": "timestamp:float",
    },
}
# MovieLens moves an article behind the title: "Boot, Das", "Enfer, L'".
_ARTICLE = "The|An|A|La|Les|Le|Das|Der|Die|Det|Il|O"

_COMMA = pacsv.ParseOptions(newlines_in_values=True)
_TAB = pacsv.ParseOptions(delimiter="\t", quote_char=False)
_TEXT_FORMATS = {".csv": _COMMA, ".csv.gz": _COMMA} | dict.fromkeys(_MOVIELENS_FILES.values(), _TAB)


@dataclass(frozen=True)
class RawTables:
    """Tables as read; ids, titles, ratings and timestamps may still be null or wrong.

    users (user_id, attributes), items (item_id, title, attributes), interactions (user_id,
    item_id, rating float64, timestamp int64 in `catalog.timestamp_unit`).
    """

    users: pa.Table
    items: pa.Table
    interactions: pa.Table


def read_raw(settings: CatalogSettings) -> RawTables:
    """Read the three tables of `settings.source`.

    Raises:
        DataError: a file is missing or unreadable, or lacks a column, or a column cannot be what it
            should be; all three tables are looked at.
        ConfigError: `columns` or `attributes` name what a table cannot have.
    """
    read = _read_movielens if settings.source == "movielens" else _read_own
    tables, problems = [], []
    for name in REQUIRED:
        try:
            tables.append(read(name, settings))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return RawTables(*tables)


def raw_files(settings: CatalogSettings) -> list[Path]:
    """Every file that `read_raw` reads.

    Raises:
        DataError: there is none where the settings say.
    """
    if settings.source == "movielens":
        return [_movielens_file(name, settings) for name in REQUIRED]
    return [file for name in REQUIRED for file in _own_files(name, _own(name, settings))]


def _read_own(name: str, settings: CatalogSettings) -> pa.Table:
    table = _own(name, settings)
    theirs = _their_columns(name, table)
    remedies = _remedies(name, table, theirs)
    parts = []
    # File by file: parts written on different days may disagree about the type of an id.
    for file in _own_files(name, table):
        raw = _read_columns(file, remedies, name)
        columns = {ours: raw[column] for ours, column in theirs.items()}
        attributes = {column: raw[column] for column in table.attributes}
        parts.append(_our_table(columns, attributes, settings.timestamp_unit, file, theirs))
    return pa.concat_tables(parts)


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


def _own(name: str, settings: CatalogSettings) -> TableSettings:
    assert settings.tables is not None  # CatalogSettings checks it
    return getattr(settings.tables, name)


def _their_columns(name: str, table: TableSettings) -> dict[str, str]:
    """Our column -> theirs, for the columns a table of this kind must have."""
    where = f"catalog.tables.{name}"
    for ours in table.columns:
        if ours not in REQUIRED[name]:
            near = _nearest(ours, REQUIRED[name])
            raise ConfigError(f"{where}.columns.{ours}: unknown column; the nearest is {near}")
    if name == "interactions" and table.attributes:
        raise ConfigError(f"{where}.attributes: interactions have none; remove the key")
    return {ours: table.columns.get(ours, ours) for ours in REQUIRED[name]}


def _own_files(name: str, table: TableSettings) -> list[Path]:
    """The file itself, or the Parquet files under a folder in order of their names."""
    where = f"catalog.tables.{name}.path"
    path = local_copy(table.path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{where}: {table.path} does not exist; correct the path")
    files = sorted(
        file
        for file in path.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
    if not files:
        raise DataError(f"{where}: no *.parquet file in the folder {table.path}; correct the path")
    return files


def _read_movielens(name: str, settings: CatalogSettings) -> pa.Table:
    file = _movielens_file(name, settings)
    theirs = _MOVIELENS_COLUMNS[name]
    remedies = dict.fromkeys(theirs.values(), "fetch ml-100k anew: `make assets`")
    raw = _read_columns(file, remedies, name)
    columns = {ours: raw[column] for ours, column in theirs.items()}
    if name == "items":
        columns |= _clean_movies(columns["title"], columns["year"], columns["genres"])
    attributes = {ours: columns.pop(ours) for ours in [*columns] if ours not in REQUIRED[name]}
    return _our_table(columns, attributes, settings.timestamp_unit, file, theirs)


def _movielens_file(name: str, settings: CatalogSettings) -> Path:
    assert settings.path is not None  # CatalogSettings checks it
    file = local_copy(settings.path) / f"ml-100k{_MOVIELENS_FILES[name]}"
    if not file.is_file():
        raise DataError(f"catalog.path: {file} does not exist; run `make assets` or correct it")
    return file


def _clean_movies(
    title: pa.ChunkedArray, year: pa.ChunkedArray, genres: pa.ChunkedArray
) -> dict[str, pa.ChunkedArray]:
    """Titles as people write them, years that are numbers, genres joined by ', '."""
    in_title = pc.extract_regex(title, r"\((?P<year>[0-9]{4})\)\s*$")
    is_year = pc.match_substring_regex(year, "^[0-9]{4}$")
    year = pc.if_else(is_year, year, pc.struct_field(in_title, "year"))
    title = pc.replace_substring_regex(title, r"\s*\([0-9]{4}\)\s*$", "")
    for pattern, replacement in (
        (rf"\(([^()]*), ({_ARTICLE})\)", r"(\2 \1)"),
        (r"\(([^()]*), (L')\)", r"(\2\1)"),
        (rf"^(.*), ({_ARTICLE})( \(.*\))?$", r"\2 \1\3"),
        (r"^(.*), (L')( \(.*\))?$", r"\2\1\3"),
    ):
        title = pc.replace_substring_regex(title, pattern, replacement)
    genres = pc.if_else(pc.equal(genres, "unknown"), "", genres)
    first = pc.struct_field(pc.extract_regex(genres, "^(?P<first>[^ ]+)"), "first")
    genres = pc.replace_substring(genres, " ", ", ")
    return {"title": title, "year": year, "genres": genres, "genre": first}


def _our_table(
    columns: Mapping[str, pa.ChunkedArray],
    attributes: Mapping[str, pa.ChunkedArray],
    unit: str,
    file: Path,
    theirs: Mapping[str, str],
) -> pa.Table:
    """Convert every column; interactions, which have a timestamp, get no attributes.

    Raises:
        DataError: some cannot be converted; all of them are named as the user does, by `theirs`.
    """
    problems: list[str] = []

    def convert(read: Callable[..., pa.ChunkedArray], label: str, *column: Any) -> pa.ChunkedArray:
        try:
            return read(*column, f"{file}, column {label}")
        except DataError as error:
            problems.append(str(error))
            return pa.chunked_array([], pa.string())

    table = {}
    for ours, column in columns.items():
        label = theirs[ours] + ("" if theirs[ours] == ours else f" (our {ours})")
        if ours == "timestamp":
            table[ours] = convert(as_timestamps, label, column, unit)
        elif ours == "rating":
            table[ours] = convert(as_numbers, label, column)
        else:
            table[ours] = convert(as_text if ours == "title" else as_ids, label, column)
    texts = {name: convert(as_text, name, column) for name, column in attributes.items()}
    if problems:
        raise DataError("\n".join(problems))
    if "timestamp" not in table:
        table["attributes"] = as_attributes(pa.table(texts), len(table[next(iter(table))]))
    return pa.table(table)


def _read_columns(file: Path, remedies: Mapping[str, str], name: str) -> pa.Table:
    """Columns of one file under their own names; text files as strings throughout.

    `remedies` says for every wanted column what to do if it is missing.
    """
    wanted = list(remedies)
    where = f"{name}: {file}"
    options = next((o for end, o in _TEXT_FORMATS.items() if file.name.endswith(end)), None)
    try:
        if options is None:
            with pq.ParquetFile(file) as parquet:
                _require(remedies, parquet.schema_arrow.names, where)
                return parquet.read(columns=wanted)
        with pacsv.open_csv(file, parse_options=options) as reader:
            _require(remedies, reader.schema.names, where)
        strings = pacsv.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, pa.string()),
            check_utf8=False,  # a broken title is no reason to refuse a catalog; see `columns`
        )
        return pacsv.read_csv(file, parse_options=options, convert_options=strings)
    except (pa.ArrowInvalid, OSError) as error:
        kind = "Parquet" if options is None else "a text table"
        raise DataError(f"{where} cannot be read as {kind}: {error}") from error


def _require(remedies: Mapping[str, str], there: Sequence[str], where: str) -> None:
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


def _nearest(word: str, words: Sequence[str]) -> str:
    return difflib.get_close_matches(word, words, n=1, cutoff=0.0)[0] if words else ""
