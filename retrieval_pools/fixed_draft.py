"""Drafts of one size, as a chain or as a tree, whatever they are worth: without a budget."""

from collections.abc import Sequence

import numpy as np

from pipeline.engine.types import ROOT, Drafter, DraftTree, RowView

_AROUND = 8  # nodes asked for per node of a chain, so that all of it is among them


class FixedDraft:
    """The most probable nodes of another drafter, always as many, if there are so many."""

    def __init__(self, drafter: Drafter, size: int, is_chain: bool) -> None:
        """Draft `size` nodes of what `drafter` gives, all on one path if they are a chain.

        The trees of `drafter` must come in the order of their nodes' survival, as those from pools.
        """
        self._drafter = drafter
        self._size = size
        self._is_chain = is_chain

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        """Give one tree for every row."""
        size = min(self._size, max_nodes)
        if not self._is_chain:
            return self._drafter.propose(rows, size)
        trees = self._drafter.propose(rows, size * _AROUND)
        return [most_probable_path(tree, size) for tree in trees]

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """Hand on what came of them."""
        self._drafter.observe(trees, outcomes)


def most_probable_path(tree: DraftTree, length: int) -> DraftTree:
    """From the root on the likeliest child each time, `length` nodes at most.

    Nodes are in the order of their survival, so the likeliest child is the first that is met, and
    one look at each node is enough: a chain should cost no more drafting than a tree does.
    """
    path, last = [], ROOT
    for node, parent in enumerate(tree.parents.tolist()):
        if parent == last:
            path.append(last := node)
            if len(path) == length:
                break
    places = np.array(path[:length], np.intp)
    return DraftTree(
        tree.token_ids[places],
        np.arange(ROOT, len(places) + ROOT, dtype=np.int32),
        tree.survival[places],
        tree.sources[places],
        tree.buckets[places],
    )
