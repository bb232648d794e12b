"""NEZHA's draft head (WWW'26): all codes of the next item out of one pass over placeholders.

The model reads a history and a placeholder for every level. A recurrent state carries what was
chosen on earlier levels:

    s_1 = h_0;  p_l = softmax(W_l (h_l + s_l));  s_{l+1} = tanh(A_l e_l + B_l s_l + b_l)

where h_0 is the hidden state of the end of the history, h_l that of placeholder l and e_l the
embedding of the code chosen on level l, from a table of that level. After the last level nothing
is chosen, so it has neither table nor transition.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from pipeline.errors import DataError

_SHAPE, _WEIGHTS = "shape.json", "model.safetensors"


class PlaceholderHead(nn.Module):
    """Levels count from 0."""

    def __init__(self, levels: int, num_codes: int, width: int) -> None:
        """`width` of the hidden states of the model."""
        super().__init__()
        self.levels, self.num_codes, self.width = levels, num_codes, width
        self.heads = nn.Parameter(torch.empty(levels, num_codes, width))  # W
        self.codes = nn.Parameter(torch.empty(levels - 1, num_codes, width))  # e
        self.from_code = nn.Parameter(torch.empty(levels - 1, width, width))  # A
        self.from_state = nn.Parameter(torch.empty(levels - 1, width, width))  # B
        self.bias = nn.Parameter(torch.zeros(levels - 1, width))  # the cell's two biases, summed
        nn.init.normal_(self.heads, std=0.02)
        nn.init.normal_(self.codes)
        for weights in (self.from_code, self.from_state):  # as torch.nn.RNNCell begins
            nn.init.uniform_(weights, -(width**-0.5), width**-0.5)

    def log_probs(
        self, level: int | torch.Tensor, states: torch.Tensor, placeholders: torch.Tensor
    ) -> torch.Tensor:
        """Of the codes of a level, (..., num_codes) float32.

        Args:
            level: whose codes are asked for; or one for every row, (users,) int64.
            states: s_l, (..., width); (users, k, width) for a level a row.
            placeholders: h_l, of a shape that broadcasts to that of `states`.
        """
        return torch.log_softmax(self._logits(level, states + placeholders), dim=-1)

    def _logits(self, level: int | torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        return (sums @ self.heads[level].mT).float()

    def advance(
        self, level: int | torch.Tensor, states: torch.Tensor, codes: torch.Tensor
    ) -> torch.Tensor:
        """States of the next level, (..., width).

        Args:
            level: whose code was chosen, not the last; or one for every row, (users,) int64.
            states: s_l, (..., width); (users, k, width) for a level a row.
            codes: chosen, (...) int64.
        """
        # Few codes, many beams: what a code adds is computed once per code.
        if isinstance(level, int):  # not by indexing: its gradient is summed row after row
            added = self.codes[level] @ self.from_code[level].mT + self.bias[level]
            chosen = nn.functional.embedding(codes, added)
        else:  # of all levels, however many users are at each
            chosen = torch.baddbmm(self.bias[:, None], self.codes, self.from_code.mT)
            chosen = chosen[level[:, None], codes]
        return torch.tanh(chosen + states @ self.from_state[level].mT)

    def loss(
        self, ends: torch.Tensor, placeholders: torch.Tensor, codes: torch.Tensor
    ) -> torch.Tensor:
        """Cross-entropy of the codes of items, mean over items and levels; a scalar.

        Args:
            ends: h_0, (n, width), n at least 1.
            placeholders: h_1 to h_L, (n, levels, width).
            codes: of the items that came next, (n, levels) int64; each level is told the codes
                before it (teacher forcing).
        """
        states, logits = ends, []
        for level in range(self.levels):
            logits.append(self._logits(level, states + placeholders[:, level]))
            if level < self.levels - 1:
                states = self.advance(level, states, codes[:, level])
        return nn.functional.cross_entropy(torch.cat(logits), codes.T.flatten())

    def save(self, folder: Path) -> None:
        """Write shape and weights; no pickle."""
        folder.mkdir(parents=True, exist_ok=True)
        shape = {"levels": self.levels, "num_codes": self.num_codes, "width": self.width}
        (folder / _SHAPE).write_text(json.dumps(shape))
        save_model(self, str(folder / _WEIGHTS))


def make_placeholder_head(levels: int, num_codes: int, width: int, seed: int) -> PlaceholderHead:
    """An untrained head; the global random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PlaceholderHead(levels, num_codes, width)


def load_placeholder_head(folder: Path, device: torch.device | str = "cpu") -> PlaceholderHead:
    """Read what `PlaceholderHead.save` wrote, in evaluation mode.

    Raises:
        DataError: something is missing or damaged.
    """
    try:
        head = PlaceholderHead(**json.loads((folder / _SHAPE).read_text()))
        load_model(head, str(folder / _WEIGHTS))
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"{folder} holds no usable draft head ({error}); move it away and run again"
        ) from error
    return head.to(device).eval()
