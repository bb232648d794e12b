"""The best items for a batch of users: a method's complete ids, as items the user may get."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pipeline.errors import DataError
from pipeline.generative.code_tree import NONE
from pipeline.generative.drafters import Requests
from pipeline.generative.event_log import NO_ITEM, as_histories
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.methods import METHODS, Answer, Parts
from pipeline.generative.recommender import Recommender
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative_config import RecommendationSettings

FULL, EXHAUSTED, UNFILLED = "full", "exhausted", "unfilled"  # exit reasons


class Catalog(NamedTuple):
    """Items that have a semantic ID."""

    codes: np.ndarray  # (items, levels) int32
    is_warm: np.ndarray  # (items,) bool
    withdrawn: np.ndarray  # (any,) int64, rows of `codes` that nobody gets


class Users(NamedTuple):
    """A batch."""

    histories: np.ndarray  # (users, most) int64 rows of `codes`, NO_ITEM at the end
    seen_by: np.ndarray  # (any,) int64, place in the batch
    seen: np.ndarray  # (any,) int64, an item that this user does not get
    seeds: np.ndarray  # (users,) int64


class Lists(NamedTuple):
    """Recommendations of a batch, the best first."""

    items: np.ndarray  # (users, top_k) int64, NO_ITEM at the end
    scores: np.ndarray  # (users, top_k) float32, mean log-probability of a code
    sources: np.ndarray  # (users, top_k) int64, place in LIST_SOURCES
    calls: np.ndarray  # (users,) int64
    nodes_scored: np.ndarray  # (users,) int64
    accepted_levels: np.ndarray  # (users,) int64
    rounds: np.ndarray  # (users,) int64
    valid_share: np.ndarray  # (users,) float64
    exit_reasons: list[str]


class ListMaker:
    """One model, catalog and method; any batch of users.

    Memory of a batch: keys and values of histories and beams (see `Session`), of every beam the
    log-probabilities and children of all codes, and for every user some 13 bytes per node of the
    trie while it is told what to leave out.
    """

    def __init__(
        self,
        model: Recommender,
        catalog: Catalog,
        settings: RecommendationSettings,
        folder_of: Callable[[str], Path],
    ) -> None:
        """`folder_of` a dataset of the run; see `methods`.

        Raises:
            DataError: the model does not write such ids, or all items are withdrawn.
        """
        _require_fit(model, catalog.codes)
        self._model, self._codes, self._settings = model, catalog.codes, settings
        numbers = np.arange(len(catalog.codes))
        self._every = ItemTrie(numbers, catalog.codes, catalog.is_warm)
        self._items = self._every.without(catalog.withdrawn)
        leaves = self._items.leaves_of(numbers) if len(self._items) else np.full(len(numbers), NONE)
        require_any(leaves != NONE)
        self._leaf = np.where(leaves == NONE, NONE, leaves - self._items.first_leaf)
        self._sizes = np.bincount(self._leaf[self._leaf != NONE])  # items of every leaf
        trie = trie_tensors(self._items, model.num_codes, model.device, settings.constrained)
        parts = Parts(model, self._items, trie, catalog.codes, settings, folder_of)
        self._search = METHODS[settings.method].begin(parts)

    def lists(self, users: Users) -> Lists:
        """Recommend to everybody of a batch."""
        device = self._model.device
        requests = Requests(
            as_histories(users.histories, self._codes, self._model.num_codes, device),
            torch.as_tensor(users.histories, device=device),
            torch.as_tensor(users.seeds, device=device),
            torch.as_tensor(self._excluded(users), device=device) if len(users.seen) else None,
        )
        return self._listed(self._search(requests), users)

    def _excluded(self, users: Users) -> np.ndarray:
        """Leaves all of whose items a user has seen: (users, leaves) bool."""
        leaf = self._leaf[users.seen]
        pair = np.unique(np.stack([users.seen_by, leaf, users.seen])[:, leaf != NONE], axis=1)
        flat, counts = np.unique(pair[0] * len(self._sizes) + pair[1], return_counts=True)
        is_out = np.zeros((len(users.histories), len(self._sizes)), bool)
        is_out.flat[flat[counts == self._sizes[flat % len(self._sizes)]]] = True
        return is_out

    def _listed(self, answer: Answer, users: Users) -> Lists:
        found, most = answer.found, int(self._sizes.max())
        count, width = found.nodes.shape
        nodes, scores = found.nodes.cpu().numpy(), found.scores.float().cpu().numpy()
        is_item = (nodes != NONE) & (scores > -np.inf)
        leaves = np.where(is_item, nodes, self._items.first_leaf)
        items = self._items.items_at(leaves.ravel(), most).reshape(count, width, most)
        items = np.where(is_item[..., None], items, NO_ITEM).reshape(count, width * most)
        items[self._is_seen(items, users)] = NO_ITEM
        # The best that are left, in the order found.
        place = (items == NO_ITEM).argsort(1, kind="stable")[:, : self._settings.top_k]
        beam = place // most
        chosen = np.take_along_axis(items, place, 1)
        sources = np.zeros_like(nodes) if answer.sources is None else answer.sources.cpu().numpy()
        reason = EXHAUSTED if self._settings.constrained else UNFILLED
        is_full = (chosen != NO_ITEM).sum(1) == self._settings.top_k
        return Lists(
            chosen,
            np.take_along_axis(scores, beam, 1) / self._model.levels,
            np.take_along_axis(sources, beam, 1),
            found.calls.cpu().numpy(),
            found.scored.cpu().numpy(),
            found.accepted.cpu().numpy(),
            answer.rounds.cpu().numpy(),
            self._valid_share(found.codes.cpu().numpy(), scores),
            answer.exit_reasons or [FULL if full else reason for full in is_full],
        )

    def _is_seen(self, items: np.ndarray, users: Users) -> np.ndarray:
        keys = np.arange(len(items))[:, None] * len(self._codes) + items
        return np.isin(keys, users.seen_by * len(self._codes) + users.seen) & (items != NO_ITEM)

    def _valid_share(self, codes: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Of the ids found, those of items, withdrawn ones included; 1 where nothing was found."""
        is_id = self._every.contains(codes.reshape(-1, codes.shape[2])).reshape(scores.shape)
        is_found = scores > -np.inf
        total = is_found.sum(1)
        return np.where(total, (is_id & is_found).sum(1) / np.maximum(total, 1), 1.0)


def require_any(may_be: np.ndarray) -> None:
    """Check that there is an item to recommend.

    Raises:
        DataError: there is none.
    """
    if not may_be.any():
        raise DataError(
            "recommendation.withdrawn names every item that has a semantic ID and is in the "
            "catalog, so there is nothing to recommend; correct the table, or run "
            "`laser semantic-ids` again if the catalog has other items now"
        )


def _require_fit(model: Recommender, codes: np.ndarray) -> None:
    levels, largest = codes.shape[1], int(codes.max(initial=0))
    if levels != model.levels or largest >= model.num_codes:
        raise DataError(
            f"the recommender writes ids of {model.levels} codes below {model.num_codes}, but "
            f"semantic_ids has {levels} codes up to {largest}; run `laser recommender` again"
        )
