"""N-to-K verification of drafted beams, level by level (AtSpeed, Lin et al., ICLR'25).

A level is accepted if all K beams that the model goes on with are among the N drafted nodes: then
their successors have been scored in the same call. The first level that is not still counts, since
the model has chosen it, and what was drafted below is dropped. So a call advances beams by the
levels accepted and one more.
"""

from typing import NamedTuple, Protocol

import torch

from pipeline.generative.beams import (
    Beams,
    Choice,
    Draft,
    Level,
    TreeScores,
    best,
    extend,
    joint_scores,
)
from pipeline.generative.noise import path_keys
from pipeline.generative.session import ROOT
from pipeline.generative.trie_tensors import TrieTensors

NOT_DRAFTED = -1


class Rule(Protocol):
    """Which continuations the model goes on with, and what a drafter best guesses for it."""

    needs_q: bool  # the drafter's own probabilities

    def draft_order(self, joint: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """What a drafter that searches drafts the largest of, -inf where nothing may be.

        Args:
            joint: summed log-probabilities of the drafter: (users, n, codes).
            keys: of the n paths that are continued, as in `choose`: (users, n) int64.
        """
        ...

    def choose(
        self,
        joint: torch.Tensor,
        column: torch.Tensor,
        log_q: torch.Tensor | None,
        width: int,
        keys: torch.Tensor,
    ) -> Choice:
        """K of all continuations.

        Args:
            joint: summed log-probabilities of the model, -inf where none may be: (users, k, codes).
            column: where each was drafted, or NOT_DRAFTED: (users, k, codes).
            log_q: summed log-probabilities of the drafter, with `needs_q`: (users, k, codes).
            width: K.
            keys: of the user's seed and the path that each beam is, from which all that is drawn
                follows: (users, k) int64.
        """
        ...


class StrictTopK:
    """The K best: beams are those of the model's own beam search."""

    needs_q = False

    def draft_order(self, joint: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """See `Rule`."""
        return joint

    def choose(
        self,
        joint: torch.Tensor,
        column: torch.Tensor,
        log_q: torch.Tensor | None,
        width: int,
        keys: torch.Tensor,
    ) -> Choice:
        """See `Rule`."""
        return best(joint, width)


class Verified(NamedTuple):
    """Where beams stand after a call."""

    beams: Beams
    accepted: torch.Tensor  # (users,) int64, drafted levels that were accepted


def verify(
    rule: Rule,
    beams: Beams,
    draft: Draft,
    scores: TreeScores,
    trie: TrieTensors,
    width: int,
    seeds: torch.Tensor,
) -> Verified:
    """Advance beams by as many levels as the draft allows, one at least.

    `seeds` (users,) int64 are of whatever the rule draws; each level is chosen once, so the paths
    that it continues tell its draws from all others.
    """
    levels = beams.codes.shape[2]
    columns = torch.arange(beams.width, device=beams.depth.device).expand(len(beams.depth), -1)
    going = beams.depth < levels
    accepted = torch.zeros_like(beams.depth)
    current = beams
    for number, log_probs in enumerate(scores.log_probs):
        children = trie.children(current.nodes)
        own = log_probs.gather(1, columns[..., None].expand(-1, -1, log_probs.shape[2]))
        joint = joint_scores(current.scores, own, children, trie)
        level = draft.levels[number] if number < len(draft.levels) else None
        column = drafted_columns(level, columns, joint)
        log_q = _of_columns(draft, number, columns) if rule.needs_q else None
        keys = path_keys(seeds, current.codes, current.depth)
        choice = rule.choose(joint, column, log_q, width, keys)
        first = scores.firsts[number]
        parents = columns + first if first != ROOT else torch.full_like(columns, ROOT)
        ahead = extend(current, choice, children, parents)
        beams = ahead.where(going, beams) if number else ahead
        found = column.flatten(1).gather(1, choice.rows * joint.shape[2] + choice.codes)
        is_found = (found != NOT_DRAFTED) | (choice.scores == -torch.inf)
        going = going & is_found.all(1) & (ahead.depth < levels)
        if level is None or not going.any():
            break
        accepted += going
        current, columns = ahead, found.clamp(min=0)
    return Verified(beams, accepted)


def drafted_columns(
    level: Level | None, columns: torch.Tensor, joint: torch.Tensor
) -> torch.Tensor:
    """Column of `level` that each continuation of `joint` (users, k, codes) was drafted as.

    Args:
        level: drafted codes, None for no more draft.
        columns: of the level above that the k beams stand in, (users, k).
        joint: tells the shape.
    """
    users, k, num_codes = joint.shape
    found = torch.full((users, k * num_codes + 1), NOT_DRAFTED, device=joint.device)
    if level is None:
        return found[:, :-1].view(users, k, num_codes)
    is_child = (level.parents[:, None] == columns[..., None]) & level.is_real[:, None]
    row = is_child.int().argmax(1)  # (users, n)
    place = torch.where(is_child.any(1), row * num_codes + level.codes, k * num_codes)
    number = torch.arange(level.codes.shape[1], device=joint.device).expand(users, -1)
    return found.scatter(1, place, number)[:, :-1].view(users, k, num_codes)


def _of_columns(draft: Draft, number: int, columns: torch.Tensor) -> torch.Tensor | None:
    """What the drafter thought of continuations of the beams that stand in `columns`."""
    if draft.log_q is None or number >= len(draft.log_q):
        return None
    log_q = draft.log_q[number]
    return log_q.gather(1, columns[..., None].expand(-1, -1, log_q.shape[2]))
