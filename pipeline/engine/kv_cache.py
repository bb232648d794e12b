"""Keys and values of all rows in one arena, allocated once.

Row `r` owns slot `r` of the arena. A step writes the pending tokens and the draft nodes of a row
right behind its cached tokens. Accepting nodes copies their few entries together; refusing them
is doing nothing, because the next step writes over them. Keys are stored after RoPE at their true
position, so a copy needs no rotation.
"""

from typing import Any

import numpy as np
import torch

from pipeline.engine.packing import Step


class KVCache:
    """The arena; `runner` hands it to a model as its cache.

    Bytes: 2 x layers x rows x length x heads x head_dim x bytes per element.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        length: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, rows, length, heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._contents = [np.empty(0, np.int32)] * rows  # cached tokens of every slot

    @property
    def max_length(self) -> int:
        """Slots for tokens and draft nodes per row."""
        return self.keys.shape[2]

    @property
    def num_heads(self) -> int:
        """Key-value heads."""
        return self.keys.shape[3]

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new keys and values (1, heads, tokens, dim); return its arena.

        The arena (rows, length, heads, dim) goes to the attention function instead of the usual
        (batch, heads, length, dim).
        """
        step: Step = kwargs["step"]
        for arena, new in ((self.keys, key), (self.values, value)):
            flat = arena[layer_idx].flatten(0, 1)  # (rows * length, heads, dim), a view
            flat.index_copy_(0, step.cache_index, new[0].transpose(0, 1))
        return self.keys[layer_idx], self.values[layer_idx]

    def keep(self, slots: list[int], starts: list[int], paths: list[list[int]]) -> None:
        """Move the accepted nodes of each row together.

        `starts[r]` is the arena position of node 0 of the row in `slots[r]`; `paths[r]` are the
        accepted nodes from the root down.
        """
        rows, sources, targets = [], [], []
        for slot, start, path in zip(slots, starts, paths, strict=True):
            for depth, node in enumerate(path):
                if node != depth:
                    rows.append(slot)
                    sources.append(start + node)
                    targets.append(start + depth)
        if rows:
            for arena in (self.keys, self.values):
                arena[:, rows, targets] = arena[:, rows, sources]

    def remember(self, slot: int, tokens: np.ndarray) -> None:
        """Note which tokens a slot holds keys and values of."""
        self._contents[slot] = tokens

    def forget(self) -> None:
        """Let no prompt reuse what the slots hold."""
        self._contents = [np.empty(0, np.int32)] * len(self._contents)

    def reuse_prefix(self, slot: int, prompt: np.ndarray) -> int:
        """Fill `slot` with the longest prefix of `prompt` that any slot holds.

        Returns the number of tokens that need no computing; at least one token is left, because
        its logits are wanted.
        """
        lengths = [common_prefix(prompt[:-1], contents) for contents in self._contents]
        donor = int(np.argmax(lengths))
        if lengths[slot] < lengths[donor]:
            self._copy(donor, slot, lengths[donor])
        self.remember(slot, prompt[: lengths[donor]])
        return lengths[donor]

    def erase(self, slot: int, start: int = 0) -> None:
        """Clear a slot that may hold NaNs from `start` on: a masked one still spoils a sum."""
        self.keys[:, slot, start:] = 0.0
        self.values[:, slot, start:] = 0.0
        self.remember(slot, self._contents[slot][:start])

    def move(self, source: int, target: int) -> None:
        """Move a row to another slot, unless that slot happens to hold the same and more."""
        tokens = self._contents[source]
        if common_prefix(tokens, self._contents[target]) < len(tokens):
            self._copy(source, target, len(tokens))
            self.remember(target, tokens)

    def _copy(self, source: int, target: int, length: int) -> None:
        for arena in (self.keys, self.values):
            arena[:, target, :length] = arena[:, source, :length]


def common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """Number of leading tokens that two token arrays share."""
    size = min(len(left), len(right))
    differing = np.flatnonzero(left[:size] != right[:size])
    return int(differing[0]) if len(differing) else size
