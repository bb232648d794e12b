"""Stretches of histories that a recommender is trained on."""

import numpy as np

from pipeline.generative.event_log import NO_ITEM, EventLog


def draw_windows(log: EventLog, most: int, seed: list[int]) -> np.ndarray:
    """Cut every history into stretches of `most` items, from a place drawn for each user.

    So an item stands at another place of its window in every epoch. Returns items (windows, most)
    int64, the oldest first, NO_ITEM at the end, in random order; every event stands in one of them.
    """
    rng = np.random.default_rng(seed)
    sizes = np.diff(log.starts)
    shift = rng.integers(0, most, len(sizes))  # places of the first window that stay empty
    shift[sizes <= most] = 0  # one window is enough: nothing is cut
    counts = -(-(sizes + shift) // most)  # windows of each user
    counts[sizes == 0] = 0
    user = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = log.starts[user] - shift[user] + number * most
    start = np.maximum(begin, log.starts[user])
    stop = np.minimum(begin + most, log.starts[user + 1])
    rows = start[:, None] + np.arange(most)
    items = log.items[np.minimum(rows, len(log.items) - 1)] if len(log.items) else rows
    return rng.permutation(np.where(rows < stop[:, None], items, NO_ITEM))
