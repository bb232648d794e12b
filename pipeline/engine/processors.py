"""What happens to the logits of a token before any rule looks at them.

Every processor depends on the tokens before, so each branch of a draft tree is judged by its own
path. The formulas and their order are those of transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.engine.branch import Branch


@dataclass(frozen=True)
class Processors:
    """Repetition penalty, no-repeat n-gram and the least number of new tokens."""

    stop_ids: frozenset[int]
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0  # size of the n-grams that may occur once only; 0: any may recur
    min_new_tokens: int = 0

    def apply(self, scores: torch.Tensor, branches: Sequence[Branch]) -> torch.Tensor:
        """Change `scores` (branches, vocab) in place, and return them."""
        if self.repetition_penalty != 1.0:
            scores = self._penalise_repetition(scores, branches)
        # Models name ids that no token has: -1 for none, or one that their embedding lacks.
        stops = [token for token in self.stop_ids if 0 <= token < scores.shape[1]]
        for row, branch in enumerate(branches):
            if self.no_repeat_ngram:
                scores[row, self._completing(branch.context)] = -torch.inf
            if branch.num_new < self.min_new_tokens:
                scores[row, stops] = -torch.inf
        return scores

    def _penalise_repetition(
        self, scores: torch.Tensor, branches: Sequence[Branch]
    ) -> torch.Tensor:
        """Keskar et al. 2019: every token of the prompt, the output and the path, once.

        A score s becomes s / penalty if positive, s * penalty otherwise.
        """
        seen = [branch.distinct_tokens for branch in branches]
        width = max(map(len, seen))
        padded = [ids + ids[:1] * (width - len(ids)) for ids in seen]  # a repeat changes nothing
        index = torch.tensor(padded, device=scores.device)  # (branches, distinct)
        of_seen = scores.gather(1, index)
        penalty = self.repetition_penalty
        of_seen = torch.where(of_seen < 0, of_seen * penalty, of_seen / penalty)
        return scores.scatter_(1, index, of_seen)

    def _completing(self, context: np.ndarray) -> list[int]:
        """Tokens that would repeat an n-gram of `context` (tokens,)."""
        size = self.no_repeat_ngram
        if len(context) < size:
            return []
        grams = np.lib.stride_tricks.sliding_window_view(context, size)
        last = context[len(context) - size + 1 :]
        return grams[(grams[:, :-1] == last).all(axis=1), -1].tolist()
