"""SpecGR (Ding et al., AAAI'26): items are drafted whole, accepted by likelihood, round by round.

A retriever names the best items below the current beams; one call of the model scores them and the
beams; whatever is likely enough is accepted, and the beams go one code on. Who has enough stops.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pipeline.generative.beam_engine import in_order
from pipeline.generative.beams import (
    Beams,
    Draft,
    TreeScores,
    best,
    drop_scores,
    extend,
    joint_scores,
    root_beams,
    score_tree,
)
from pipeline.generative.code_tree import NONE
from pipeline.generative.drafters import Requests
from pipeline.generative.recommender import Recommender
from pipeline.generative.retriever import EncoderTower, Retriever
from pipeline.generative.retriever_draft import (
    Candidates,
    Paths,
    below,
    best_candidates,
    paths_to,
)
from pipeline.generative.retriever_leaves import Leaves
from pipeline.generative.session import ROOT, Session
from pipeline.generative.threshold import (
    Pool,
    accept,
    code_log_probs,
    empty_pool,
    final_lists,
    scored_depths,
)
from pipeline.generative.trie_tensors import TrieTensors
from pipeline.generative_config import ThresholdSettings

ENOUGH, LEVELS = 0, 1  # why a user's search ended: K accepted, or no code is left to add


class Listed(NamedTuple):
    """Items of a batch of users, the best first, and what they took."""

    codes: torch.Tensor  # (users, k, levels) int64
    nodes: torch.Tensor  # (users, k) int64, leaves of the trie; NONE for nobody
    scores: torch.Tensor  # (users, k) float32, V or score per code of a beam; -inf for nobody
    is_accepted: torch.Tensor  # (users, k) bool, by the threshold; all others fill up the list
    calls: torch.Tensor  # (users,) int64, of the model; the first computes histories only
    scored: torch.Tensor  # (users,) int64, nodes that the model scored, histories aside
    rounds: torch.Tensor  # (users,) int64
    drafted: torch.Tensor  # (users,) int64, items
    accepted: torch.Tensor  # (users,) int64, items
    exit: torch.Tensor  # (users,) int64, ENOUGH or LEVELS


@dataclass
class ThresholdSearch:
    """A batch at work. All its users have had as many rounds."""

    users: torch.Tensor  # (users,) int64, rows of the batch that are still at work
    session: Session
    trie: TrieTensors
    scores: torch.Tensor  # (users, leaves), of the retriever; -inf for who may not be drafted again
    beams: Beams  # the first `beams` columns go on, any more are only drafted below
    steps: torch.Tensor  # (users, k, codes so far), log-probability of each code of the beams
    pool: Pool


class Drafted(NamedTuple):
    """Items of a round, and the tree that leads to them."""

    candidates: Candidates
    paths: Paths
    beams: Beams
    steps: torch.Tensor


class ThresholdEngine:
    """One model, one retriever and one threshold; any batch of users.

    Memory of a user, besides keys and values of history and beams (see `Session`): 4 bytes per id
    of the trie for what the retriever says, and some 12 more while a round is drafted.
    """

    def __init__(
        self,
        model: Recommender,
        trie: TrieTensors,
        leaves: Leaves,
        retriever: Retriever,
        settings: ThresholdSettings,
        width: int,
    ) -> None:
        """`width` items are wanted (K)."""
        self.model, self.trie, self.leaves, self.retriever = model, trie, leaves, retriever
        self.settings, self.width = settings, width
        # What is on top of beams leaves them as they are: as many as are wanted.
        self.beams = width if settings.cold_only else settings.beams
        least = settings.least_prefix
        if least == "auto":
            least = leaves.levels - 1 if isinstance(retriever.tower, EncoderTower) else 2
        self._depths = scored_depths(leaves, settings.unseen, least)

    @torch.inference_mode()
    def search(self, requests: Requests) -> Listed:
        """Find `width` items for everybody."""
        search = self._begin(requests)
        parts = []
        while len(search.users):
            search = self.step(search)
            parts += self._retire(search)
        return Listed(*in_order(parts))

    def step(self, search: ThresholdSearch) -> ThresholdSearch:
        """Draft items below the beams, score both in one call, accept, go one code on."""
        drafted = self._draft(search)
        scores = score_tree(search.session, drafted.beams, Draft(drafted.paths.levels))
        search.pool = search.pool.plus(self._accept(drafted, scores))
        return self._advance(search, drafted, scores)

    def _begin(self, requests: Requests) -> ThresholdSearch:
        session = Session(self.model, requests.histories)
        session.open()
        scores = self.leaves.of_items(self.retriever.scores(session))
        trie = self.trie
        if requests.excluded is not None:
            trie = trie.without(requests.excluded)
            scores = scores.masked_fill(requests.excluded, -torch.inf)
        if self.settings.cold_only:
            scores = scores.masked_fill(self.leaves.is_warm, -torch.inf)
        users = torch.arange(len(scores), device=scores.device)
        return ThresholdSearch(
            users,
            session,
            trie,
            scores,
            root_beams(len(users), trie.levels, users.device),
            scores.new_zeros(len(users), 1, 0),
            empty_pool(len(users), users.device),
        )

    def _draft(self, search: ThresholdSearch) -> Drafted:
        """The best items below the beams that have not been drafted yet."""
        is_below = below(search.beams, self.leaves)
        candidates = best_candidates(
            search.scores.masked_fill(~is_below, -torch.inf), self.settings.drafted
        )
        drafted = torch.zeros_like(is_below).scatter(1, candidates.leaves, candidates.is_real)
        search.scores = search.scores.masked_fill(drafted, -torch.inf)
        beams, steps = self._needed(search, candidates)
        levels = self.leaves.levels - 1 - int(beams.depth[0])
        return Drafted(candidates, paths_to(candidates, beams, self.leaves, levels), beams, steps)

    def _needed(
        self, search: ThresholdSearch, candidates: Candidates
    ) -> tuple[Beams, torch.Tensor]:
        """Beams that go on or have a candidate below them, and their steps."""
        beams = search.beams
        if beams.width <= self.beams:
            return beams, search.steps
        prefix = self.leaves.prefixes[beams.depth[:, None], candidates.leaves]
        is_above = (beams.nodes[..., None] == prefix[:, None]) & candidates.is_real[:, None]
        is_needed = is_above.any(2)
        is_needed[:, : self.beams] = True
        most = int(is_needed.sum(1).max())
        order = is_needed.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        wide = order[..., None]
        return (
            Beams(
                beams.codes.gather(1, wide.expand(-1, -1, beams.codes.shape[2])),
                beams.depth,
                *(own.gather(1, order) for own in (beams.scores, beams.nodes, beams.parents)),
            ),
            search.steps.gather(1, wide.expand(-1, -1, search.steps.shape[2])),
        )

    def _accept(self, drafted: Drafted, scores: TreeScores) -> Pool:
        log_probs = code_log_probs(
            drafted.candidates, drafted.paths, scores, drafted.steps, self.leaves
        )
        return accept(drafted.candidates, log_probs, self._depths, self.settings.threshold)

    def _advance(
        self, search: ThresholdSearch, drafted: Drafted, scores: TreeScores
    ) -> ThresholdSearch:
        """Beams go on by the model's best codes.

        As long as drafts are free of them, all first codes are kept, for items to hang from.
        """
        beams, log_probs, first = drafted.beams, scores.log_probs[0], scores.firsts[0]
        column = torch.arange(beams.width, device=log_probs.device)
        children = search.trie.children(beams.nodes)
        going = drop_scores(beams, column.expand_as(beams.scores) >= self.beams)
        joint = joint_scores(going.scores, log_probs, children, search.trie)
        depth = int(beams.depth[0]) + 1
        is_free = depth < min(self.settings.guided_from, self.leaves.levels)
        choice = best(joint, max(self.beams, joint.shape[2]) if is_free else self.beams)
        parents = column + first if first != ROOT else torch.full_like(column, ROOT)
        search.beams = extend(beams, choice, children, parents.expand(len(beams.depth), -1))
        step = log_probs.flatten(1).gather(1, choice.rows * joint.shape[2] + choice.codes)
        done = drafted.steps.shape[2]
        earlier = drafted.steps.gather(1, choice.rows[..., None].expand(-1, -1, done))
        search.steps = torch.cat([earlier, step[..., None]], 2)
        return search

    def _retire(self, search: ThresholdSearch) -> Iterator[tuple[torch.Tensor, Listed]]:
        """Take out who is done."""
        accepted = search.pool.is_accepted.sum(1)
        has_enough = (accepted >= self.width) & (not self.settings.cold_only)
        is_done = has_enough | (search.beams.depth == self.leaves.levels)
        if not is_done.any():
            return
        rows = is_done.nonzero()[:, 0]
        yield search.users[rows], self._list(search, rows, accepted, has_enough)
        rest = (~is_done).nonzero()[:, 0]
        search.users, search.scores = search.users[rest], search.scores[rest]
        search.beams, search.steps = search.beams.narrow(rest), search.steps[rest]
        search.trie, search.pool = search.trie.narrow(rest), search.pool.narrow(rest)
        if len(rest):
            search.session.narrow(rest)

    def _list(
        self,
        search: ThresholdSearch,
        rows: torch.Tensor,
        accepted: torch.Tensor,
        has_enough: torch.Tensor,
    ) -> Listed:
        pool, beams = search.pool.narrow(rows), search.beams.narrow(rows)
        ranked = final_lists(pool, beams, self.leaves, self.width, self.settings.cold_only)
        same = torch.ones_like(rows)
        is_nobody = ranked.values == -torch.inf
        return Listed(
            self.leaves.codes[ranked.leaves],
            (ranked.leaves + self.leaves.first).masked_fill(is_nobody, NONE),
            ranked.values,
            ranked.is_accepted,
            search.session.calls * same,
            search.session.num_nodes * same,
            beams.depth,
            (pool.values > -torch.inf).sum(1),
            accepted[rows],
            torch.where(has_enough[rows], ENOUGH, LEVELS),
        )
