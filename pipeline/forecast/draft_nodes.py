"""What became of every node that was drafted, where a step verifies all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.forecast.yield_curve import YieldCurve

_POINTS = 28  # of a curve, fewer where it is straight between them
_LEAST_DRAFTS = 0.03  # of a row's step, at the first point
_DIGITS = 6


@dataclass(frozen=True)
class DraftNodes:
    """Nodes of all steps of some rows."""

    survival: np.ndarray  # (nodes,) as the drafter claimed it before the step
    is_kept: np.ndarray  # (nodes,) bool: it and all its ancestors were accepted
    row_steps: int  # steps, each as often as rows were in it

    @staticmethod
    def together(parts: Sequence["DraftNodes"]) -> "DraftNodes":
        """Nodes of several."""
        return DraftNodes(
            np.concatenate([part.survival for part in parts]),
            np.concatenate([part.is_kept for part in parts]),
            sum(part.row_steps for part in parts),
        )

    def curve(self, source: str) -> YieldCurve:
        """What a budget gets, which takes the nodes of largest survival over all steps.

        Raises:
            DataError: nothing was drafted.
        """
        if not len(self.survival):
            raise DataError(f"{source}: nothing was drafted, so there is no profile of drafts")
        order = np.argsort(-self.survival, kind="stable")
        extra = np.cumsum(self.is_kept[order]) / self.row_steps
        drafts = np.arange(1, len(order) + 1) / self.row_steps
        grid = np.geomspace(min(_LEAST_DRAFTS, drafts[-1]), drafts[-1], _POINTS)
        # Below the first node the curve is straight from nothing, as everywhere between nodes.
        points = np.interp(grid, np.append(0.0, drafts), np.append(0.0, extra))
        return YieldCurve.through(list(zip(grid.tolist(), points.tolist(), strict=True)), source)


def stored(nodes: DraftNodes, source: str) -> dict[str, Any]:
    """The curve as a profile keeps it; `pipeline.forecast.profiles` reads it.

    Raises:
        DataError: nothing was drafted.
    """
    curve = nodes.curve(source)
    return {
        "drafts": curve.drafts.round(_DIGITS).tolist(),
        "extra": curve.extra.round(_DIGITS).tolist(),
        "row_steps": nodes.row_steps,
    }
