"""Who guesses the beams that a model will choose."""

from typing import NamedTuple, Protocol

import torch

from pipeline.generative.beams import Beams, Draft, Level
from pipeline.generative.code_tree import NONE
from pipeline.generative.session import Histories, Session
from pipeline.generative.trie_tensors import TrieTensors


class Requests(NamedTuple):
    """What is asked for a batch of users."""

    histories: Histories
    items: torch.Tensor  # (users, most) int64, items of the histories, oldest first, padded with -1
    seeds: torch.Tensor  # (users,) int64, of whatever is drawn
    excluded: torch.Tensor | None = None  # (users, leaves) bool, never recommended to the user


class Proposer(Protocol):
    """A drafter at work on one batch."""

    def propose(self, session: Session, beams: Beams, trie: TrieTensors) -> Draft:
        """Guess what follows the beams: at least a code less than what completes all ids."""
        ...

    def narrow(self, rows: torch.Tensor) -> None:
        """Go on with some of the users only."""
        ...


class Drafter(Protocol):
    """Makes proposers."""

    def begin(self, requests: Requests, trie: TrieTensors) -> Proposer:
        """Start on a batch."""
        ...


class NoDraft:
    """Nothing is guessed: beam search, a level a call."""

    def begin(self, requests: Requests, trie: TrieTensors) -> "NoDraft":
        """See `Drafter`."""
        return self

    def propose(self, session: Session, beams: Beams, trie: TrieTensors) -> Draft:
        """See `Proposer`."""
        return Draft([])

    def narrow(self, rows: torch.Tensor) -> None:
        """See `Proposer`."""


class ExhaustiveDraft:
    """All items below the beams, whole levels at a time, as long as they fit a budget.

    Needs no model, and every level that fits is accepted.
    """

    def __init__(self, most_nodes: int) -> None:
        """`most_nodes` per user and call."""
        self.most_nodes = most_nodes

    def begin(self, requests: Requests, trie: TrieTensors) -> "ExhaustiveDraft":
        """See `Drafter`."""
        return self

    def propose(self, session: Session, beams: Beams, trie: TrieTensors) -> Draft:
        """See `Proposer`."""
        nodes = beams.nodes.masked_fill(beams.scores == -torch.inf, NONE)
        levels: list[Level] = []
        room = self.most_nodes
        for _ in range(most_levels(beams, trie)):
            level = all_children(nodes, trie)
            counts = level.is_real.sum(1)
            fits = counts <= room
            if not fits.any():
                break
            level = level._replace(is_real=level.is_real & fits[:, None])
            levels.append(level)
            nodes = level.nodes.masked_fill(~level.is_real, NONE)
            room = room - counts
        return Draft(levels)

    def narrow(self, rows: torch.Tensor) -> None:
        """See `Proposer`."""


def most_levels(beams: Beams, trie: TrieTensors) -> int:
    """Levels that may be drafted: the last code of an id never is, no call would follow it."""
    return trie.levels - 1 - int(beams.depth.min())


def all_children(nodes: torch.Tensor, trie: TrieTensors) -> Level:
    """All that may follow `nodes` (users, n), moved to the front of as few columns as they need."""
    children = trie.children(nodes).flatten(1)  # (users, n * codes)
    is_real = children != NONE
    most = int(is_real.sum(1).max())
    order = is_real.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    found = children.gather(1, order)
    return Level(order % trie.num_codes, order // trie.num_codes, found, is_real.gather(1, order))
