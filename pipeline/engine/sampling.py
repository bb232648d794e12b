"""Lossless sampling: the text is distributed as if nothing had been drafted.

Children of a node are tried one after the other (Leviathan et al., arXiv 2211.17192; for trees
SpecInfer, arXiv 2305.09781). With p the target distribution and q the one a child was drawn from,
it stays with probability min(1, p/q); if refused, p becomes what is left, max(0, p - q), and the
next child is tried. When all are refused the next token is drawn from the rest of p. A child that
was not drawn but chosen has q = 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pipeline.engine.branch import NO_TOKEN, Branch, Verdict, Walk


@dataclass(frozen=True)
class Sampling:
    """Temperature, then top-k, then top-p, as in transformers."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0

    def distribution(self, scores: torch.Tensor) -> torch.Tensor:
        """Probabilities to draw from, by `scores` (rows, vocab): (rows, vocab)."""
        warpers = LogitsProcessorList()
        if self.temperature != 1.0:
            warpers.append(TemperatureLogitsWarper(self.temperature))
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1.0:
            warpers.append(TopPLogitsWarper(self.top_p))
        no_ids: Any = torch.empty(len(scores), 0, dtype=torch.long, device=scores.device)
        return warpers(no_ids, scores).softmax(-1)


def draw(probabilities: torch.Tensor, uniforms: np.ndarray) -> torch.Tensor:
    """One token from every row of `probabilities` (rows, vocab), which need not sum to 1.

    `uniforms` (rows,) in [0, 1) decide which: (rows,) int64. A row of zeros or of NaNs, the softmax
    of nothing but -inf, has `NO_TOKEN`.
    """
    cumulative = probabilities.double().cumsum(-1)
    total = cumulative[:, -1:]
    wanted = torch.from_numpy(uniforms).to(total.device)[:, None] * total
    wanted = torch.minimum(wanted, total * (1.0 - 2.0**-52))  # rounding must not reach the total
    tokens = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    return torch.where(total[:, 0] > 0.0, tokens, NO_TOKEN)


class Sampled:
    """Draws the next token; drafts decide only how many forward passes that takes."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def judge(self, scores: torch.Tensor, branches: Sequence[Branch]) -> list[Verdict]:
        """Sequential rejection over the children of every branch, all branches at once."""
        rest = self._sampling.distribution(scores)
        children = [branch.children() for branch in branches]
        kept: dict[int, int] = {}  # branch -> node
        for rank in range(max(map(len, children))):
            tried = [
                number
                for number, nodes in enumerate(children)
                if number not in kept and rank < len(nodes)
            ]
            if tried:
                nodes = [int(children[number][rank]) for number in tried]
                stays = _try(rest, tried, nodes, branches)
                kept |= {n: node for n, node, stay in zip(tried, nodes, stays, strict=True) if stay}
        uniforms = np.array([branch.row.random.random() for branch in branches])
        tokens = draw(rest, uniforms).tolist()
        return [
            Verdict([kept[number]], [0.0], token) if number in kept else Verdict([], [], token)
            for number, token in enumerate(tokens)
        ]

    def observe(self, walks: Sequence[Walk]) -> None:
        """Nothing to learn."""


def _try(
    rest: torch.Tensor, tried: list[int], nodes: list[int], branches: Sequence[Branch]
) -> list[bool]:
    """Accept or refuse one child of each of the `tried` branches; on refusal reduce its `rest`."""
    device = rest.device
    trees = [branches[number].tree for number in tried]
    tokens = torch.tensor(
        [int(tree.token_ids[node]) for tree, node in zip(trees, nodes, strict=True)], device=device
    )
    q = torch.zeros(len(tried), rest.shape[-1], device=device)
    q[torch.arange(len(tried)), tokens] = 1.0
    for place, (tree, node) in enumerate(zip(trees, nodes, strict=True)):
        if tree.proposals is not None:
            q[place] = tree.proposals[node]
    p = rest[tried]
    p = p / p.sum(-1, keepdim=True)
    uniforms = torch.tensor(
        [branches[number].row.random.random() for number in tried], dtype=torch.float64
    )
    at_token = torch.arange(len(tried)), tokens
    stays = uniforms.to(device) * q[at_token] < p[at_token]
    left = (p - q).clamp(min=0.0)
    is_left = left.sum(-1, keepdim=True) > 0.0  # else p = q, and only rounding could refuse
    rest[tried] = torch.where(stays[:, None] | ~is_left, p, left)
    return stays.tolist()
