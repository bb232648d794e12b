"""A path of drafted tokens that verification is following down a row's tree."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.engine.row import Row
from pipeline.engine.stops import Stops
from pipeline.engine.types import ROOT, DraftTree

NO_TOKEN = -1  # where a token should be drawn and every one is impossible


class Verdict(NamedTuple):
    """What a rule says at the end of a branch: which nodes below may stay, or what comes instead.

    A cost is the log-probability given up against the best token, in nats.
    """

    kept: Sequence[int]  # nodes, children of the branch's last one
    costs: Sequence[float]  # of the kept
    token: int  # comes next if none is kept; may be NO_TOKEN


@dataclass(frozen=True)
class Branch:
    """The root of a row's tree, then accepted nodes downwards."""

    row: Row
    tree: DraftTree
    root: int  # index of the logits that belong to the root
    nodes: tuple[int, ...] = ()
    costs: tuple[float, ...] = ()

    @property
    def last(self) -> int:
        """The node at the end, ROOT if there is none."""
        return self.nodes[-1] if self.nodes else ROOT

    @property
    def last_token(self) -> int:
        """The token at the end; only a branch with nodes has one."""
        return int(self.tree.token_ids[self.nodes[-1]])

    def ends(self, stops: Stops) -> bool:
        """Whether the token at the end would end the row."""
        return self.last_token in stops.ids or stops.are_completed_by(self.output)

    @property
    def decision(self) -> int:
        """Index of the logits that follow the branch."""
        return self.root + 1 + self.last

    @property
    def tokens(self) -> np.ndarray:
        """Drafted tokens of the branch: (nodes,) int32."""
        return self.tree.token_ids[list(self.nodes)]

    @property
    def context(self) -> np.ndarray:
        """Prompt, output and branch: (tokens,) int32."""
        return np.concatenate([self.row.tokens, self.tokens])

    @property
    def output(self) -> np.ndarray:
        """Output and branch: (tokens,) int32."""
        return np.concatenate([self.row.output, self.tokens])

    @property
    def num_new(self) -> int:
        """Tokens of output and branch."""
        return len(self.row.output) + len(self.nodes)

    @property
    def distinct_tokens(self) -> list[int]:
        """Token ids of prompt, output and branch; only those of the branch may stand twice."""
        return self.row.distinct_tokens + self.tokens.tolist()

    def children(self) -> np.ndarray:
        """Nodes below the last one: (children,) int."""
        return np.flatnonzero(self.tree.parents == self.last)

    def grown(self, verdict: Verdict) -> list["Branch"]:
        """The branches that go on over the nodes that a verdict keeps."""
        return [
            Branch(self.row, self.tree, self.root, (*self.nodes, node), (*self.costs, cost))
            for node, cost in zip(verdict.kept, verdict.costs, strict=True)
        ]


@dataclass(frozen=True)
class Walk:
    """What became of a row's tree in a step."""

    row: Row
    tree: DraftTree
    path: list[int]  # nodes whose tokens are part of the row now
    outcomes: np.ndarray  # (nodes,) int8: 1 accepted, 0 refused, -1 untested
    num_tokens: int  # that the row has got
    cost: float  # nats that they gave up


def take(branch: Branch, token: int, stops: Stops) -> Walk:
    """Append a branch's tokens and the one that comes next to its row, until the row ends.

    Where no token can come next the row fails behind the branch, as it would without drafts.
    """
    row, tree = branch.row, branch.tree
    tokens_before, cost_before = len(row.output), row.statistics.relaxed_cost
    outcomes = np.full(len(tree), -1, np.int8)
    path: list[int] = []
    parent = ROOT
    for node, cost in zip(branch.nodes, branch.costs, strict=True):
        outcomes[tree.parents == parent] = 0
        outcomes[node] = 1
        if row.append(int(tree.token_ids[node]), stops, cost, int(tree.sources[node])):
            path.append(node)
        if row.finish_reason:
            break
        parent = node
    else:
        outcomes[tree.parents == parent] = 0
        if token == NO_TOKEN:
            row.fail(
                "every token is banned, so none can be drawn; set generation.no_repeat_ngram to 0 "
                "or higher than it is, or lower generation.min_new_tokens"
            )
        else:
            row.append(token, stops)
    cost = row.statistics.relaxed_cost - cost_before
    return Walk(row, tree, path, outcomes, len(row.output) - tokens_before, cost)
