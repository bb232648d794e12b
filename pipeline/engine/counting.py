"""What became of the drafts of a step: per row by source, by depth and by chance.

The chance of a node is its `survival`, that it and all its ancestors stay. Under every rule a row
takes one branch, and drafters learn from that branch. So a node that was acceptable, but whose
sibling was taken, did not stay; nor did one below a refused node, or behind the row's end. All of
them count against their chance, as the draft budget reckons. Nodes that the budget leaves out are
not counted at all.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from pipeline.engine.branch import Walk

_TENTHS = np.arange(1, 10, dtype=np.float32) / 10  # where the second and later ones begin


def count(walks: Sequence[Walk]) -> None:
    """Add walks to their rows' statistics, all rows at once."""
    for walk in walks:
        walk.row.statistics.forward_passes += 1
    drafted = [walk for walk in walks if len(walk.tree)]
    if not drafted:
        return
    rows = np.repeat(np.arange(len(drafted)), [len(walk.tree) for walk in drafted])
    stays = np.concatenate([walk.outcomes for walk in drafted]) == 1
    sources = np.concatenate([walk.tree.sources for walk in drafted])
    depths = np.concatenate([walk.tree.depths() for walk in drafted])
    survival = np.concatenate([walk.tree.survival for walk in drafted])
    tenths = np.searchsorted(_TENTHS, survival, side="right")
    every = [walk.row.statistics for walk in drafted]
    last = len(every[0].drafted_by_depth) - 1
    _add((own.drafted_by_source for own in every), rows, sources)
    _add((own.accepted_by_source for own in every), rows[stays], sources[stays])
    _add((own.drafted_by_depth for own in every), rows, np.minimum(depths - 1, last))
    _add((own.accepted_by_depth for own in every), rows[stays], np.minimum(depths[stays] - 1, last))
    _add((own.drafted_by_chance for own in every), rows, tenths)
    _add((own.accepted_by_chance for own in every), rows[stays], tenths[stays])
    _add((own.chance_by_decile for own in every), rows, tenths, survival)


def _add(
    totals: Iterable[np.ndarray],
    rows: np.ndarray,
    bins: np.ndarray,
    weights: np.ndarray | None = None,
) -> None:
    """Add to the totals of each row, (bins,) each, how often or how much its nodes fall in them."""
    totals = list(totals)
    width = len(totals[0])
    cells = np.bincount(rows * width + bins, weights, len(totals) * width)
    for own, more in zip(totals, cells.reshape(-1, width), strict=True):
        own += more
