"""What a model would recommend, with all its probabilities: what a drafter is trained on.

A drafter aligned where the model really searches, on the model's own beams, has more levels
accepted than one aligned on what users liked (AtSpeed, Lin et al., ICLR'25).
"""

from dataclasses import dataclass

import numpy as np
import torch

from pipeline.generative.beam_engine import BeamEngine
from pipeline.generative.drafters import NoDraft, Requests
from pipeline.generative.event_log import as_histories
from pipeline.generative.recommender import Recommender
from pipeline.generative.session import ROOT, Histories, Nodes, Session
from pipeline.generative.trie_tensors import TrieTensors
from pipeline.generative.verification import StrictTopK

_AT_ONCE = 256  # contexts


@dataclass(frozen=True)
class TeacherBeams:
    """Beams of contexts, and log-probabilities at every place of each.

    Memory: contexts x (1 + beams x (levels - 1)) x codes x 4 bytes, mostly.
    """

    codes: torch.Tensor  # (contexts, beams, levels) int64
    is_real: torch.Tensor  # (contexts, beams) bool; fewer where the trie is small
    first: torch.Tensor  # (contexts, codes) float32, of the first code
    later: (
        torch.Tensor
    )  # (contexts, beams, levels - 1, codes) float32, after each code but the last

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        """Memory of it all."""
        return sum(own.nbytes for own in (self.codes, self.is_real, self.first, self.later))

    def take(self, rows: torch.Tensor) -> "TeacherBeams":
        """Of some contexts."""
        own = (self.codes, self.is_real, self.first, self.later)
        return TeacherBeams(*(tensor[rows] for tensor in own))

    def log_probs(self) -> list[torch.Tensor]:
        """As `tree_log_probs` gives them."""
        return [self.first[:, None], *self.later.unbind(2)]


@torch.no_grad()
def find_teacher_beams(
    model: Recommender, trie: TrieTensors, items: np.ndarray, codes: np.ndarray, beams: int
) -> TeacherBeams:
    """The best beams of contexts, by plain beam search.

    Args:
        model: the one that will verify drafts.
        trie: of what may be recommended.
        items: histories, the oldest first, NO_ITEM at the end: (contexts, most).
        codes: semantic IDs of all items, (items, levels).
        beams: of every context.
    """
    engine = BeamEngine(model, trie, NoDraft(), StrictTopK(), beams)
    parts = []
    for start in range(0, len(items), _AT_ONCE):
        own = items[start : start + _AT_ONCE]
        histories = as_histories(own, codes, model.num_codes, model.device)
        seeds = torch.zeros(len(own), dtype=torch.int64, device=model.device)
        known = torch.as_tensor(own, device=model.device)
        found = engine.search(Requests(histories, known, seeds))
        first, *later = tree_log_probs(model, histories, found.codes)
        no_code = first.new_empty(*found.codes.shape[:2], 0, first.shape[2])
        after = torch.stack(later, 2) if later else no_code
        parts.append((found.codes, found.scores > -torch.inf, first[:, 0], after))
    return TeacherBeams(*(torch.cat(column) for column in zip(*parts, strict=True)))


def tree_log_probs(
    model: Recommender, histories: Histories, codes: torch.Tensor
) -> list[torch.Tensor]:
    """Of every code that ids of a user go through, all in one call, with gradients if asked for.

    Args:
        model: anyone.
        histories: of users.
        codes: complete ids, (users, n, levels).

    Returns: of the first code (users, 1, codes), then of each next code (users, n, codes).
    """
    users, count, levels = codes.shape
    columns = torch.arange(count, device=codes.device).expand(users, count)
    depth = torch.ones(users, dtype=torch.int64, device=codes.device)
    nodes = [
        Nodes(
            codes[..., level],
            columns + (level - 1) * count if level else torch.full_like(columns, ROOT),
            depth + level,
        )
        for level in range(levels - 1)
    ]
    session = Session(model, histories)
    hidden = session.hidden_of(nodes)[0]
    return [
        model.log_probs(own, depth - 1 + level)
        for level, own in enumerate([session.end[:, None], *hidden])
    ]
