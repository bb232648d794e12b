"""What users liked, in order of time: histories that a recommender reads, and what came next."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pipeline.catalog import interaction_rows
from pipeline.generative.session import Histories
from pipeline.schemas import SPLITS

NO_ITEM = -1


class Events(NamedTuple):
    """Interactions to be foretold."""

    users: np.ndarray  # (n,) int64
    items: np.ndarray  # (n,) int64
    times: np.ndarray  # (n,) int64


@dataclass(frozen=True)
class EventLog:
    """Liked items by user, the oldest first. Users and items are rows of the catalog."""

    starts: np.ndarray  # (users + 1,) int64
    items: np.ndarray  # (events,) int64
    times: np.ndarray  # (events,) int64, seconds
    splits: np.ndarray  # (events,) int8, place in SPLITS

    @property
    def num_users(self) -> int:
        """Users of the catalog, those without events included."""
        return len(self.starts) - 1

    @property
    def users(self) -> np.ndarray:
        """User of every event: (events,) int64."""
        return np.repeat(np.arange(self.num_users), np.diff(self.starts))

    def of_splits(self, splits: tuple[str, ...]) -> "EventLog":
        """The events of some splits only."""
        keep = np.isin(self.splits, [SPLITS.index(name) for name in splits])
        counts = np.bincount(self.users[keep], minlength=self.num_users)
        starts = np.concatenate([[0], np.cumsum(counts)])
        return EventLog(starts, self.items[keep], self.times[keep], self.splits[keep])

    def events(self, split: str) -> Events:
        """All events of a split, by user."""
        rows = np.flatnonzero(self.splits == SPLITS.index(split))
        return Events(self.users[rows], self.items[rows], self.times[rows])

    def before(self, users: np.ndarray, times: np.ndarray, most: int) -> np.ndarray:
        """Latest `most` items that each of `users` (n,) liked before each of `times` (n,).

        Returns: (n, most) int64, the oldest first, NO_ITEM at the end. What happened in the very
        second is not before it.
        """
        clock = np.unique(self.times)
        key = self.users * (len(clock) + 1) + np.searchsorted(clock, self.times)
        wanted = users * (len(clock) + 1) + np.searchsorted(clock, times)
        stop = np.searchsorted(key, wanted)
        return self._latest(self.starts[users], stop, most)

    def latest(self, users: np.ndarray, most: int) -> np.ndarray:
        """Latest `most` items of each of `users` (n,): (n, most) int64, as `before` gives them."""
        return self._latest(self.starts[users], self.starts[users + 1], most)

    def _latest(self, start: np.ndarray, stop: np.ndarray, most: int) -> np.ndarray:
        start = np.maximum(start, stop - most)
        rows = start[:, None] + np.arange(most)
        is_own = rows < stop[:, None]
        if not len(self.items):
            return np.full(rows.shape, NO_ITEM)
        return np.where(is_own, self.items[np.minimum(rows, len(self.items) - 1)], NO_ITEM)


def read_event_log(interactions: pa.Table, user_ids: pa.Array, item_ids: pa.Array) -> EventLog:
    """The liked rows of INTERACTIONS.

    Raises:
        DataError: a row names a user or an item that the catalog lacks.
    """
    liked = interactions.filter(pc.equal(interactions["label"], 1))
    liked = liked.append_column("user", interaction_rows(liked, "user_id", user_ids))
    order = [(key, "ascending") for key in ("user", "timestamp", "item_id")]
    liked = liked.sort_by(order)
    users = liked["user"].to_numpy()
    starts = np.searchsorted(users, np.arange(len(user_ids) + 1))
    splits = pc.index_in(liked["split"], value_set=pa.array(SPLITS)).to_numpy().astype(np.int8)
    items = interaction_rows(liked, "item_id", item_ids).to_numpy()
    return EventLog(starts, items, liked["timestamp"].to_numpy(), splits)


def as_histories(
    items: np.ndarray, codes: np.ndarray, num_codes: int, device: torch.device | str = "cpu"
) -> Histories:
    """Token ids of histories.

    Args:
        items: rows of `codes`, the oldest first, NO_ITEM at the end: (users, most).
        codes: semantic ID of every item, (items, levels).
        num_codes: of a level.
        device: where to.
    """
    levels = codes.shape[1]
    bos = levels * num_codes
    lengths = (items != NO_ITEM).sum(1)
    most = int(lengths.max(initial=0))
    known = np.maximum(items[:, :most], 0)
    tokens = codes[known].astype(np.int64) + np.arange(levels) * num_codes  # (users, most, levels)
    tokens[np.arange(most) >= lengths[:, None]] = bos
    tokens = np.pad(
        tokens.reshape(len(items), most * levels), ((0, 0), (1, 0)), constant_values=bos
    )
    return Histories(
        torch.as_tensor(tokens, device=device),
        torch.as_tensor(1 + lengths * levels, device=device),
    )
