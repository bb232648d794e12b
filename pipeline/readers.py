"""Raw files -> three tables with our column names and types; nothing is judged here.

`catalog.source` says what they are: the user's own tables, or a published data set as it is
distributed.
"""

from pathlib import Path

from pipeline.amazon_books import amazon_files, read_amazon_books
from pipeline.catalog_config import CatalogSettings
from pipeline.movielens import movielens_files, read_movielens
from pipeline.own_tables import own_files, read_own_tables
from pipeline.raw_tables import RawTables

_SOURCES = {
    "tables": (read_own_tables, own_files),
    "movielens": (read_movielens, movielens_files),
    "amazon_books": (read_amazon_books, amazon_files),
}


def read_raw(settings: CatalogSettings) -> RawTables:
    """Read the three tables of `settings.source`.

    Raises:
        DataError: a file is missing or unreadable, or lacks a column, or a column cannot be what it
            should be; all tables are looked at.
        ConfigError: `columns` or `attributes` name what a table cannot have.
    """
    read, _ = _SOURCES[settings.source]
    return read(settings)


def raw_files(settings: CatalogSettings) -> list[Path]:
    """Every file that `read_raw` reads.

    Raises:
        DataError: there is none where the settings say.
    """
    _, files = _SOURCES[settings.source]
    return files(settings)
