"""What lists are worth and what they take: found once for all events, timed in turns for some."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from jobs.generative_events import Measured
from pipeline.generative.code_tree import NONE
from pipeline.generative.drafters import Requests
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.methods import Answer, Search
from pipeline.generative.recommender import Recommender

log = logging.getLogger("jobs.generative_measurement")

_BATCH = 64  # events whose lists are found together
_WARM_UP = 1  # searches before the clock starts


@dataclass(frozen=True)
class Ready:
    """A way to recommend, ready to be asked."""

    search: Search
    model: Recommender
    excludes: bool = True  # what the user liked before; where anything may be written, nothing is


@dataclass(frozen=True)
class Lists:
    """Lists of all events, the best first."""

    items: np.ndarray  # (n, k) int64, -1 for nothing or what is no item
    scores: np.ndarray  # (n, k) float32
    calls: np.ndarray  # (n,) int64
    scored: np.ndarray  # (n,) int64, nodes
    accepted: np.ndarray  # (n,) int64, drafted levels, or items
    rounds: np.ndarray  # (n,) int64
    valid_share: float  # of all ids found, those of items


def find_lists(ready: Ready, events: Measured, codes: np.ndarray, items: ItemTrie) -> Lists:
    """Lists of all events."""
    parts = [
        ready.search(_requests(ready, events, rows, codes))
        for rows in np.array_split(np.arange(len(events)), max(1, len(events) // _BATCH))
    ]
    return _joined(parts, items)


def _joined(parts: Sequence[Answer], items: ItemTrie) -> Lists:
    found = [part.found for part in parts]
    nodes, scores, calls, scored, accepted = (
        torch.cat([getattr(one, name) for one in found]).cpu().numpy()
        for name in ("nodes", "scores", "calls", "scored", "accepted")
    )
    is_found = scores > -np.inf
    is_item = is_found & (nodes != NONE)
    first = items.items_at(np.where(is_item, nodes, items.first_leaf).ravel(), 1)
    return Lists(
        np.where(is_item, first.reshape(nodes.shape), -1),
        scores,
        calls,
        scored,
        accepted,
        torch.cat([part.rounds for part in parts]).cpu().numpy(),
        float(is_item.sum() / max(is_found.sum(), 1)),
    )


def milliseconds(
    arms: Mapping[str, Ready], events: Measured, codes: np.ndarray, batch: int, users: int
) -> dict[str, np.ndarray]:
    """Milliseconds a user in batches of `batch`, of each arm: (batches,).

    All arms take their turn on a batch before the next comes, the first one last on the next.
    """
    names = list(arms)
    starts = range(0, max(min(users, len(events)) - batch, 0) + 1, batch)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for number, start in enumerate(starts):
        rows = np.arange(start, min(start + batch, len(events)))
        for name in names[number % len(names) :] + names[: number % len(names)]:
            requests = _requests(arms[name], events, rows, codes)
            for _ in range(_WARM_UP if not number else 0):
                arms[name].search(requests)
            spent[name].append(_seconds(arms[name], requests) * 1e3 / len(rows))
    return {name: np.array(own) for name, own in spent.items()}


def _requests(ready: Ready, events: Measured, rows: np.ndarray, codes: np.ndarray) -> Requests:
    requests = events.requests(rows, codes, ready.model)
    return requests if ready.excludes else requests._replace(excluded=None)


def _seconds(ready: Ready, requests: Requests) -> float:
    _wait(ready.model.device)
    began = time.perf_counter()
    ready.search(requests)
    _wait(ready.model.device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
