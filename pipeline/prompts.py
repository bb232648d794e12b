"""Users and items -> what the LLM is asked, after KAR (Xi et al., arXiv 2306.10933).

KAR's factorisation prompting: two texts, the user's preferences and the item's facts, each steered
by a list of factors that matter in the domain; user and item are never asked about together.

The constant part of a prompt (task and factors) comes first and is the same for all prompts of a
kind, so that the engine computes it once; the entity comes last.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jinja2 import Environment, StrictUndefined

from pipeline.config import PromptSettings
from pipeline.errors import DataError

TITLE_CHARS = 150
ATTRIBUTE_CHARS = 300

Kind = Literal["user", "item"]


@dataclass(frozen=True)
class Prompt:
    """What is asked about one entity, and how much of the past it shows."""

    kind: str  # user | item
    entity_id: str
    text: str
    source_events: int  # interactions shown
    latest_source: int  # timestamp of the latest of them, 0 if none


@dataclass(frozen=True)
class _Domain:
    person: str
    factors: str


_DOMAINS = {
    "movie": _Domain(
        "viewer",
        "genre, directors and actors, period and country, characters, plot, mood, awards, "
        "production, soundtrack",
    ),
    "book": _Domain(
        "reader",
        "genre, author, writing style, themes, characters, setting and period, length, mood, "
        "acclaim",
    ),
}
_GENERAL = _Domain(
    "user",
    "type and purpose, maker or author, style, main features, quality, price level, occasion, "
    "audience",
)

_ENVIRONMENT = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)

# The wording was chosen by reading what a 135M model makes of it: it needs a plain order at the
# end; a colon to complete ("The viewer's taste:") makes it repeat the list.
_USER_TEXT = """\
Analyze a {{ person }}'s {{ domain }} preferences. Consider: {{ factors }}. \
Explain briefly which kinds of {{ domain }} the {{ person }} likes and which not, \
in 3-4 sentences of plain text.

{% if attributes or not history %}
{{ person | capitalize }}: {{ attributes | join(", ") or "nothing is known" }}
{% endif %}
{% if history %}
Ratings by the {{ person }}, oldest first:
{% for title, stars in history %}
{{ title }}, {{ stars }}
{% endfor %}
{% endif %}

Describe this {{ person }}'s {{ domain }} preferences now."""

_ITEM_TEXT = """\
Describe {{ "an" if domain[:1] in "aeiouAEIOU" else "a" }} {{ domain }} for a recommender. \
Cover: {{ factors }}. Write 3-4 sentences of plain text.

{{ domain[:1] | upper }}{{ domain[1:] }}: {{ title or "untitled" }}
{% for attribute in attributes %}
{{ attribute }}
{% endfor %}

Describe this {{ domain }} now."""

_USER = _ENVIRONMENT.from_string(_USER_TEXT)
_ITEM = _ENVIRONMENT.from_string(_ITEM_TEXT)


class Prompts:
    """What the LLM is asked about every user and item, made when it is asked for.

    It holds the catalog, not the texts: those of a million users take gigabytes. Only interactions
    whose split is `knowledge` are looked at, whatever the caller hands over: what is asked cannot
    know a CTR row.

    Args:
        users: schema USERS.
        items: schema ITEMS; it must hold every item of the users' past.
        interactions: schema INTERACTIONS, sorted as that schema says.
        settings: domain, and how many of the latest interactions a user's prompt shows.

    Raises:
        DataError: a past interaction names an item that `items` lacks.
    """

    def __init__(
        self, users: pa.Table, items: pa.Table, interactions: pa.Table, settings: PromptSettings
    ) -> None:
        self._settings = settings
        self._tables = {"user": _Rows(users), "item": _Rows(items)}
        self._ids = {"user": users["user_id"], "item": items["item_id"]}
        self._titles = [_title(title) or "untitled" for title in items["title"].to_pylist()]
        past = interactions.filter(pc.equal(interactions["split"], "knowledge"))
        self._history = _History.of(users, items, past)

    def count(self, kind: Kind) -> int:
        """How many users or items there are."""
        return len(self._ids[kind])

    def rows(self, kind: Kind, entity_ids: pa.Array) -> np.ndarray:
        """Where entities stand in the catalog: (entities,) int64.

        Raises:
            DataError: one stands nowhere.
        """
        rows = pc.index_in(entity_ids, value_set=self._ids[kind])
        if rows.null_count:
            ghost = entity_ids.filter(pc.is_null(rows))[0].as_py()
            raise DataError(f"groups names {kind} {ghost!r}, which is not in the catalog")
        return rows.to_numpy(zero_copy_only=False).astype(np.int64)

    def take(self, kind: Kind, rows: np.ndarray) -> list[Prompt]:
        """What is asked about the users or the items in `rows`, (entities,) int64 of the catalog.

        A user is asked for preferences, an item for facts.
        """
        entities = self._tables[kind].take(rows)
        if kind == "item":
            return [self._about_item(item) for item in entities]
        return [self._about_user(*one) for one in zip(rows.tolist(), entities, strict=True)]

    def _about_item(self, item: dict[str, Any]) -> Prompt:
        domain = self._settings.domain
        attributes = dict(item["attributes"])
        if "genres" in attributes:
            attributes.pop("genre", None)  # only the first of them
        text = _ITEM.render(
            domain=domain,
            factors=_domain(domain).factors,
            title=_title(item["title"]),
            attributes=_lines(attributes.items(), "{}: {}"),
        )
        return Prompt("item", item["item_id"], text, 0, 0)

    def _about_user(self, row: int, user: dict[str, Any]) -> Prompt:
        history, domain = self._history, _domain(self._settings.domain)
        shown = history.latest(row, self._settings.history_limit)
        text = _USER.render(
            domain=self._settings.domain,
            person=domain.person,
            factors=domain.factors,
            attributes=_lines(user["attributes"], "{} {}"),
            history=[
                (self._titles[history.items[one]], _stars(history.ratings[one])) for one in shown
            ],
        )
        latest = int(history.timestamps[shown[-1]]) if len(shown) else 0
        return Prompt("user", user["user_id"], text, len(shown), latest)


class _Rows:
    """Rows of a table by number, batch by batch: all attributes may be too many for one array."""

    def __init__(self, table: pa.Table) -> None:
        self._batches = table.to_batches()
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def take(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """The given rows, in their order."""
        found: list[dict[str, Any]] = [{}] * len(rows)
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for owner in np.unique(owners).tolist():
            places = np.flatnonzero(owners == owner)
            own = self._batches[owner].take(pa.array(rows[places] - self._starts[owner]))
            for place, row in zip(places.tolist(), own.to_pylist(), strict=True):
                found[place] = row
        return found


def build_prompts(
    kind: Kind, users: pa.Table, items: pa.Table, interactions: pa.Table, settings: PromptSettings
) -> list[Prompt]:
    """All prompts of a small catalog's users or items, in the order of its table; see `Prompts`."""
    prompts = Prompts(users, items, interactions, settings)
    return prompts.take(kind, np.arange(prompts.count(kind)))


def templates_hash() -> str:
    """Identity of the wording: changes with this file's templates and word lists."""
    parts = [_USER_TEXT, _ITEM_TEXT, repr(_DOMAINS), repr(_GENERAL)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def prompt_hash(text: str) -> str:
    """A short stable hash, to tell whether an entity's prompt has changed."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _domain(name: str) -> _Domain:
    return _DOMAINS.get(name.lower(), _GENERAL)


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
                f"e.g. {lost.slice(0, 3).to_pylist()}; run build_catalog again"
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


def _stars(rating: float) -> str:
    return f"{rating:g} star" if rating == 1 else f"{rating:g} stars"


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
