"""Users and items -> what the LLM is asked, in the words of a framework's templates.

Two texts, the user's preferences and the item's facts; user and item are never asked about
together.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import hashlib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import PromptSettings
from pipeline.errors import DataError
from pipeline.rating_words import RatingWords
from pipeline.row_batches import Rows
from pipeline.templates import Templates, line_of

TITLE_CHARS = 150
ATTRIBUTE_CHARS = 300
CATEGORY_CHARS = 40

_CATEGORY = ("genre", "category")  # attributes that say what an item is, best first
_CATEGORIES = "genres"  # of which the first serves where there is no other

Kind = Literal["user", "item"]


@dataclass(frozen=True)
class Prompt:
    """What is asked about one entity, and how much of the past it shows."""

    kind: str  # user | item
    entity_id: str
    text: str
    source_events: int  # interactions shown
    latest_source: int  # timestamp of the latest of them, 0 if none


class Prompts:
    """What the LLM is asked about every user and item, made when it is asked for.

    It holds the catalog, not the texts: those of a million users take gigabytes. Only interactions
    whose split is `knowledge` are looked at, whatever the caller hands over: what is asked cannot
    know a CTR row. `asof` is the timestamp of the latest of them, 0 if there is none.

    Args:
        users: schema USERS.
        items: schema ITEMS; it must hold every item of the users' past.
        interactions: schema INTERACTIONS, sorted as that schema says.
        settings: domain, and how many of the latest interactions a user's prompt shows.
        templates: the wording.
        ratings: all of the past, where `interactions` holds those of a few users only (then
            `asof` is of these).

    Raises:
        DataError: a past interaction names an item that `items` lacks.
    """

    def __init__(
        self,
        users: pa.Table,
        items: pa.Table,
        interactions: pa.Table,
        settings: PromptSettings,
        templates: Templates,
        ratings: pa.ChunkedArray | None = None,
    ) -> None:
        self._settings = settings
        self._templates = templates
        self._compiled = {kind: templates.compiled(kind) for kind in ("user", "item")}
        self._words = {"domain": settings.domain, **asdict(templates.words(settings.domain))}
        self._tables = {"user": Rows(users), "item": Rows(items)}
        self._ids = {"user": users["user_id"], "item": items["item_id"]}
        self._titles = [_title(title) or "untitled" for title in items["title"].to_pylist()]
        self._categories = _Categories(items["attributes"])
        past = interactions.filter(pc.equal(interactions["split"], "knowledge"))
        self._history = _History.of(users, items, past)
        self._in_words = RatingWords.of(past["rating"] if ratings is None else ratings)
        # Groups and pools see all of the past, so a text may owe something to any of it.
        self.asof: int = pc.max(past["timestamp"]).as_py() or 0

    def count(self, kind: Kind) -> int:
        """How many users or items there are."""
        return len(self._ids[kind])

    def places(self, kind: Kind, entity_ids: pa.Array) -> pa.Array:
        """Where entities stand in the catalog: int32, null for one that stands nowhere."""
        return pc.index_in(entity_ids, value_set=self._ids[kind])

    def rows(self, kind: Kind, entity_ids: pa.Array) -> np.ndarray:
        """Where entities stand in the catalog: (entities,) int64.

        Raises:
            DataError: one stands nowhere.
        """
        rows = self.places(kind, entity_ids)
        if rows.null_count:
            ghost = entity_ids.filter(pc.is_null(rows))[0].as_py()
            raise DataError(f"groups names {kind} {ghost!r}, which is not in the catalog")
        return rows.to_numpy(zero_copy_only=False).astype(np.int64)

    def take(self, kind: Kind, rows: np.ndarray) -> list[Prompt]:
        """What is asked about the users or the items in `rows`, (entities,) int64 of the catalog.

        A user is asked for preferences, an item for facts.
        """
        entities = self._tables[kind].take(rows).to_pylist()
        if kind == "item":
            return [self._about_item(item) for item in entities]
        return [self._about_user(*one) for one in zip(rows.tolist(), entities, strict=True)]

    def _about_item(self, item: dict[str, Any]) -> Prompt:
        attributes = dict(item["attributes"])
        if "genres" in attributes:
            attributes.pop("genre", None)  # only the first of them
        text = self._rendered(
            "item",
            item["item_id"],
            title=_title(item["title"]),
            attributes=_lines(attributes.items(), "{}: {}"),
        )
        return Prompt("item", item["item_id"], text, 0, 0)

    def _about_user(self, row: int, user: dict[str, Any]) -> Prompt:
        history = self._history
        shown = history.latest(row, self._settings.history_limit)
        text = self._rendered(
            "user",
            user["user_id"],
            attributes=_lines(user["attributes"], "{} {}"),
            history=[
                (self._titles[history.items[one]], self._in_words(history.ratings[one]))
                for one in shown
            ],
            categories=[self._categories.of(history.items[one]) for one in shown],
        )
        latest = int(history.timestamps[shown[-1]]) if len(shown) else 0
        return Prompt("user", user["user_id"], text, len(shown), latest)

    def _rendered(self, kind: Kind, entity: str, **facts: Any) -> str:
        """The template of a kind, filled in.

        Raises:
            DataError: it cannot be, for this entity.
        """
        try:
            return self._compiled[kind].render(**self._words, **facts)
        except Exception as error:  # of any expression that somebody wrote
            file = self._templates.file(kind)
            raise DataError(
                f"{file}, line {line_of(error, file)}: it cannot be filled in for {kind} "
                f"{entity!r}: {error}; mend the template"
            ) from error


class _Categories:
    """The category of every item as a few words; each spelling is held once."""

    def __init__(self, attributes: pa.ChunkedArray) -> None:
        found = [pc.map_lookup(attributes, name, "first") for name in (*_CATEGORY, _CATEGORIES)]
        found[-1] = pc.list_element(pc.split_pattern(found[-1], ","), 0)
        values = pc.fill_null(pc.coalesce(*found), "").combine_chunks().dictionary_encode()
        self._places = values.indices.to_numpy()
        self._spelled = [_clean(word, CATEGORY_CHARS) for word in values.dictionary.to_pylist()]

    def of(self, item: int) -> str:
        """By the item's row; "" if it has none."""
        return self._spelled[self._places[item]]


def build_prompts(
    kind: Kind,
    users: pa.Table,
    items: pa.Table,
    interactions: pa.Table,
    settings: PromptSettings,
    templates: Templates,
) -> list[Prompt]:
    """All prompts of a small catalog's users or items, in the order of its table; see `Prompts`."""
    prompts = Prompts(users, items, interactions, settings, templates)
    return prompts.take(kind, np.arange(prompts.count(kind)))


def prompt_hash(text: str) -> str:
    """A short stable hash, to tell whether an entity's prompt has changed."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _History:
    """The past by user and time: rows `starts[u] : starts[u + 1]` belong to user u."""

    items: np.ndarray  # (rows,) index into the items table
    ratings: np.ndarray  # (rows,)
    timestamps: np.ndarray  # (rows,)
    starts: np.ndarray  # (users + 1,)

    @staticmethod
    def of(users: pa.Table, items: pa.Table, past: pa.Table) -> "_History":
        past = past.filter(pc.is_in(past["user_id"], value_set=users["user_id"]))
        user = pc.index_in(past["user_id"], value_set=users["user_id"]).to_numpy()
        item = pc.index_in(past["item_id"], value_set=items["item_id"])
        if item.null_count:
            lost = past["item_id"].filter(pc.is_null(item))
            raise DataError(
                f"{len(lost):,} past interactions name items that the items table lacks, "
                f"e.g. {lost.slice(0, 3).to_pylist()}; run `laser catalog` again"
            )
        times = past["timestamp"].to_numpy()
        order = np.lexsort((times, user))  # stable: ties keep the table's order, by item id
        starts = np.searchsorted(user[order], np.arange(users.num_rows + 1))
        return _History(
            item.to_numpy()[order], past["rating"].to_numpy()[order], times[order], starts
        )

    def latest(self, user: int, limit: int) -> range:
        end = int(self.starts[user + 1])
        return range(max(int(self.starts[user]), end - limit), end)


def _lines(attributes: Iterable[tuple[str, str]], form: str) -> list[str]:
    """Attributes as the prompt shows them: `favourite_colour` reads `favourite colour`."""
    return [
        form.format(_clean(name, TITLE_CHARS).replace("_", " "), _clean(value, ATTRIBUTE_CHARS))
        for name, value in attributes
    ]


# Blanks, control and invisible characters; a bracket that could open a tag of a chat template.
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060\ufeff]+")
_TAG = re.compile(r"<(?=[|/A-Za-z])")


def _title(text: str) -> str:
    return _clean(text, TITLE_CHARS)


def _clean(text: str, limit: int) -> str:
    """One line of printable text, at most `limit` characters."""
    text = _TAG.sub("< ", _BLANK.sub(" ", text)).strip()
    return text[:limit].rstrip()
