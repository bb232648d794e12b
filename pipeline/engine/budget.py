"""How many draft nodes a step can afford.

A step with B rows and m draft nodes yields B + (sum of the nodes' survival) tokens and takes
T(B + m) seconds. The m nodes of largest survival, over all rows, are closed under parents, since
survival never grows along a path. So the best m is the argmax of yield / time over all prefixes
of the sorted nodes (SmartSpec, arXiv 2406.14066; OPT-Tree, arXiv 2406.17276): a tree becomes a
chain and then nothing as the batch grows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.engine.types import DraftTree

_RATE = 0.1  # weight of one measured step in what the table says of such steps
_WORTH = 1.02  # a gain below is within the errors of the table
_CLEAR = 1.3  # a gain above needs no check
_PLAIN_EVERY = 16  # steps
_SURPRISE = 2.0  # a step that takes longer than so many times the expected tells of a neighbour


@dataclass(frozen=True)
class CostTable:
    """Seconds of a step's forward pass, measured on this machine with this model.

    Seconds never fall along the tokens of each row.
    """

    contexts: np.ndarray  # (c,) cached tokens of each row, ascending
    rows: np.ndarray  # (r,) batch sizes measured, ascending
    per_row: np.ndarray  # (t,) mean tokens of a row measured, ascending
    seconds: np.ndarray  # (c, r, t)

    def copy(self) -> "CostTable":
        """A table that is refined on its own."""
        return replace(self, seconds=self.seconds.astype(np.float64))

    def step_seconds(self, rows: int, tokens: np.ndarray, context: float) -> np.ndarray:
        """Interpolated seconds for `tokens` (m,) packed tokens in `rows` rows.

        `context` is the mean number of cached tokens of a row.
        """
        curve = sum(
            share * part * self.seconds[place, size]
            for place, share in _around(self.contexts, context)
            for size, part in _around(self.rows, rows)
        )
        return np.interp(tokens / max(rows, 1), self.per_row, np.asarray(curve))

    def refine(self, rows: int, tokens: int, context: float, seconds: float) -> None:
        """Move the entries around a step of `tokens` packed tokens towards its measured time.

        So the table follows what else the machine is doing. What plain steps cost is learned from
        plain steps alone: steps with few drafts would raise it too, and drafts would go on looking
        cheap beside it.
        """
        ratio = seconds / float(self.step_seconds(rows, np.array([tokens]), context)[0])
        change = _RATE * (min(max(ratio, 1.0 / _SURPRISE), _SURPRISE) - 1.0)
        (left, most), (right, rest) = _around(self.per_row, tokens / max(rows, 1))
        for place, share in _around(self.contexts, context):
            for size, part in _around(self.rows, rows):
                curve = self.seconds[place, size]
                if left or not rest:
                    curve[left] *= 1.0 + change * share * part * most
                curve[right] *= 1.0 + change * share * part * rest
                np.maximum.accumulate(curve, out=curve)


def _around(points: np.ndarray, value: float) -> tuple[tuple[int, float], tuple[int, float]]:
    """Indices of the points around `value`, each with its weight."""
    place = float(np.interp(value, points, np.arange(len(points))))
    low = int(place)
    return (low, 1.0 - (place - low)), (min(low + 1, len(points) - 1), place - low)


# Where nodes cost nothing every draft is verified: for drafters that bring their own limits.
FREE = CostTable(np.array([1]), np.array([1]), np.array([1, 4096]), np.ones((1, 1, 2)))


class DraftBudget:
    """Cuts the trees of every step to what its cost table says they are worth."""

    def __init__(self, costs: CostTable) -> None:
        self._costs = costs
        self._since_plain = 0  # steps

    def afford(
        self, trees: Sequence[DraftTree], rows: int, base_tokens: int, context: float
    ) -> list[DraftTree]:
        """Cut `trees` to the nodes that raise tokens per second.

        `rows` yield one token each without drafts, from `base_tokens` packed tokens and a mean
        `context` of cached ones. Those of them
        that are pieces of other rows' prompts are due whatever is drafted, so their time is no
        reason to draft. Where drafts gain little, a step goes without them now and then, so that
        their gain stays a measured one.
        """
        survival = np.concatenate([tree.survival for tree in trees]) if trees else np.empty(0)
        if not len(survival):
            return list(trees)
        order = np.argsort(-survival, kind="stable")  # stable: a parent stays before its child
        extra = np.concatenate([[0.0], np.cumsum(survival[order])])  # (nodes + 1,)
        tokens = base_tokens + np.arange(len(extra))
        with_prompts = self._costs.step_seconds(rows, tokens, context)
        alone = self._costs.step_seconds(rows, np.array([rows]), context)
        goodput = (rows + extra) / (alone + with_prompts - with_prompts[0])
        best = int(np.argmax(goodput))
        if not self._pays(float(goodput[best] / goodput[0])):
            best = 0
        keep = np.zeros(len(survival), bool)
        keep[order[:best]] = True
        bounds = np.cumsum([len(tree) for tree in trees])[:-1]
        return [tree.prefix(part) for tree, part in zip(trees, np.split(keep, bounds), strict=True)]

    def _pays(self, gain: float) -> bool:
        """Whether drafts that promise to be `gain` times as fast are verified in this step."""
        self._since_plain += 1
        if gain < _WORTH or (gain < _CLEAR and self._since_plain > _PLAIN_EVERY):
            self._since_plain = 0
            return False
        return True
