"""Which drafted tokens may stay: greedy, or relaxed within what a criterion finds acceptable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from pipeline.engine.branch import Branch, Verdict, Walk
from pipeline.engine.stops import Stops


class Rule(Protocol):
    """Judges how branches go on."""

    def judge(self, scores: torch.Tensor, branches: Sequence[Branch]) -> list[Verdict]:
        """One verdict for every branch, by `scores` (branches, vocab) after all processors."""
        ...

    def observe(self, walks: Sequence[Walk]) -> None:
        """See what a step made of the verdicts."""
        ...


class Strict:
    """Greedy: the most probable token, whatever was drafted."""

    def judge(self, scores: torch.Tensor, branches: Sequence[Branch]) -> list[Verdict]:
        """Argmax."""
        tokens = scores.argmax(-1).tolist()
        return [exactly(branch, token) for branch, token in zip(branches, tokens, strict=True)]

    def observe(self, walks: Sequence[Walk]) -> None:
        """Nothing to learn."""


def exactly(branch: Branch, token: int) -> Verdict:
    """The verdict that `token` comes next, drafted or not."""
    children = branch.children()
    kept = children[branch.tree.token_ids[children] == token][:1].tolist()
    return Verdict(kept, [0.0] * len(kept), token)


class Criterion(Protocol):
    """Which tokens are good enough to stand in for the most probable one."""

    def floor(self, log_probabilities: torch.Tensor) -> torch.Tensor:
        """Least acceptable log-probability (rows, 1) under `log_probabilities` (rows, vocab)."""
        ...

    def observe(self, tokens: int, cost: float) -> None:
        """Hear that a step wrote `tokens` tokens and gave up `cost` nats in all."""
        ...


@dataclass(frozen=True)
class TopKFloor:
    """LASER (SIGIR'25): among the k most probable, and of a probability of p or more."""

    top_k: int
    p: float

    def floor(self, log_probabilities: torch.Tensor) -> torch.Tensor:
        """The k-th best, or ln p."""
        least = math.log(self.p) if self.p > 0.0 else -math.inf
        return _kth_best(log_probabilities, self.top_k).clamp(min=least)

    def observe(self, tokens: int, cost: float) -> None:
        """Nothing to learn."""


@dataclass(frozen=True)
class TopKDelta:
    """Among the k most probable, and less probable than the best by delta or less.

    TensorRT-LLM's relaxed acceptance.
    """

    top_k: int
    delta: float

    def floor(self, log_probabilities: torch.Tensor) -> torch.Tensor:
        """The k-th best, or ln(p_best - delta)."""
        best = log_probabilities.amax(-1, keepdim=True).exp()
        least = (best - self.delta).clamp(min=0.0).log()
        return torch.maximum(_kth_best(log_probabilities, self.top_k), least)

    def observe(self, tokens: int, cost: float) -> None:
        """Nothing to learn."""


@dataclass(frozen=True)
class Typical:
    """Medusa (arXiv 2401.10774): p >= min(epsilon, alpha exp(-H)), H the entropy in nats.

    The less certain the model is, the less probable a token may be.
    """

    epsilon: float
    alpha: float

    def floor(self, log_probabilities: torch.Tensor) -> torch.Tensor:
        """ln min(epsilon, alpha exp(-H))."""
        probabilities = log_probabilities.exp()
        entropy = -torch.where(probabilities > 0.0, probabilities * log_probabilities, 0.0)
        least = math.log(self.alpha) - entropy.sum(-1, keepdim=True)
        return least.clamp(max=math.log(self.epsilon))

    def observe(self, tokens: int, cost: float) -> None:
        """Nothing to learn."""


def _kth_best(log_probabilities: torch.Tensor, top_k: int) -> torch.Tensor:
    """(rows, vocab) -> (rows, 1)."""
    return log_probabilities.topk(min(top_k, log_probabilities.shape[-1])).values[:, -1:]


@dataclass(frozen=True)
class Relaxed:
    """A drafted token stays if the criterion accepts it, even if another is more probable.

    `prefer` names which acceptable node a branch follows: the most `probable`, or all of them, of
    which the `longest` branch wins, as in LASER's code. Stops are never relaxed: where the model
    wants to stop it stops, and no token that would end the row stands in for another.
    """

    criterion: Criterion
    stops: Stops
    prefer: Literal["probable", "longest"] = "probable"

    def judge(self, scores: torch.Tensor, branches: Sequence[Branch]) -> list[Verdict]:
        """Argmax unless acceptable nodes stand in for it."""
        best = scores.argmax(-1).tolist()
        verdicts = [exactly(branch, token) for branch, token in zip(branches, best, strict=True)]
        open_branches = [
            number
            for number, (branch, verdict) in enumerate(zip(branches, verdicts, strict=True))
            if self._may_differ(branch, verdict)
        ]
        if open_branches:
            chosen = self._stand_ins(scores[open_branches], [branches[n] for n in open_branches])
            for number, (kept, costs) in zip(open_branches, chosen, strict=True):
                if kept:
                    verdicts[number] = Verdict(kept, costs, best[number])
        return verdicts

    def observe(self, walks: Sequence[Walk]) -> None:
        """Tell the criterion what the step cost."""
        self.criterion.observe(
            sum(walk.num_tokens for walk in walks), sum(walk.cost for walk in walks)
        )

    def _may_differ(self, branch: Branch, strict: Verdict) -> bool:
        others = len(branch.children()) - len(strict.kept)
        if not others or (strict.kept and self.prefer == "probable"):
            return False
        return not self.stops.end_with(strict.token, branch.output)

    def _stand_ins(
        self, scores: torch.Tensor, branches: Sequence[Branch]
    ) -> list[tuple[list[int], list[float]]]:
        """Acceptable nodes of every branch and what they cost."""
        log_probabilities = scores.log_softmax(-1)
        floors = self.criterion.floor(log_probabilities)
        children = [branch.children() for branch in branches]
        row = np.repeat(np.arange(len(branches)), [len(nodes) for nodes in children])
        tokens = np.concatenate(
            [branch.tree.token_ids[nodes] for branch, nodes in zip(branches, children, strict=True)]
        )
        best = log_probabilities.amax(-1)
        offered = log_probabilities[row, torch.from_numpy(tokens.astype(np.int64))]
        is_good = ((offered >= floors[row, 0]) | (offered == best[row])).cpu().numpy()
        # A tie gives up nothing, but is another token than the strict rule's all the same.
        strict = scores.argmax(-1).cpu().numpy()[row]
        least = np.where(tokens == strict, 0.0, np.finfo(np.float32).tiny)
        costs = np.maximum((best[row] - offered).cpu().numpy(), least)
        bounds = np.cumsum([len(nodes) for nodes in children])[:-1]
        return [
            self._preferred(branch, nodes[good], cost[good])
            for branch, nodes, good, cost in zip(
                branches, children, np.split(is_good, bounds), np.split(costs, bounds), strict=True
            )
        ]

    def _preferred(
        self, branch: Branch, nodes: np.ndarray, costs: np.ndarray
    ) -> tuple[list[int], list[float]]:
        """Of a branch's acceptable nodes those to follow; costs in nats."""
        tokens = branch.tree.token_ids
        harmless = [
            place
            for place, node in enumerate(nodes)
            if not self.stops.end_with(int(tokens[node]), branch.output)
        ]
        if self.prefer == "probable" and harmless:
            harmless = [min(harmless, key=lambda place: costs[place])]
        return nodes[harmless].tolist(), costs[harmless].tolist()
