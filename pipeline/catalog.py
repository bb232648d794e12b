"""Raw users, items and interactions -> the canonical catalog that every later stage reads."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.catalog_config import CatalogSettings
from pipeline.errors import DataError
from pipeline.raw_tables import LeftOut, RawTables
from pipeline.readers import read_raw
from pipeline.schemas import INTERACTIONS, ITEMS, USERS
from pipeline.splits import assign_splits
from pipeline.times import TICKS
from pipeline.usable_rows import usable_rows
from pipeline.validation import validate

LEFT_OUT = "left_out"  # fact of the dataset `interactions`: that of a `Catalog`

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Catalog:
    """Users and items in the order of their files; interactions by (timestamp, user, item)."""

    users: pa.Table  # schema USERS
    items: pa.Table  # schema ITEMS
    interactions: pa.Table  # schema INTERACTIONS
    left_out: tuple[LeftOut, ...] = ()  # rows of the raw tables that are not in these


def load_catalog(settings: CatalogSettings) -> Catalog:
    """Read, validate, cut to size, label and split.

    Raises:
        DataError: files cannot be read, rows are wrong (all problems listed), or the split would
            leave a part empty.
        ConfigError: the settings name columns that a table cannot have.
    """
    return make_catalog(read_raw(settings), settings)


def make_catalog(raw: RawTables, settings: CatalogSettings) -> Catalog:
    """As `load_catalog`, of tables that have been read.

    Raises:
        DataError: rows are wrong (all problems listed), or the split would leave a part empty.
    """
    if settings.unusable_rows == "drop":
        raw = usable_rows(raw, settings)
    validate(raw, settings.timestamp_unit)
    if settings.max_users or settings.max_items:
        raw = _densest(raw, settings)
    return Catalog(
        raw.users.select(USERS.names).cast(USERS),
        _titled(raw.items).select(ITEMS.names).cast(ITEMS),
        _finished(raw.interactions, settings),
        raw.left_out,
    )


def _finished(interactions: pa.Table, settings: CatalogSettings) -> pa.Table:
    """Seconds, order, label and split."""
    seconds = pc.divide(interactions["timestamp"], TICKS[settings.timestamp_unit])
    label = labels_of(interactions["rating"], settings.positive_rating)
    table = interactions.drop_columns("timestamp").append_column("timestamp", seconds)
    table = table.append_column("label", label).sort_by(
        [(key, "ascending") for key in ("timestamp", "user_id", "item_id")]
    )
    table = table.append_column("split", assign_splits(table, settings.split))
    return table.select(INTERACTIONS.names).cast(INTERACTIONS)


def labels_of(ratings: pa.ChunkedArray, positive_rating: float | None) -> pa.ChunkedArray:
    """1 where a rating is a like, else 0."""
    if positive_rating is None:
        return pa.chunked_array([pa.repeat(pa.scalar(1, pa.int8()), len(ratings))])
    return pc.greater_equal(ratings, positive_rating).cast(pa.int8())


def _titled(items: pa.Table) -> pa.Table:
    """A missing title becomes empty, because a catalog of millions always has some."""
    title = pc.fill_null(items["title"], "")
    missing = pc.sum(pc.equal(pc.utf8_trim_whitespace(title), "")).as_py()
    if missing:
        log.warning("items: %d of %d have no title", missing, items.num_rows)
    return items.set_column(items.column_names.index("title"), "title", title)


def _densest(raw: RawTables, settings: CatalogSettings) -> RawTables:
    """The most active users, then the items they rated most; whoever has rows left.

    It looks at all rows, the later ones too: a way to make a small catalog, not a protocol.
    """
    interactions = raw.interactions
    if settings.max_users:
        interactions = _most_frequent(interactions, "user_id", settings.max_users)
    if settings.max_items:
        interactions = _most_frequent(interactions, "item_id", settings.max_items)
    users = raw.users.filter(pc.is_in(raw.users["user_id"], interactions["user_id"]))
    items = raw.items.filter(pc.is_in(raw.items["item_id"], interactions["item_id"]))
    tables = {"users": users, "items": items, "interactions": interactions}
    reason = "are not of the most active users and their items (catalog.max_users, max_items)"
    left_out = tuple(
        LeftOut(name, reason, rows, rows + table.num_rows, is_asked=True)
        for name, table in tables.items()
        if (rows := getattr(raw, name).num_rows - table.num_rows)
    )
    return RawTables(**tables, left_out=raw.left_out + left_out)


def _most_frequent(interactions: pa.Table, key: str, limit: int) -> pa.Table:
    """Rows of the `limit` most frequent values of `key`; ties go to the smaller id."""
    counts = interactions.group_by(key).aggregate([([], "count_all")])
    counts = counts.sort_by([("count_all", "descending"), (key, "ascending")]).slice(0, limit)
    return interactions.filter(pc.is_in(interactions[key], value_set=counts[key]))


def interaction_rows(table: pa.Table, column: str, ids: pa.Array) -> pa.ChunkedArray:
    """Rows of `ids` that the users or items of INTERACTIONS stand in: (rows,) int64.

    Raises:
        DataError: an id is not among them.
    """
    rows = pc.index_in(table[column], value_set=ids)
    if rows.null_count:
        unknown = table[column].filter(pc.is_null(rows)).unique()
        raise DataError(
            f"interactions.{column}: {len(unknown)} ids are not in the catalog, such as "
            f"{unknown[:3].to_pylist()}; run `laser catalog` again"
        )
    return rows.cast(pa.int64())
