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
_LEAST_WEIGHT = 0.05  # squared; a step near a plain one is little proof of what drafts cost
_WORTH = 1.02  # a gain below is within the errors of the table
_CLEAR = 1.3  # a gain above needs no check
_PLAIN_EVERY = 16  # steps between two plain ones, where drafts gain less than that
_CHECK_EVERY = 64  # steps after which what seems worse is tried, however bad it seems
_SURPRISE = 2.0  # a step that takes longer than so many times the expected tells of a neighbour


@dataclass(frozen=True)
class CostTable:
    """Seconds of a step without its drafting, measured on this machine with this model.

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
        around = _around(self.per_row, tokens / max(rows, 1))
        touched = [
            (share * part * weight, self.seconds[place, size], entry)
            for place, share in _around(self.contexts, context)
            for size, part in _around(self.rows, rows)
            for entry, weight in around
            if weight and (entry or not around[1][1])
        ]
        # Divided so that what the table says of this very step moves by `change`.
        change /= max(sum(weight**2 for weight, _, _ in touched), _LEAST_WEIGHT)
        for weight, curve, entry in touched:
            curve[entry] *= 1.0 + change * weight
            np.minimum(curve[:entry], curve[entry], out=curve[:entry])
            np.maximum(curve[entry + 1 :], curve[entry], out=curve[entry + 1 :])


def _around(points: np.ndarray, value: float) -> tuple[tuple[int, float], tuple[int, float]]:
    """Indices of the points around `value`, each with its weight."""
    place = float(np.interp(value, points, np.arange(len(points))))
    low = int(place)
    return (low, 1.0 - (place - low)), (min(low + 1, len(points) - 1), place - low)


# No limit: every draft is verified. For drafters that bring their own limits, and for tests.
FREE = CostTable(np.array([1]), np.array([1]), np.array([1, 4096]), np.ones((1, 1, 2)))


class DraftBudget:
    """Cuts the trees of every step to what its cost table says they are worth."""

    def __init__(self, costs: CostTable) -> None:
        """Reckon with `costs`, which may be refined meanwhile; under `FREE` nothing is cut."""
        self._costs = costs
        self._since_plain = 0  # steps
        self._since_drafts = 0

    def afford(
        self,
        trees: Sequence[DraftTree],
        ready: int,
        rows: int,
        base_tokens: int,
        context: float,
    ) -> list[DraftTree]:
        """Cut `trees` to the nodes that raise tokens per second.

        Of `rows` rows in the step `ready` ones yield a token each without drafts; all together
        bring `base_tokens` packed tokens and a mean `context` of cached ones. Pieces of prompts
        among them are due whatever is drafted, so their time is no reason to draft: a ready row's
        share of a step in which all rows decode is what a saved step is worth.
        """
        survival = np.concatenate([tree.survival for tree in trees]) if trees else np.empty(0)
        if not len(survival) or self._costs is FREE:
            return list(trees)
        order = np.argsort(-survival, kind="stable")  # stable: a parent stays before its child
        extra = np.concatenate([[0.0], np.cumsum(survival[order])])  # (nodes + 1,)
        with_prompts = self._costs.step_seconds(rows, base_tokens + np.arange(len(extra)), context)
        alone = ready / rows * self._costs.step_seconds(rows, np.array([rows]), context)
        best = self._choose((ready + extra) / (alone + with_prompts - with_prompts[0]))
        keep = np.zeros(len(survival), bool)
        keep[order[:best]] = True
        bounds = np.cumsum([len(tree) for tree in trees])[:-1]
        return [tree.prefix(part) for tree, part in zip(trees, np.split(keep, bounds), strict=True)]

    def _choose(self, goodput: np.ndarray) -> int:
        """Number of nodes, by tokens per second with 0, 1, 2, ... of them.

        Both plain steps and drafts are tried now and then where they seem worse: a table that is
        wrong about what is never done would stay wrong.
        """
        best = int(np.argmax(goodput))
        gain = float(goodput[best] / goodput[0])
        self._since_plain += 1
        self._since_drafts += 1
        if gain < _WORTH:
            drafts = self._since_drafts > _CHECK_EVERY
            best = 1 + int(np.argmax(goodput[1:]))
        else:
            drafts = self._since_plain <= (_PLAIN_EVERY if gain < _CLEAR else _CHECK_EVERY)
        if drafts:
            self._since_drafts = 0
            return best
        self._since_plain = 0
        return 0
