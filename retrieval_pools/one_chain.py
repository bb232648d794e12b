"""Drafts without branches: of every tree its most probable path, as drafting was before trees."""

from collections.abc import Sequence

import numpy as np

from pipeline.engine.types import ROOT, Drafter, DraftTree, RowView

_AROUND = 8  # nodes asked for per node of the path: it is that much of a tree at least


class OneChain:
    """Drafts a single path of another drafter's trees."""

    def __init__(self, drafter: Drafter, length: int) -> None:
        """Draft at most `length` nodes of what `drafter` gives, however many it may draft."""
        self._drafter = drafter
        self._length = length

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        """Give one path for every row."""
        length = min(self._length, max_nodes)
        trees = self._drafter.propose(rows, length * _AROUND)
        return [most_probable_path(tree, length) for tree in trees]

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """Hand on what came of the paths."""
        self._drafter.observe(trees, outcomes)


def most_probable_path(tree: DraftTree, length: int) -> DraftTree:
    """From the root on the likeliest child each time, `length` nodes at most."""
    keep, last = np.zeros(len(tree), bool), ROOT
    for _ in range(length):
        children = np.flatnonzero(tree.parents == last)
        if not len(children):
            break
        last = int(children[tree.survival[children].argmax()])
        keep[last] = True
    return tree.prefix(keep)
