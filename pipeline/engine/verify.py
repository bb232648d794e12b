"""Which drafted tokens stay, and which token comes next.

Branches start at the root of every row's tree and go down level by level, all rows at once. At
each level the rule says which nodes below may stay. Where several may, all are followed, and the
branch that comes furthest wins.
"""

from collections.abc import Sequence

import numpy as np
import torch

from pipeline.engine.branch import Branch, Walk, take
from pipeline.engine.processors import Processors
from pipeline.engine.row import Row
from pipeline.engine.rules import Rule
from pipeline.engine.stops import Stops
from pipeline.engine.types import DraftTree


class Verifier:
    """Walks the trees of a step under one rule."""

    def __init__(self, rule: Rule, processors: Processors, stops: Stops) -> None:
        self._rule = rule
        self._processors = processors
        self._stops = stops

    def accept(
        self,
        rows: Sequence[Row],
        trees: Sequence[DraftTree],
        roots: np.ndarray,
        logits: torch.Tensor,
    ) -> list[Walk]:
        """Extend every ready row by `logits` (decisions, vocab); see `Step` for `roots`."""
        active = [
            Branch(row, tree, int(root))
            for row, tree, root in zip(rows, trees, roots, strict=True)
            if row.is_ready
        ]
        furthest: dict[int, tuple[Branch, int]] = {}  # slot -> branch and the token after it
        while active:
            index = torch.tensor([branch.decision for branch in active], device=logits.device)
            active, scores = _sound(active, logits[index].float())
            if not active:
                break
            scores = self._processors.apply(scores, active)
            verdicts = self._rule.judge(scores, active)
            judged = list(zip(active, verdicts, strict=True))
            for branch, verdict in reversed(judged):  # of equals the first one stays
                if not verdict.kept:
                    furthest[branch.row.slot] = branch, verdict.token
            grown = [longer for branch, verdict in judged for longer in branch.grown(verdict)]
            active = []
            for branch in grown:
                if branch.ends(self._stops):  # behind it nothing counts
                    furthest[branch.row.slot] = branch, branch.last_token
                else:
                    active.append(branch)
        walks = [
            take(branch, token, self._stops)
            for branch, token in furthest.values()
            if not (branch.row.error or branch.row.must_repeat)
        ]
        self._rule.observe(walks)
        return walks


def _sound(branches: list[Branch], scores: torch.Tensor) -> tuple[list[Branch], torch.Tensor]:
    """The branches of rows whose logits are numbers, and those logits.

    A masked key that is no number spoils its whole row, so drafts may be at fault: a row that has
    any is to be computed again without. Else it fails.
    """
    is_finite = scores.amax(-1).isfinite().tolist()
    if all(is_finite):
        return branches, scores
    for branch, finite in zip(branches, is_finite, strict=True):
        if not finite and len(branch.tree):
            branch.row.trusts_drafts, branch.row.must_repeat = False, True
        elif not finite:
            branch.row.fail("the model's logits are not finite; another dtype may help")
    keep = [
        number
        for number, branch in enumerate(branches)
        if not (branch.row.error or branch.row.must_repeat)
    ]
    return [branches[number] for number in keep], scores[keep]
