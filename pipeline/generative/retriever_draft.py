"""Whole items drafted by a retriever, below the beams; what they share is drafted once."""

from typing import NamedTuple

import torch

from pipeline.generative.beams import Beams, Draft, Level
from pipeline.generative.code_tree import NONE
from pipeline.generative.drafters import Requests, most_levels
from pipeline.generative.retriever import Retriever
from pipeline.generative.retriever_leaves import Leaves
from pipeline.generative.session import Session
from pipeline.generative.trie_tensors import TrieTensors


class Candidates(NamedTuple):
    """Items drafted for a batch of users, the best first."""

    leaves: torch.Tensor  # (users, n) int64, rows of `Leaves`
    is_real: torch.Tensor  # (users, n) bool


class Paths(NamedTuple):
    """Levels below beams that lead to candidates: a beginning that several share stands once."""

    levels: list[Level]
    columns: list[torch.Tensor]  # (users, n) each: where a candidate's beams, then levels stand


def below(beams: Beams, leaves: Leaves) -> torch.Tensor:
    """Which ids begin as a living beam does: (users, leaves) bool."""
    nodes = beams.nodes.masked_fill(beams.scores == -torch.inf, NONE)
    room = leaves.first + leaves.codes.shape[0]
    is_beam = torch.zeros(len(nodes), room + 1, dtype=torch.bool, device=nodes.device)
    is_beam.scatter_(1, nodes.masked_fill(nodes == NONE, room), True)
    is_beam[:, room] = False
    found = is_beam.new_empty(len(nodes), leaves.codes.shape[0])
    for depth in beams.depth.unique().tolist():  # a row of prefixes each, whoever shares it
        rows = (beams.depth == depth).nonzero()[:, 0]
        found[rows] = is_beam[rows].index_select(1, leaves.prefixes[depth])
    return found


def best_candidates(scores: torch.Tensor, most: int) -> Candidates:
    """The `most` ids of the highest `scores` (users, leaves); -inf is nobody."""
    top = scores.topk(min(most, scores.shape[1]))
    is_real = top.values != -torch.inf
    count = int(is_real.sum(1).max())
    return Candidates(top.indices[:, :count], is_real[:, :count])


def paths_to(candidates: Candidates, beams: Beams, leaves: Leaves, levels: int) -> Paths:
    """What lies between beams and the candidates below them, last codes left out.

    Args:
        candidates: each below a beam.
        beams: those; their users may be at different depths.
        leaves: all ids.
        levels: at most so many.
    """
    chosen, is_real = candidates
    prefix = _prefixes(leaves, chosen, beams.depth)
    columns = [(prefix[..., None] == beams.nodes[:, None]).int().argmax(2)]
    drafted: list[Level] = []
    for number in range(1, 1 + levels if chosen.shape[1] else 1):
        depth = beams.depth + number
        goes_on = is_real & (depth < leaves.levels)[:, None]
        depth = depth.clamp(max=leaves.levels)
        nodes = _prefixes(leaves, chosen, depth)
        column, member, is_column = _distinct(nodes, goes_on)
        place = (depth - 1)[:, None].expand_as(member)
        drafted.append(
            Level(
                leaves.codes[chosen.gather(1, member), place],
                columns[-1].gather(1, member),
                nodes.gather(1, member),
                is_column,
            )
        )
        columns.append(column)
    return Paths(drafted, columns)


def _prefixes(leaves: Leaves, chosen: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    """Nodes of the first `depth` (users,) codes of ids `chosen` (users, n)."""
    return leaves.prefixes[depth[:, None], chosen]


def _distinct(
    nodes: torch.Tensor, is_real: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Different nodes of each row of `nodes` (users, n), in as few columns as that takes.

    Returns: the column of every node (users, n), a place in `nodes` that each column has
    (users, columns), and which columns are real.
    """
    none = torch.iinfo(nodes.dtype).max
    ordered, order = nodes.masked_fill(~is_real, none).sort(dim=1, stable=True)
    is_new = ordered != none
    is_new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    counts = is_new.sum(1)
    number = (is_new.cumsum(1) - 1).clamp(min=0)
    column = torch.zeros_like(number).scatter(1, order, number)
    most = max(int(counts.max()), 1)
    front = is_new.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    is_column = torch.arange(most, device=nodes.device) < counts[:, None]
    return column, order.gather(1, front), is_column


class RetrieverDraft:
    """The best items below the beams, as a drafter for any rule of verification."""

    def __init__(self, retriever: Retriever, leaves: Leaves, most: int) -> None:
        """`most` items are drafted at once."""
        self._retriever, self._leaves, self._most = retriever, leaves, most

    def begin(self, requests: Requests, trie: TrieTensors) -> "_Proposer":
        """See `Drafter`."""
        return _Proposer(self._retriever, self._leaves, self._most)


class _Proposer:
    def __init__(self, retriever: Retriever, leaves: Leaves, most: int) -> None:
        self._retriever, self._leaves, self._most = retriever, leaves, most
        self._scores: torch.Tensor | None = None  # (users, leaves)

    def propose(self, session: Session, beams: Beams, trie: TrieTensors) -> Draft:
        """See `Proposer`."""
        if self._scores is None:
            session.open()
            scores = self._leaves.of_items(self._retriever.scores(session))
            if trie.excluded is not None:
                scores = scores.masked_fill(trie.excluded[:, trie.first_leaf :], -torch.inf)
            self._scores = scores
        wanted = self._scores.masked_fill(~below(beams, self._leaves), -torch.inf)
        candidates = best_candidates(wanted, self._most)
        return Draft(paths_to(candidates, beams, self._leaves, most_levels(beams, trie)).levels)

    def narrow(self, rows: torch.Tensor) -> None:
        """See `Proposer`."""
        if self._scores is not None:
            self._scores = self._scores[rows]
