"""Positive interactions as the edges of a user-item graph, and the part held out to judge it.

Plain numpy: the graph model, the metrics and the jobs all speak of the same `Edges`.
"""

from dataclasses import dataclass

import numpy as np

MIN_TO_HOLD_OUT = 5  # users with fewer edges keep all of them in the graph


@dataclass(frozen=True)
class Edges:
    """Pairs of a user and an item, as row numbers of their tables."""

    users: np.ndarray  # (edges,) int64
    items: np.ndarray  # (edges,) int64

    def __len__(self) -> int:
        return len(self.users)

    def select(self, chosen: np.ndarray) -> "Edges":
        """The edges at `chosen`, positions or a bool mask."""
        return Edges(self.users[chosen], self.items[chosen])

    def keys(self, num_items: int) -> np.ndarray:
        """One number per pair, ordered by user, then item: (edges,) int64."""
        return self.users * num_items + self.items


def unique_edges(edges: Edges, num_items: int) -> Edges:
    """The first occurrence of every pair, order kept; a doubled edge would bend the degrees."""
    _, first = np.unique(edges.keys(num_items), return_index=True)
    return edges.select(np.sort(first))


def hold_out_latest(edges: Edges, share: float) -> tuple[Edges, Edges]:
    """Split off the latest `share` of every user's edges: (training edges, validation edges).

    Edges come in the order of time, at least within each user. At least one edge is held out of a
    user with `MIN_TO_HOLD_OUT` edges or more, and none of the others.
    """
    order = np.argsort(edges.users, kind="stable")
    counts = np.bincount(edges.users)
    held_out = np.where(
        counts >= MIN_TO_HOLD_OUT, np.maximum(1, np.floor(counts * share)), 0
    ).astype(np.int64)
    ends = np.cumsum(counts)
    from_the_end = np.empty(len(edges), np.int64)  # 1 for the latest edge of a user
    from_the_end[order] = ends[edges.users[order]] - np.arange(len(edges))
    is_held_out = from_the_end <= held_out[edges.users]
    return edges.select(~is_held_out), edges.select(is_held_out)
