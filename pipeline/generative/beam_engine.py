"""Recommendation by beam search over semantic IDs, with drafts verified by the model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pipeline.generative.beams import Beams, root_beams, score_tree
from pipeline.generative.drafters import Drafter, Proposer, Requests
from pipeline.generative.recommender import Recommender
from pipeline.generative.session import Session
from pipeline.generative.trie_tensors import TrieTensors
from pipeline.generative.verification import Rule, verify


class Found(NamedTuple):
    """Complete ids of a batch of users, the best first, and what they took."""

    codes: torch.Tensor  # (users, k, levels) int64
    nodes: torch.Tensor  # (users, k) int64, leaves of the trie; NONE where it is no item's id
    scores: torch.Tensor  # (users, k) float32, summed log-probabilities; -inf for nothing
    calls: torch.Tensor  # (users,) int64, of the model
    scored: torch.Tensor  # (users,) int64, nodes that the model scored, histories aside
    accepted: torch.Tensor  # (users,) int64, drafted levels accepted


@dataclass
class Search:
    """A batch at work."""

    users: torch.Tensor  # (users,) int64, rows of the batch that are still at work
    session: Session
    proposer: Proposer
    trie: TrieTensors
    beams: Beams
    seeds: torch.Tensor  # (users,) int64, of whatever is drawn
    accepted: torch.Tensor  # (users,) int64


class BeamEngine:
    """One model, one drafter and one rule; any batch of users."""

    def __init__(
        self, model: Recommender, trie: TrieTensors, drafter: Drafter, rule: Rule, width: int
    ) -> None:
        """`width` beams, and so many ids are found."""
        self.model, self.trie, self.drafter, self.rule = model, trie, drafter, rule
        self.width = width

    @torch.inference_mode()
    def search(self, requests: Requests) -> Found:
        """Find `width` ids for everybody."""
        search = self._begin(requests)
        parts = []
        while len(search.users):
            search = self.step(search)
            parts += self._retire(search)
        return Found(*in_order(parts))

    def step(self, search: Search) -> Search:
        """Draft below the beams, score beams and draft in one call, keep what the rule accepts."""
        draft = search.proposer.propose(search.session, search.beams, search.trie)
        scores = score_tree(search.session, search.beams, draft)
        verified = verify(
            self.rule, search.beams, draft, scores, search.trie, self.width, search.seeds
        )
        search.beams = verified.beams.trimmed()
        search.accepted = search.accepted + verified.accepted
        return search

    def _begin(self, requests: Requests) -> Search:
        trie = self.trie
        if requests.excluded is not None:
            trie = trie.without(requests.excluded)
        users = torch.arange(len(requests.histories.lengths), device=self.model.device)
        return Search(
            users,
            Session(self.model, requests.histories),
            self.drafter.begin(requests, trie),
            trie,
            root_beams(len(users), trie.levels, self.model.device),
            requests.seeds,
            torch.zeros_like(users),
        )

    def _retire(self, search: Search) -> Iterator[tuple[torch.Tensor, Found]]:
        """Take out who is done."""
        is_done = search.beams.depth == search.trie.levels
        if not is_done.any():
            return
        rows = is_done.nonzero()[:, 0]
        beams = search.beams.narrow(rows).padded(self.width)
        same = torch.ones_like(rows)
        yield (
            search.users[rows],
            Found(
                beams.codes,
                beams.nodes,
                beams.scores,
                search.session.calls * same,
                search.session.num_nodes * same,
                search.accepted[rows],
            ),
        )
        rest = (~is_done).nonzero()[:, 0]
        search.users, search.accepted = search.users[rest], search.accepted[rest]
        search.seeds = search.seeds[rest]
        search.beams, search.trie = search.beams.narrow(rest), search.trie.narrow(rest)
        if len(rest):
            search.session.narrow(rest)
            search.proposer.narrow(rest)


def in_order(parts: Sequence[tuple[torch.Tensor, Iterable[torch.Tensor]]]) -> list[torch.Tensor]:
    """What users got who were done at different times, by their rows of the batch.

    Args:
        parts: rows (users,), and what these got: tensors (users, ...), as many in every part.
    """
    order = torch.cat([users for users, _ in parts]).argsort()
    return [torch.cat(own)[order] for own in zip(*(found for _, found in parts), strict=True)]
