"""Activation functions that give a token the same bits whoever shares its step.

torch computes what does not fill its vectors by scalar code that rounds otherwise. Where that falls
depends on the number of values, on whether they lie side by side, and, where threads share them,
on the number of threads.
"""

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.activations import ACT2CLS

_VECTORS = 64  # values: two vectors, which torch computes at a time, of whatever CPU
_SPLIT = 32768  # values that threads share; functions that are split sooner round alike anyway
_CLASSES = tuple(entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values())


class IsolatedActivation(nn.Module):
    """An elementwise activation of full vectors, as many rows at a time as one thread takes."""

    def __init__(self, activation: nn.Module) -> None:
        """Wrap `activation`."""
        super().__init__()
        self._activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) -> (..., width)."""
        x, width = x.contiguous(), x.shape[-1]
        if width % _VECTORS == 0 and x.numel() < _SPLIT:
            return self._activation(x)
        rows = pad(x, (0, -width % _VECTORS)).flatten(0, -2)  # (tokens, full vectors)
        parts = rows.split(max(1, (_SPLIT - 1) // rows.shape[1]))
        output = torch.cat([self._activation(part) for part in parts])
        return output[:, :width].view_as(x)


def isolate_activations(model: nn.Module) -> None:
    """Wrap every activation module of `model`, which runs on a CPU."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _CLASSES) and not isinstance(parent, IsolatedActivation):
                setattr(parent, name, IsolatedActivation(child))
