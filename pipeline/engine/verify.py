"""Which drafted tokens stay, and which token comes next.

The walk starts at the root of every row's tree and goes down level by level, all rows at once. At
each level the rule names the next token; if a child holds it the walk goes on below that child.
History-dependent processors are applied on the way, so each node's logits see its own path.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch

from pipeline.engine.row import Row
from pipeline.engine.types import ROOT, DraftTree


class Choice(NamedTuple):
    """The next token of every row at one level."""

    tokens: list[int]
    costs: list[float]  # log-probability given up against the best token, in nats; 0 if none


class Rule(Protocol):
    """Chooses the next token given what the children of the current node offer."""

    def choose(self, logits: torch.Tensor, offers: Sequence[np.ndarray]) -> Choice:
        """`logits` (rows, vocab) after all processors; `offers[r]` child token ids of row r."""
        ...


class Strict:
    """Greedy: the most probable token, whatever was drafted."""

    def choose(self, logits: torch.Tensor, offers: Sequence[np.ndarray]) -> Choice:
        """Argmax."""
        return Choice(logits.argmax(-1).tolist(), [0.0] * len(offers))


@dataclass(frozen=True)
class Relaxed:
    """LASER (SIGIR'25): an offered token may stay if it is in the top k and reaches the floor.

    Among acceptable offers the most probable one is taken. Stop tokens are never relaxed: if the
    model wants to stop it stops, and it never stops for a token that is not its first choice.
    """

    top_k: int
    floor: float
    stop_ids: frozenset[int]

    def choose(self, logits: torch.Tensor, offers: Sequence[np.ndarray]) -> Choice:
        """Argmax unless an acceptable offer stands in for it."""
        tokens = logits.argmax(-1).tolist()
        costs = [0.0] * len(offers)
        open_rows = [
            row
            for row, (token, offer) in enumerate(zip(tokens, offers, strict=True))
            if len(offer) and token not in self.stop_ids and token not in offer
        ]
        if open_rows:
            chosen = self._stand_ins(logits[open_rows], [offers[row] for row in open_rows])
            for row, (token, cost) in zip(open_rows, chosen, strict=True):
                if token is not None:
                    tokens[row], costs[row] = token, cost
        return Choice(tokens, costs)

    def _stand_ins(
        self, logits: torch.Tensor, offers: Sequence[np.ndarray]
    ) -> list[tuple[int | None, float]]:
        """The best acceptable offer of every row and what it costs, or None."""
        best = torch.topk(logits, self.top_k)
        log_probability = (best.values - logits.logsumexp(-1, keepdim=True)).tolist()
        results: list[tuple[int | None, float]] = []
        for ids, values, offer in zip(best.indices.tolist(), log_probability, offers, strict=True):
            results.append((None, 0.0))
            for token, value in zip(ids[1:], values[1:], strict=True):
                if token in offer and math.exp(value) >= self.floor and token not in self.stop_ids:
                    results[-1] = (token, values[0] - value)
                    break
        return results


@dataclass
class Walk:
    """The accepted path of one row."""

    row: Row
    tree: DraftTree
    root: int  # row of the logits that belongs to the root
    path: list[int] = field(default_factory=list)  # accepted nodes
    outcomes: np.ndarray = field(init=False)  # (nodes,) int8: 1 accepted, 0 refused, -1 untested

    def __post_init__(self) -> None:
        self.outcomes = np.full(len(self.tree), -1, np.int8)

    @property
    def decision(self) -> int:
        """Row of the logits that belongs to the current node."""
        return self.root + 1 + self.path[-1] if self.path else self.root

    def children(self) -> np.ndarray:
        """Nodes below the current one."""
        return np.flatnonzero(self.tree.parents == (self.path[-1] if self.path else ROOT))

    def take(self, token: int, cost: float, stop_ids: Collection[int]) -> bool:
        """Append the chosen token; say whether the walk goes on below a child that holds it."""
        children = self.children()
        hit = children[self.tree.token_ids[children] == token]
        self.outcomes[children] = 0
        self.outcomes[hit] = 1
        self.row.append(token, stop_ids)
        if cost > 0.0:
            self.row.statistics.relaxed_tokens += 1
            self.row.statistics.relaxed_cost += cost
        if not len(hit) or self.row.finish_reason == "stop":
            return False
        self.path.append(int(hit[0]))
        return not self.row.finish_reason


class Verifier:
    """Walks the trees of a step under one rule."""

    def __init__(self, rule: Rule, stop_ids: Collection[int], repetition_penalty: float) -> None:
        self._rule = rule
        self._stop_ids = frozenset(stop_ids)
        self._penalty = repetition_penalty

    def accept(
        self,
        rows: Sequence[Row],
        trees: Sequence[DraftTree],
        roots: np.ndarray,
        logits: torch.Tensor,
    ) -> list[Walk]:
        """Extend every ready row by `logits` (decisions, vocab); see `Step` for `roots`."""
        walks = [
            Walk(row, tree, int(root))
            for row, tree, root in zip(rows, trees, roots, strict=True)
            if row.is_ready
        ]
        active = walks
        while active:
            index = torch.tensor([walk.decision for walk in active], device=logits.device)
            scores = self._penalise(logits[index].float(), active)
            offers = [walk.tree.token_ids[walk.children()] for walk in active]
            choice = self._rule.choose(scores, offers)
            active = [
                walk
                for walk, token, cost in zip(active, *choice, strict=True)
                if walk.take(token, cost, self._stop_ids)
            ]
        return walks

    def _penalise(self, scores: torch.Tensor, walks: Sequence[Walk]) -> torch.Tensor:
        """Repetition penalty (Keskar et al. 2019): every token of a row's prompt, output and path.

        A score s becomes s / penalty if positive, s * penalty otherwise, as in transformers.
        Changes `scores` (rows, vocab).
        """
        if self._penalty == 1.0:
            return scores
        seen = [walk.row.distinct_tokens for walk in walks]
        width = max(map(len, seen))
        padded = [ids + ids[:1] * (width - len(ids)) for ids in seen]  # a repeat changes nothing
        index = torch.tensor(padded, device=scores.device)  # (rows, distinct)
        of_seen = scores.gather(1, index)
        of_seen = torch.where(of_seen < 0, of_seen * self._penalty, of_seen / self._penalty)
        return scores.scatter_(1, index, of_seen)
