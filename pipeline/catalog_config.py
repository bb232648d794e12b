"""The section of a config that says where the catalog comes from, and how it is split."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.locations import Location
from pipeline.settings import Count, Settings, Share


class TableSettings(Settings):
    """One of the user's own tables: a Parquet, CSV or TSV file, or a folder of Parquet files."""

    path: Location  # local, or a URI
    # Of a text table: between its columns. None: a comma, a tab in `.tsv`.
    separator: Annotated[
        Literal[",", ";", "\t", "|"] | None, Field(exclude_if=lambda given: given is None)
    ] = None
    columns: dict[str, str] = {}  # our column -> their column, where the names differ
    attributes: list[str] = []  # their columns kept as attributes, under their own names


class TablesSettings(Settings):
    """The user's own catalog."""

    users: TableSettings | None = None  # None: whoever has an interaction, without attributes
    items: TableSettings
    interactions: TableSettings


class SplitSettings(Settings):
    """How interactions become past (`knowledge`) and CTR rows (`train`, `valid`, `test`).

    `global_time` cuts one clock at the three shares. `per_user_prefix` (KAR) gives the first
    min(ceil(n / 2), history_limit) interactions of each user to `knowledge`, and the rest to
    train, valid or test by user; it is not time-safe across users.
    """

    # global_time: one clock; per_user_prefix: each user's own.
    protocol: Literal["global_time", "per_user_prefix"] = "global_time"
    history_limit: Count = 30  # per_user_prefix only: the most of a user's events that are past
    knowledge_share: Share = 0.5  # global_time only
    train_share: Share = 0.8  # of the CTR rows (or of the users)
    valid_share: Share = 0.1  # of the CTR rows (or of the users); the rest is test
    # Items drawn at random all of whose interactions become test rows, whenever they were: to learn
    # what a model that has never seen an item makes of it. Not for the CTR check. 0 is left out
    # of what a dataset is made from, so that runs from before there was a choice stay current.
    cold_items: Annotated[float, Field(ge=0.0, lt=1.0, exclude_if=lambda share: share == 0.0)] = 0.0

    @model_validator(mode="after")
    def _shares_leave_a_test_part(self) -> "SplitSettings":
        if self.train_share + self.valid_share >= 1.0:
            raise ValueError("train_share + valid_share must stay below 1 to leave a test part")
        return self


class CatalogSettings(Settings):
    """Where users, items and interactions come from."""

    # tables: your own; else files of a published data set.
    source: Literal["movielens", "amazon_books", "tables"] = "tables"
    path: Location | None = None  # movielens and amazon_books: the folder of the files as published
    tables: TablesSettings | None = None  # source: tables
    max_users: Count | None = None  # keep the most active users only
    max_items: Count | None = None  # keep the most rated items only
    # label = rating >= positive_rating. null: there are no ratings, and every interaction is a like
    positive_rating: float | None = 4.0
    timestamp_unit: Literal["s", "ms", "us"] = "s"  # source: tables
    # Rows that no run can use, see `pipeline.usable_rows`: the catalog is refused, or goes on
    # without them.
    unusable_rows: Annotated[
        Literal["refuse", "drop"], Field(exclude_if=lambda choice: choice == "refuse")
    ] = "refuse"
    # unusable_rows: drop: of a table's rows, the most that may be left out; more is refused, as
    # something else is wrong then.
    max_unusable_share: Annotated[Share, Field(exclude_if=lambda share: share == 0.1)] = 0.1
    split: SplitSettings = SplitSettings()

    @model_validator(mode="after")
    def _source_is_given(self) -> "CatalogSettings":
        if self.source == "tables":
            if self.tables is None:
                raise ValueError("source: tables needs catalog.tables; `laser init` writes them")
            return self
        if self.path is None:
            raise ValueError(f"source: {self.source} needs catalog.path")
        if self.timestamp_unit != "s":
            raise ValueError(f"source: {self.source} knows its unit; remove catalog.timestamp_unit")
        return self
