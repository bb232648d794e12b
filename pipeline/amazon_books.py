"""Amazon-Books as it is distributed: reviews and meta data of 2014, 2018 or 2023.

Only books that somebody rated are kept, whether the meta data knows them or not.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.book_texts import LONGEST_TITLE, author_of, genre_of, title_of
from pipeline.catalog_config import CatalogSettings
from pipeline.data_sets import DataSet, identify, some_rows
from pipeline.fetched import local_copy
from pipeline.json_rows import json_rows
from pipeline.raw_tables import LeftOut, RawTables, our_table, users_of
from pipeline.repeats import first_rows
from pipeline.times import TICKS, require_unit

log = logging.getLogger(__name__)

_TEXT = pa.binary()  # until we know whose it is: a book that nobody rated may be called anything
_PATH = pa.list_(_TEXT)
_TYPES = {"user_id": _TEXT, "item_id": _TEXT, "rating": pa.float64(), "timestamp": pa.int64()}
_REVIEWS = {
    "user_id": "reviewerID",
    "item_id": "asin",
    "rating": "overall",
    "timestamp": "unixReviewTime",
}
_REVIEWS_2023 = {
    "user_id": "user_id",
    "item_id": "parent_asin",
    "rating": "rating",
    "timestamp": "timestamp",
}


@dataclass(frozen=True)
class _Version:
    """What the fields of one year's files are called."""

    origin: str
    meta: str  # file
    reviews: Mapping[str, str]  # ours -> theirs
    author: pa.Field
    categories: pa.Field
    unit: str = "s"  # of a timestamp


_2014 = _Version(
    "download both of 'Books' from https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html",
    "meta_Books.json.gz",
    _REVIEWS,
    pa.field("brand", _TEXT),
    pa.field("categories", pa.list_(_PATH)),
)
_2018 = _Version(
    "download both of 'Books' from https://nijianmo.github.io/amazon/",
    "meta_Books.json.gz",
    _REVIEWS,
    pa.field("brand", _TEXT),
    pa.field("category", _PATH),
)
_2023 = _Version(
    "download both of 'Books' from https://amazon-reviews-2023.github.io/",
    "meta_Books.jsonl.gz",
    _REVIEWS_2023,
    pa.field("author", pa.struct([("name", _TEXT)])),
    pa.field("categories", _PATH),
    unit="ms",
)
_PUBLISHED = (
    ("Amazon-Books 2014, 5-core", "reviews_Books_5.json.gz", _2014),
    ("Amazon-Books 2014", "reviews_Books.json.gz", _2014),
    ("Amazon-Books 2018, 5-core", "Books_5.json.gz", _2018),
    ("Amazon-Books 2018", "Books.json.gz", _2018),
    ("Amazon-Books 2023", "Books.jsonl.gz", _2023),
)
_DATA_SETS = [
    DataSet(name, version.origin, {"items": version.meta, "interactions": reviews})
    for name, reviews, version in _PUBLISHED
]
_VERSIONS = {name: version for name, _, version in _PUBLISHED}


def read_amazon_books(settings: CatalogSettings) -> RawTables:
    """Read whichever Amazon-Books lies in `catalog.path`.

    Of reviews of one user, book and second the first is kept, and of books of one id; a title that
    is a script of a web page is dropped. The log counts all three.

    Raises:
        DataError: none lies there, or a file is missing, damaged or has lines that are no records.
    """
    data_set, files = _identified(settings)
    version = _VERSIONS[data_set.name]
    interactions, reviews = _read_reviews(files["interactions"], version)
    rated = pc.unique(interactions["item_id"]).drop_null()
    items, books = _read_books(files["items"], version, rated)
    return RawTables(users_of(interactions), items, interactions, books + reviews)


def amazon_files(settings: CatalogSettings) -> list[Path]:
    """Every file that `read_amazon_books` reads.

    Raises:
        DataError: no Amazon-Books lies in `catalog.path`, or not all of it.
    """
    return list(_identified(settings)[1].values())


def _identified(settings: CatalogSettings) -> tuple[DataSet, dict[str, Path]]:
    assert settings.path is not None  # CatalogSettings checks it
    return identify(local_copy(settings.path), _DATA_SETS)


def _read_reviews(file: Path, version: _Version) -> tuple[pa.Table, tuple[LeftOut, ...]]:
    theirs = version.reviews
    schema = pa.schema([(theirs[ours], kind) for ours, kind in _TYPES.items()])
    raw = pa.concat_tables(some_rows(json_rows(file, schema, version.origin), file, version.origin))
    columns = {ours: raw[theirs[ours]] for ours in _TYPES}
    require_unit(columns["timestamp"], version.unit, file, version.origin)
    columns["timestamp"] = pc.divide(columns["timestamp"], TICKS[version.unit])
    every = our_table(columns, {}, "s", file, theirs)
    table = first_rows(every, ["user_id", "item_id", "timestamp"])
    if repeats := every.num_rows - table.num_rows:
        log.warning("%s: %d of %d reviews repeat another, left out", file, repeats, every.num_rows)
    return table, _repeats("interactions", every, table)


def _repeats(name: str, every: pa.Table, kept: pa.Table) -> tuple[LeftOut, ...]:
    repeats = every.num_rows - kept.num_rows
    return (LeftOut(name, "repeat an earlier row", repeats, every.num_rows),) if repeats else ()


def _read_books(
    file: Path, version: _Version, rated: pa.Array
) -> tuple[pa.Table, tuple[LeftOut, ...]]:
    """A row for every rated book."""
    key = version.reviews["item_id"]
    schema = pa.schema([(key, _TEXT), ("title", _TEXT), version.author, version.categories])
    wanted = set(rated.cast(_TEXT).to_pylist())
    parts, spoilt = [], 0
    for raw in some_rows(json_rows(file, schema, version.origin), file, version.origin):
        known = raw.filter(pa.array([book in wanted for book in raw[key].to_pylist()], pa.bool_()))
        texts = _texts(known, version)
        spoilt += _num_spoilt(known["title"], texts["title"])
        parts.append(pa.table({"item_id": known[key].cast(pa.string()), **texts}))
    every = pa.concat_tables(parts)
    books = first_rows(every, ["item_id"])
    if repeats := every.num_rows - books.num_rows:
        log.warning("%s: %d of %d rated books repeat another", file, repeats, every.num_rows)
    if spoilt:
        remark = f"scripts of a page or longer than {LONGEST_TITLE} characters, left out"
        log.warning("%s: %d titles are %s", file, spoilt, remark)
    return _with_unknown(books, rated, file, key), _repeats("items", every, books)


def _texts(books: pa.Table, version: _Version) -> dict[str, pa.Array]:
    """Title, author and genre, tidied; bytes that are not UTF-8 are still there."""
    authors = books[version.author.name]
    if pa.types.is_struct(authors.type):
        authors = pc.struct_field(authors, "name")
    columns = {
        "title": map(title_of, _decoded(books["title"].to_pylist())),
        "author": map(author_of, _decoded(authors.to_pylist())),
        "genre": map(genre_of, _decoded(books[version.categories.name].to_pylist())),
    }
    return {name: pa.array(map(_encoded, texts), _TEXT) for name, texts in columns.items()}


def _decoded(value: Any) -> Any:
    """Bytes, or lists of them, as text."""
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")


def _with_unknown(books: pa.Table, rated: pa.Array, file: Path, key: str) -> pa.Table:
    """Books that the meta data lacks get a row without anything but their id."""
    unknown = rated.filter(pc.invert(pc.is_in(rated, value_set=books["item_id"])))
    if len(unknown):
        log.warning("%s: %d of %d rated books are not in it", file, len(unknown), len(rated))
    nothing = {name: pa.nulls(len(unknown), _TEXT) for name in ("title", "author", "genre")}
    every = pa.concat_tables([books, pa.table({"item_id": unknown, **nothing})])
    attributes = {name: every[name] for name in ("author", "genre")}
    columns = {"item_id": every["item_id"], "title": every["title"]}
    return our_table(columns, attributes, "s", file, {"item_id": key, "title": "title"})


def _num_spoilt(there: pa.ChunkedArray, kept: pa.Array) -> int:
    """How many titles were there and were not kept."""
    pairs = zip(_decoded(there.to_pylist()), kept.is_null().to_pylist(), strict=True)
    return sum(bool(title and title.strip()) and is_null for title, is_null in pairs)
