"""NEZHA's head as a drafter that the model verifies: no list changes, and no second model."""

import torch

from pipeline.generative.beams import Beams, Draft, Level, joint_scores
from pipeline.generative.code_tree import NONE
from pipeline.generative.draft_ranking import Ranking
from pipeline.generative.drafters import Requests, all_children, most_levels
from pipeline.generative.placeholder_head import PlaceholderHead
from pipeline.generative.session import Session
from pipeline.generative.trie_tensors import TrieTensors
from pipeline.generative.verification import Rule, StrictTopK


class HeadDraft:
    """Drafts `width` beams a level, on from the beams of the model.

    The head cannot draft before the history and its placeholders are computed. So the call that
    computes them scores all first codes too, if so many fit: two levels are then settled without a
    guess, and with them and one more the second call may settle the rest. It never costs a call of
    its own.

    For rules that do not need `log_q`.
    """

    def __init__(
        self,
        head: PlaceholderHead,
        width: int,
        most_first: int = 512,
        rule: Rule | None = None,
        kept: int | None = None,
    ) -> None:
        """The arguments.

        Args:
            head: of the model that verifies.
            width: drafted nodes of every level.
            most_first: codes that are scored in the first call, or none.
            rule: that will verify; strict if it is not told.
            kept: K, see `Ranking`.
        """
        self.head, self.most_first = head, most_first
        self.ranking = Ranking(rule or StrictTopK(), width, kept)
        assert not self.ranking.rule.needs_q, "nobody knows what the head thinks of its drafts"

    def begin(self, requests: Requests, trie: TrieTensors) -> "HeadProposer":
        """See `Drafter`."""
        return HeadProposer(self, requests.seeds)


class HeadProposer:
    """The drafter at work on one batch."""

    def __init__(self, drafter: HeadDraft, seeds: torch.Tensor) -> None:
        self._drafter, self._seeds = drafter, seeds

    def propose(self, session: Session, beams: Beams, trie: TrieTensors) -> Draft:
        """See `Proposer`."""
        if most_levels(beams, trie) < 1:
            return Draft([])
        if session.is_open:
            return self._drafted(session, beams, trie)
        session.ask_for_placeholders()
        first = all_children(beams.nodes, trie)
        return Draft([first] if 0 < first.codes.shape[1] <= self._drafter.most_first else [])

    def narrow(self, rows: torch.Tensor) -> None:
        """See `Proposer`: what the head reads is the session's."""
        self._seeds = self._seeds[rows]

    def _drafted(self, session: Session, beams: Beams, trie: TrieTensors) -> Draft:
        head, ranking = self._drafter.head, self._drafter.ranking
        states = self._states(session, beams)
        drafted = ranking.begin(self._seeds, beams)
        scores, nodes = beams.scores, beams.nodes
        levels: list[Level] = []
        users = torch.arange(len(beams.depth), device=beams.depth.device)
        for number in range(most_levels(beams, trie)):
            level = (beams.depth + number).clamp(max=trie.levels - 2)  # (users,)
            placeholders = session.placeholders[users, level][:, None]
            log_probs = head.log_probs(level, states, placeholders)
            children = trie.children(nodes)
            joint = joint_scores(scores, log_probs, children, trie)
            choice, drafted = ranking.choose(joint, drafted)
            is_real = choice.scores > -torch.inf
            is_real &= (beams.depth + number < trie.levels - 1)[:, None]
            flat = choice.rows * trie.num_codes + choice.codes
            nodes = children.flatten(1).gather(1, flat).masked_fill(~is_real, NONE)
            scores = choice.scores.masked_fill(~is_real, -torch.inf)
            levels.append(Level(choice.codes, choice.rows, nodes, is_real))
            rows = choice.rows[..., None].expand(-1, -1, states.shape[2])
            states = head.advance(level, states.gather(1, rows), choice.codes)
        return Draft(levels)

    def _states(self, session: Session, beams: Beams) -> torch.Tensor:
        """Of the head along the codes of every beam, (users, k, width)."""
        states = session.end[:, None].expand(-1, beams.width, -1)
        for level in range(int(beams.depth.max())):
            on = self._drafter.head.advance(level, states, beams.codes[..., level])
            states = torch.where((beams.depth > level)[:, None, None], on, states)
        return states
