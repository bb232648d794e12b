"""A few lists as titles, for the eye: what a user liked last, and what comes next."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from jobs.terminal_text import printable
from pipeline.parts import read_parts
from pipeline.schemas import RECOMMENDATIONS
from pipeline.store import Store

_USERS, _LIKED, _LISTED = 3, 3, 5


def examples(store: Store) -> Iterator[str]:
    """Lines about the first users who have a history and a list."""
    rows = read_parts(store.parts("recommendations")[:1], RECOMMENDATIONS)
    has_both = pc.and_(
        pc.greater(rows["source_events"], 0), pc.greater(pc.list_value_length(rows["item_ids"]), 0)
    )
    some = rows.filter(has_both).slice(0, _USERS)
    interactions = store.read("interactions", ["user_id", "item_id", "label", "timestamp"])
    items = store.read("items", ["item_id", "title"])
    for user, listed, asof in zip(
        *(some[name].to_pylist() for name in ("user_id", "item_ids", "asof")), strict=True
    ):
        own = pc.and_(pc.equal(interactions["user_id"], user), pc.equal(interactions["label"], 1))
        liked = interactions.filter(pc.and_(own, pc.less_equal(interactions["timestamp"], asof)))
        liked = liked.sort_by([("timestamp", "descending"), ("item_id", "descending")])
        before = _titles(liked["item_id"].to_pylist()[:_LIKED][::-1], items)
        told = f"user {user} liked {before}; next: {_titles(listed[:_LISTED], items)}"
        yield printable(told)


def _titles(ids: list[str], items: pa.Table) -> str:
    """Titles, or ids of what has none."""
    rows = pc.index_in(pa.array(ids, pa.string()), value_set=items["item_id"].combine_chunks())
    titles = items["title"].take(rows).to_pylist()
    return ", ".join(title or item for title, item in zip(titles, ids, strict=True))
