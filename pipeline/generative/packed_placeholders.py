"""Training windows with placeholders after several of their items, all in one pass.

A group of placeholders sees the window up to its cut and itself, causally, as if the window ended
there; nothing else sees it. So one pass trains the model on every position and NEZHA's head on
every cut, where a pass per cut would cost as many times more.
"""

from typing import NamedTuple

import torch

from pipeline.generative.recommender import Recommender

NO_CUT = -1


class States(NamedTuple):
    """Hidden states of a packed pass."""

    windows: torch.Tensor  # (windows, tokens, width), as they are without placeholders
    ends: torch.Tensor  # (groups, width), of the last token before each cut
    placeholders: torch.Tensor  # (groups, levels, width)


class Packed(NamedTuple):
    """Windows with placeholders behind them; a group is the placeholders of a cut, by window."""

    tokens: torch.Tensor  # (windows, all) int64, all = tokens of a window + cuts * levels
    positions: torch.Tensor  # (windows, all) int64
    sees: torch.Tensor  # (windows, all, all) bool
    rows: torch.Tensor  # (groups,) int64, window of each group
    ends: torch.Tensor  # (groups,) int64, column of the last token before its cut
    groups: torch.Tensor  # (groups, levels) int64, columns of its placeholders
    codes: torch.Tensor  # (groups, levels) int64, of the item after its cut: to be foretold
    num_tokens: int  # of a window; the columns before the placeholders

    def run(self, model: Recommender) -> States:
        """One pass of the model."""
        hidden = model(self.tokens, self.positions, self.sees)  # (windows, all, width)
        return States(
            hidden[:, : self.num_tokens],
            hidden[self.rows, self.ends],
            hidden[self.rows[:, None], self.groups],
        )


def pack(
    model: Recommender, tokens: torch.Tensor, lengths: torch.Tensor, cuts: torch.Tensor
) -> Packed:
    """Lay placeholders behind windows.

    Args:
        model: tells the tokens.
        tokens: `bos` and the codes of items, padded at the end: (windows, 1 + most * levels) int64.
        lengths: items of each window, (windows,) int64.
        cuts: items before each group, fewer than the window has; or NO_CUT: (windows, cuts) int64.
    """
    levels, (windows, num_tokens), num_cuts = model.levels, tokens.shape, cuts.shape[1]
    level = torch.arange(levels, device=tokens.device)
    ends = cuts.clamp(min=0) * levels  # (windows, cuts), columns
    after = (ends[..., None] + 1 + level).flatten(1)  # columns of the items after cuts, and places
    placeholders = (model.placeholders[0] + level).repeat(windows, num_cuts)
    before = torch.arange(num_tokens, device=tokens.device).expand(windows, -1)
    rows, number = (cuts != NO_CUT).nonzero(as_tuple=True)
    foretold = tokens[rows[:, None], after.view(windows, num_cuts, levels)[rows, number]]
    return Packed(
        torch.cat([tokens, placeholders], 1),
        torch.cat([before, after], 1),
        _sees(num_tokens, lengths * levels + 1, ends, levels),
        rows,
        ends[rows, number],
        num_tokens + number[:, None] * levels + level,
        foretold - level * model.num_codes,
        num_tokens,
    )


def _sees(num_tokens: int, lengths: torch.Tensor, ends: torch.Tensor, levels: int) -> torch.Tensor:
    """Mask of windows of `lengths` tokens (windows,) and placeholders behind columns `ends`."""
    windows, num_cuts = ends.shape
    column = torch.arange(num_tokens, device=ends.device)
    behind = torch.arange(num_cuts * levels, device=ends.device)
    past = (column <= column[:, None]) & (column < lengths[:, None])[:, None]
    past = past | (column == column[:, None])  # padding sees itself
    blind = past.new_zeros(windows, num_tokens, len(behind))
    prefix = column <= ends.repeat_interleave(levels, 1)[..., None]  # (windows, behind, tokens)
    own = (behind <= behind[:, None]) & (behind // levels == behind[:, None] // levels)
    group = torch.cat([prefix, own.expand(windows, -1, -1)], 2)
    return torch.cat([torch.cat([past, blind], 2), group], 1)
