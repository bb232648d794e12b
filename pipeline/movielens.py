"""MovieLens as it is distributed, in three layouts.

RecBole's "atomic files" of MovieLens-100K (tab-separated, the header says `name:type`), the `.dat`
files of MovieLens-10M (`::` between columns), and the CSV files of 20M and later. The larger ones
say nothing of users: whoever rated is one.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa

from pipeline.catalog_config import CatalogSettings
from pipeline.column_files import read_columns
from pipeline.data_sets import DataSet, damaged, identify, some_rows
from pipeline.fetched import local_copy
from pipeline.movie_texts import tidy_movies
from pipeline.raw_tables import REQUIRED, RawTables, our_table, read_all, users_of
from pipeline.text_rows import csv_rows, pattern_rows
from pipeline.times import require_unit

_100K = DataSet(
    "MovieLens-100K",
    "run `make assets`",
    {"users": "ml-100k.user", "items": "ml-100k.item", "interactions": "ml-100k.inter"},
)
_10M = DataSet(
    "MovieLens-10M",
    "unpack ml-10m.zip of https://grouplens.org/datasets/movielens/10m/",
    {"items": "movies.dat", "interactions": "ratings.dat"},
)
_25M = DataSet(
    "MovieLens-25M (20M, 32M and latest alike)",
    "unpack ml-25m.zip of https://grouplens.org/datasets/movielens/25m/",
    {"items": "movies.csv", "interactions": "ratings.csv"},
)

_100K_COLUMNS = {
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
_CSV_COLUMNS = {
    "items": {"item_id": "movieId", "title": "title", "genres": "genres"},
    "interactions": {
        "user_id": "userId",
        "item_id": "movieId",
        "rating": "rating",
        "timestamp": "timestamp",
    },
}
# A title may hold colons, so it takes all that the other columns leave.
_DAT_PATTERNS = {
    "items": r"^(?P<item_id>[^:]*)::(?P<title>.*)::(?P<genres>[^:]*)$",
    "interactions": r"^(?P<user_id>[^:]*)::(?P<item_id>[^:]*)::"
    r"(?P<rating>[^:]*)::(?P<timestamp>[^:]*)$",
}
_DAT_LINES = {
    "items": "MovieID::Title::Genres",
    "interactions": "UserID::MovieID::Rating::Timestamp",
}


def read_movielens(settings: CatalogSettings) -> RawTables:
    """Read whichever MovieLens lies in `catalog.path`.

    Raises:
        DataError: none lies there, or a file is missing, or cannot be read; all are looked at.
    """
    data_set, files = _identified(settings)
    if data_set is _100K:
        return RawTables(*read_all(*(partial(_read_100k, name, files[name]) for name in REQUIRED)))
    items, interactions = read_all(
        partial(_read_movies, data_set, files["items"]),
        partial(_read_ratings, data_set, files["interactions"]),
    )
    return RawTables(users_of(interactions), items, interactions)


def movielens_files(settings: CatalogSettings) -> list[Path]:
    """Every file that `read_movielens` reads.

    Raises:
        DataError: no MovieLens lies in `catalog.path`, or not all of it.
    """
    return list(_identified(settings)[1].values())


def _identified(settings: CatalogSettings) -> tuple[DataSet, dict[str, Path]]:
    assert settings.path is not None  # CatalogSettings checks it
    return identify(local_copy(settings.path), (_100K, _10M, _25M))


def _read_100k(name: str, file: Path) -> pa.Table:
    theirs = _100K_COLUMNS[name]
    anew = f"get the file anew: {_100K.origin}"
    raw = read_columns(file, dict.fromkeys(theirs.values(), anew), name, anew)
    if not raw.num_rows:
        raise damaged(file, "holds no rows", _100K.origin)
    columns = {ours: raw[column] for ours, column in theirs.items()}
    if name == "items":
        columns |= tidy_movies(columns["title"], columns["genres"], " ", columns["year"])
    attributes = {ours: columns.pop(ours) for ours in [*columns] if ours not in REQUIRED[name]}
    table = our_table(columns, attributes, "s", file, theirs)
    if name == "interactions":
        require_unit(table["timestamp"], "s", file, _100K.origin)
    return table


def _read_movies(data_set: DataSet, file: Path) -> pa.Table:
    raw = pa.concat_tables(_rows(data_set, "items", file))
    texts = tidy_movies(raw["title"], raw["genres"], "|")
    columns = {"item_id": raw["item_id"], "title": texts.pop("title")}
    return our_table(columns, texts, "s", file, _labels(data_set, "items"))


def _read_ratings(data_set: DataSet, file: Path) -> pa.Table:
    theirs = _labels(data_set, "interactions")
    # Batch by batch: numbers take a third of their text.
    parts = [
        our_table({ours: raw[ours] for ours in theirs}, {}, "s", file, theirs)
        for raw in _rows(data_set, "interactions", file)
    ]
    table = pa.concat_tables(parts)
    require_unit(table["timestamp"], "s", file, data_set.origin)
    return table


def _rows(data_set: DataSet, name: str, file: Path) -> Iterator[pa.Table]:
    """Rows of a file by our names of columns, as text."""
    origin, theirs = data_set.origin, _CSV_COLUMNS[name]
    if data_set is _10M:
        tables = pattern_rows(file, _DAT_PATTERNS[name], _DAT_LINES[name], origin)
    else:
        tables = csv_rows(file, list(theirs.values()), origin)
    for table in some_rows(tables, file, origin):
        if data_set is _25M:
            table = table.select(list(theirs.values())).rename_columns(list(theirs))
        yield table


def _labels(data_set: DataSet, name: str) -> Mapping[str, str]:
    """Our column -> what the user reads about it."""
    theirs = _CSV_COLUMNS[name]
    return theirs if data_set is _25M else {ours: ours for ours in theirs}
