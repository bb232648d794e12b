"""A small recommender guesses the beams of the large one (AtSpeed, Lin et al., ICLR'25)."""

import torch

from pipeline.generative.beams import Beams, Choice, Draft, Level, joint_scores
from pipeline.generative.code_tree import NONE
from pipeline.generative.draft_ranking import Ranking
from pipeline.generative.drafters import Requests, most_levels
from pipeline.generative.recommender import Recommender
from pipeline.generative.session import ROOT, Nodes, Session
from pipeline.generative.trie_tensors import TrieTensors
from pipeline.generative.verification import Rule, StrictTopK


class SmallModelDraft:
    """Beam search of a small model, from the beams and the scores of the large one.

    Which beams it keeps follows the rule that will verify them: the best ones for strict
    verification (AtSpeed-S), drawn ones for that which draws.
    """

    def __init__(
        self,
        model: Recommender,
        draft_beams: int,
        most_levels: int = 3,
        rule: Rule | None = None,
        kept: int | None = None,
    ) -> None:
        """The arguments.

        Args:
            model: reads the same tokens as the large one.
            draft_beams: N, drafted nodes of every level.
            most_levels: gamma, levels drafted for one call of the large model.
            rule: that will verify; strict if it is not told.
            kept: K, see `Ranking`.
        """
        self.model, self.most_levels = model, most_levels
        self.ranking = Ranking(rule or StrictTopK(), draft_beams, kept)

    def begin(self, requests: Requests, trie: TrieTensors) -> "SmallModelProposer":
        """See `Drafter`."""
        return SmallModelProposer(self, requests)


class SmallModelProposer:
    """The drafter at work on one batch.

    After every verification it forgets its nodes and reads the beams from their first code on: K
    times the depth tokens of a tiny model, and nothing to keep in step with the large one. Keys and
    values of the histories stay.
    """

    def __init__(self, drafter: SmallModelDraft, requests: Requests) -> None:
        self._drafter, self._seeds = drafter, requests.seeds
        self._session = Session(drafter.model, requests.histories)

    def propose(self, session: Session, beams: Beams, trie: TrieTensors) -> Draft:
        """See `Proposer`."""
        drafter = self._drafter
        count = min(drafter.most_levels, most_levels(beams, trie))
        if count <= 0:
            return Draft([])
        hidden, first = self._read(beams)
        scores, nodes = beams.scores, beams.nodes
        drafted = drafter.ranking.begin(self._seeds, beams)
        levels, log_q = [], []
        for number in range(1, count + 1):
            depth = beams.depth + number  # of the codes that are drafted
            children = trie.children(nodes)
            log_probs = drafter.model.log_probs(hidden, (depth - 1).clamp(max=trie.levels - 1))
            joint = joint_scores(scores, log_probs, children, trie)
            choice, drafted = drafter.ranking.choose(joint, drafted)
            level = _level(choice, children, depth < trie.levels)
            levels.append(level)
            log_q.append(joint)
            if number < count:
                hidden, first = self._extend(level, first, depth.clamp(max=trie.levels))
                scores = choice.scores.masked_fill(~level.is_real, -torch.inf)
                nodes = level.nodes
        return Draft(levels, log_q if drafter.ranking.rule.needs_q else None)

    def narrow(self, rows: torch.Tensor) -> None:
        """See `Proposer`."""
        self._seeds = self._seeds[rows]
        self._session.narrow(rows)

    def _read(self, beams: Beams) -> tuple[torch.Tensor, int]:
        """Hidden states of the ends of beams (users, k, width), and the node of the first."""
        session = self._session
        session.forget_nodes()
        if beams.is_root:
            if not session.is_open:
                session.hidden_of([])
            return session.end[:, None], ROOT
        paths = _paths(beams)
        hidden, firsts = session.hidden_of(paths)
        return hidden[-1], firsts[-1]

    def _extend(self, level: Level, first: int, depth: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Hidden states of a drafted level below nodes `first` and on, and its own first node."""
        parents = level.parents + first if first != ROOT else torch.full_like(level.parents, ROOT)
        hidden, firsts = self._session.hidden_of([Nodes(level.codes, parents, depth)])
        return hidden[0], firsts[0]


def _paths(beams: Beams) -> list[Nodes]:
    """All codes of beams, level by level, the last codes of everybody in the last level.

    Who has fewer codes than others begins with repetitions of a first code, which nobody sees.
    """
    most = int(beams.depth.max())
    columns = torch.arange(beams.width, device=beams.codes.device).expand_as(beams.scores)
    paths = []
    for step in range(most):
        depth = beams.depth - (most - 1 - step)
        place = (depth - 1).clamp(min=0).view(-1, 1, 1).expand(-1, beams.width, 1)
        above = columns + (step - 1) * beams.width
        parents = torch.where(depth[:, None] > 1, above, ROOT)
        paths.append(Nodes(beams.codes.gather(2, place)[..., 0], parents, depth.clamp(min=1)))
    return paths


def _level(choice: Choice, children: torch.Tensor, may_be: torch.Tensor) -> Level:
    """Drafted nodes; only users `may_be` (users,) still have a level to draft."""
    flat = choice.rows * children.shape[2] + choice.codes
    is_real = (choice.scores > -torch.inf) & may_be[:, None]
    nodes = children.flatten(1).gather(1, flat).masked_fill(~is_real, NONE)
    return Level(choice.codes, choice.rows, nodes, is_real)
