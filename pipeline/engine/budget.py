"""How many draft nodes a step can afford.

A step with B rows and m draft nodes yields B + (sum of the nodes' survival) tokens and takes
T(B + m) seconds. The m nodes of largest survival, over all rows, are closed under parents, since
survival never grows along a path. So the best m is the argmax of yield / time over all prefixes
of the sorted nodes (SmartSpec, arXiv 2406.14066; OPT-Tree, arXiv 2406.17276): a tree becomes a
chain and then nothing as the batch grows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.engine.types import DraftTree


@dataclass(frozen=True)
class CostTable:
    """Seconds of a step's forward pass, measured on this machine with this model."""

    rows: np.ndarray  # (r,) batch sizes measured, ascending
    per_row: np.ndarray  # (t,) tokens of each row measured, ascending
    seconds: np.ndarray  # (r, t)

    def step_seconds(self, rows: int, tokens: np.ndarray) -> np.ndarray:
        """Interpolated seconds for `tokens` (m,) packed tokens in `rows` rows."""
        per_row = tokens / max(rows, 1)
        curves = np.array([np.interp(per_row, self.per_row, curve) for curve in self.seconds])
        share = np.interp(rows, self.rows, np.arange(len(self.rows)))
        low = int(share)
        high = min(low + 1, len(self.rows) - 1)
        return curves[low] + (curves[high] - curves[low]) * (share - low)


def afford(
    trees: Sequence[DraftTree], rows: int, base_tokens: int, costs: CostTable
) -> list[DraftTree]:
    """Cut `trees` to the nodes that raise tokens per second.

    `rows` yield one token each without drafts, from `base_tokens` packed tokens.
    """
    survival = np.concatenate([tree.survival for tree in trees]) if trees else np.empty(0)
    if not len(survival):
        return list(trees)
    order = np.argsort(-survival, kind="stable")  # stable: a parent stays before its child
    extra = np.concatenate([[0.0], np.cumsum(survival[order])])  # (nodes + 1,)
    nodes = np.arange(len(extra))
    seconds = costs.step_seconds(rows, base_tokens + nodes)
    best = int(np.argmax((rows + extra) / seconds))
    keep = np.zeros(len(survival), bool)
    keep[order[:best]] = True
    bounds = np.cumsum([len(tree) for tree in trees])[:-1]
    return [tree.prefix(part) for tree, part in zip(trees, np.split(keep, bounds), strict=True)]
