"""Beams, drafts below them, and what a model says of both, for a batch of users.

All users of a batch have the same number of columns. A column with nothing in it has score -inf
(a beam) or is not real (a drafted node).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import nn

from pipeline.generative.code_tree import NONE
from pipeline.generative.session import ROOT, Nodes, Session
from pipeline.generative.trie_tensors import TrieTensors


@dataclass(frozen=True)
class Beams:
    """The most probable beginnings of ids so far."""

    codes: torch.Tensor  # (users, k, levels) int64, filled up to `depth`
    depth: torch.Tensor  # (users,) int64, the same for all beams of a user
    scores: torch.Tensor  # (users, k) float32, summed log-probabilities
    nodes: torch.Tensor  # (users, k) int64 in the trie, NONE where no item begins so
    parents: torch.Tensor  # (users, k) int64, node of the last code but one in the session

    @property
    def width(self) -> int:
        """Columns."""
        return self.scores.shape[1]

    @property
    def is_root(self) -> bool:
        """Whether there is no code yet: then of any user."""
        return not bool(self.depth.any())

    def where(self, keep: torch.Tensor, other: "Beams") -> "Beams":
        """These for users that `keep` (users,) names, the other's for all others."""

        def pick(own: torch.Tensor, their: torch.Tensor) -> torch.Tensor:
            return torch.where(keep.view(-1, *[1] * (own.dim() - 1)), own, their)

        return Beams(*(pick(getattr(self, name), getattr(other, name)) for name in _FIELDS))

    def narrow(self, rows: torch.Tensor) -> "Beams":
        """Of some users only."""
        return Beams(*(getattr(self, name)[rows] for name in _FIELDS))

    def trimmed(self) -> "Beams":
        """Without the last columns that are dead for everybody: none of them is worth a pass.

        The best are in front; one column stays.
        """
        most = max(int((self.scores > -torch.inf).sum(1).max()), 1)
        cut = {name: getattr(self, name)[:, :most] for name in _FIELDS if name != "depth"}
        return replace(self, **cut)

    def padded(self, width: int) -> "Beams":
        """With dead columns up to `width`."""
        room = width - self.width
        return Beams(
            nn.functional.pad(self.codes, (0, 0, 0, room)),
            self.depth,
            nn.functional.pad(self.scores, (0, room), value=-torch.inf),
            nn.functional.pad(self.nodes, (0, room), value=NONE),
            nn.functional.pad(self.parents, (0, room), value=ROOT),
        )


_FIELDS = ("codes", "depth", "scores", "nodes", "parents")


def root_beams(users: int, levels: int, device: torch.device) -> Beams:
    """One empty beam for everybody."""
    codes = torch.zeros(users, 1, levels, dtype=torch.int64, device=device)
    depth = torch.zeros(users, dtype=torch.int64, device=device)
    nodes = torch.zeros(users, 1, dtype=torch.int64, device=device)  # the trie's root
    return Beams(codes, depth, nodes.float(), nodes, nodes + ROOT)


class Level(NamedTuple):
    """Drafted codes, one more than the level above; above the first are the beams."""

    codes: torch.Tensor  # (users, n) int64
    parents: torch.Tensor  # (users, n) int64, column of the level above
    nodes: torch.Tensor  # (users, n) int64 in the trie, or NONE
    is_real: torch.Tensor  # (users, n) bool


class Draft(NamedTuple):
    """A guess at what the model will choose, level by level.

    `log_q` has for every level the log-probability under the drafter of every code below every
    column of the level above, summed from the beams on and with their scores: (users, n above,
    codes). Only verification by sampling asks for it.
    """

    levels: list[Level]
    log_q: list[torch.Tensor] | None = None


class TreeScores(NamedTuple):
    """What the model says of beams and drafted nodes: entry 0 is the beams, then level by level."""

    log_probs: list[torch.Tensor]  # (users, n, codes) each, of the next code
    firsts: list[int]  # node of column 0 in the session; of the root there is none


def score_tree(session: Session, beams: Beams, draft: Draft) -> TreeScores:
    """Score the last codes of beams and a draft below them in one call of the model.

    Levels of complete ids may not be among them: no code follows.
    """
    levels, firsts = [], []
    first = session.num_nodes
    if not beams.is_root:
        row = beams.depth.view(-1, 1, 1).expand(-1, beams.width, 1) - 1
        last = beams.codes.gather(2, row)[..., 0]
        levels.append(Nodes(last, beams.parents, beams.depth))
        firsts.append(first)
        first += beams.width
    else:
        firsts.append(ROOT)
    for number, level in enumerate(draft.levels, 1):
        above = firsts[-1]
        parents = level.parents + above if above != ROOT else torch.full_like(level.parents, ROOT)
        # Of who has fewer levels to go than others, later nodes are not real: they may be anything.
        depth = (beams.depth + number).clamp(max=session.model.levels)
        levels.append(Nodes(level.codes, parents, depth))
        firsts.append(first)
        first += level.codes.shape[1]
    is_asked = levels or not session.is_open  # else there is the end of a history, known already
    hidden = session.hidden_of(levels)[0] if is_asked else []
    if beams.is_root:
        hidden = [session.end[:, None], *hidden]
    last_level = session.model.levels - 1
    return TreeScores(
        [
            session.model.log_probs(own, (beams.depth + number).clamp(max=last_level))
            for number, own in enumerate(hidden)
        ],
        firsts,
    )


class Choice(NamedTuple):
    """Continuations that were chosen: columns of the parents and codes, and their scores."""

    rows: torch.Tensor  # (users, width) int64, which of the parents
    codes: torch.Tensor  # (users, width) int64
    scores: torch.Tensor  # (users, width), -inf where there was nothing to choose


def joint_scores(
    scores: torch.Tensor, log_probs: torch.Tensor, children: torch.Tensor, trie: TrieTensors
) -> torch.Tensor:
    """Summed log-probabilities of every continuation, -inf where the trie forbids it.

    Args: scores (users, k), log_probs (users, k, codes), children (users, k, codes).
    """
    joint = scores[..., None] + log_probs
    return joint.masked_fill(children == NONE, -torch.inf) if trie.is_constraint else joint


def best(joint: torch.Tensor, width: int) -> Choice:
    """The `width` best of `joint` (users, k, codes), the best first."""
    return chosen_by(joint.flatten(1), joint, width)


def chosen_by(keys: torch.Tensor, joint: torch.Tensor, width: int) -> Choice:
    """The `width` entries of `joint` (users, k, codes) with the largest `keys` (users, k * codes).

    An entry whose key is -inf is none.
    """
    num_codes = joint.shape[2]
    room = min(width, keys.shape[1])
    top = keys.topk(room)
    scores = joint.flatten(1).gather(1, top.indices)
    scores = scores.masked_fill(top.values == -torch.inf, -torch.inf)
    flat = nn.functional.pad(top.indices, (0, width - room))
    scores = nn.functional.pad(scores, (0, width - room), value=-torch.inf)
    return Choice(flat // num_codes, flat % num_codes, scores)


def extend(beams: Beams, choice: Choice, children: torch.Tensor, parents: torch.Tensor) -> Beams:
    """Beams one code longer.

    Args:
        beams: those that were extended.
        choice: of them and a code.
        children: of `beams` in the trie, (users, k, codes).
        parents: nodes of the last codes of `beams` in the session, (users, k).
    """
    rows = choice.rows
    levels = beams.codes.shape[2]
    codes = beams.codes.gather(1, rows[..., None].expand(-1, -1, levels))
    place = beams.depth.view(-1, 1, 1).expand(-1, rows.shape[1], 1).clamp(max=levels - 1)
    codes = codes.scatter(2, place, choice.codes[..., None])
    flat = rows * children.shape[2] + choice.codes
    nodes = children.flatten(1).gather(1, flat)
    return Beams(codes, beams.depth + 1, choice.scores, nodes, parents.gather(1, rows))


def drop_scores(beams: Beams, is_out: torch.Tensor) -> Beams:
    """The same beams, those named by `is_out` (users, k) dead."""
    return replace(beams, scores=beams.scores.masked_fill(is_out, -torch.inf))
