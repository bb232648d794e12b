"""What ways to recommend are measured on: liked items of the test rows, and what is known before.

An event of an item that the recommender has trained on is warm, of any other cold; both are later
than all that was trained on, also where `catalog.split.cold_items` puts earlier rows into `test`.
The history of an event is all that its user liked before, whatever split it is of.
"""

from typing import NamedTuple

import numpy as np
import torch

from jobs.train_recommender import Inputs
from pipeline.generative.drafters import Requests
from pipeline.generative.event_log import NO_ITEM, Events, as_histories
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.recommender import Recommender


class Measured(NamedTuple):
    """Events, warm and cold ones mixed."""

    users: np.ndarray  # (n,) int64
    targets: np.ndarray  # (n,) int64, rows of the codes
    is_warm: np.ndarray  # (n,) bool
    histories: np.ndarray  # (n, most) int64, NO_ITEM at the end
    excluded: np.ndarray  # (n, leaves) bool, leaves of what the user liked before

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: np.ndarray) -> "Measured":
        """Some of the events; `rows` are numbers or a mask."""
        return Measured(*(own[rows] for own in self))

    def requests(self, rows: np.ndarray, codes: np.ndarray, model: Recommender) -> Requests:
        """What is asked for some events."""
        items = self.histories[rows]
        device = model.device
        return Requests(
            as_histories(items, codes, model.num_codes, device),
            torch.as_tensor(items, device=device),
            torch.as_tensor(rows, device=device),
            torch.as_tensor(self.excluded[rows], device=device),
        )


def draw_events(
    inputs: Inputs, trie: ItemTrie, after: int, most: int, length: int, seed: int
) -> Measured:
    """At most `most` events of the split `test`, drawn among all: cold ones are as many as there.

    Args:
        inputs: log and codes.
        trie: of all items.
        after: timestamp of the last event that was trained on.
        most: events.
        length: items of a history.
        seed: of the drawing.
    """
    events = inputs.log.events("test")
    later = np.flatnonzero(events.times > after)
    rows = np.random.default_rng(seed).permutation(later)[:most]
    users, times, targets = events.users[rows], events.times[rows], events.items[rows]
    histories = inputs.log.before(users, times, length)
    excluded = _excluded(inputs, trie, Events(users, targets, times))
    return Measured(users, targets, inputs.is_warm[targets], histories, excluded)


def _excluded(inputs: Inputs, trie: ItemTrie, events: Events) -> np.ndarray:
    longest = int(np.diff(inputs.log.starts).max(initial=0))
    before = inputs.log.before(events.users, events.times, longest)
    leaf = trie.leaves_of(np.arange(len(inputs.codes))) - trie.first_leaf
    excluded = np.zeros((len(events.items), int(leaf.max()) + 1), bool)
    row, column = np.nonzero(before != NO_ITEM)
    excluded[row, leaf[before[row, column]]] = True
    return excluded


def popular_lists(trie: ItemTrie, known: np.ndarray, events: Measured, k: int) -> np.ndarray:
    """The most liked items of `trie` that each user has not liked yet: (n, k).

    `known` (any,) are the items of the events that may be known.
    """
    order = np.argsort(-np.bincount(known, minlength=len(trie)), kind="stable")
    leaf = (trie.leaves_of(order) - trie.first_leaf)[None]
    is_out = np.take_along_axis(events.excluded, np.broadcast_to(leaf, (len(events), leaf.size)), 1)
    place = np.argsort(is_out, axis=1, kind="stable")[:, :k]
    return order[place]
