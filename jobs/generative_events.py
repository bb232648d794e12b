"""What ways to recommend are measured on: liked items of the test rows, and what is known before.

An event of an item that the recommender has trained on is warm, of any other cold. The history of
an event is all that its user liked before, whatever split it is of.
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


def draw_events(inputs: Inputs, trie: ItemTrie, most: int, length: int, seed: int) -> Measured:
    """At most `most` warm and `most` cold events of the split `test`.

    Args:
        inputs: log and codes.
        trie: of all items.
        most: of each kind, drawn among all.
        length: items of a history.
        seed: of the drawing.
    """
    events, rng = inputs.log.events("test"), np.random.default_rng(seed)
    is_warm = inputs.is_warm[events.items]
    kinds = (np.flatnonzero(is_warm), np.flatnonzero(~is_warm))
    rows = np.concatenate([rng.permutation(own)[:most] for own in kinds])
    rows = rng.permutation(rows)
    users, times = events.users[rows], events.times[rows]
    histories = inputs.log.before(users, times, length)
    excluded = _excluded(inputs, trie, Events(users, events.items[rows], times))
    return Measured(users, events.items[rows], is_warm[rows], histories, excluded)


def _excluded(inputs: Inputs, trie: ItemTrie, events: Events) -> np.ndarray:
    longest = int(np.diff(inputs.log.starts).max(initial=0))
    before = inputs.log.before(events.users, events.times, longest)
    leaf = trie.leaves_of(np.arange(len(inputs.codes))) - trie.first_leaf
    excluded = np.zeros((len(events.items), int(leaf.max()) + 1), bool)
    row, column = np.nonzero(before != NO_ITEM)
    excluded[row, leaf[before[row, column]]] = True
    return excluded


def popular_lists(inputs: Inputs, known: np.ndarray, events: Measured, k: int) -> np.ndarray:
    """The most liked items that each user has not liked yet: (n, k).

    `known` (any,) are the items of the events that may be known.
    """
    counts = np.bincount(known, minlength=len(inputs.codes))
    order = np.argsort(-counts, kind="stable")
    trie = ItemTrie(np.arange(len(inputs.codes)), inputs.codes, inputs.is_warm)
    leaf = (trie.leaves_of(order) - trie.first_leaf)[None]
    is_out = np.take_along_axis(events.excluded, np.broadcast_to(leaf, (len(events), leaf.size)), 1)
    place = np.argsort(is_out, axis=1, kind="stable")[:, :k]
    return order[place]
