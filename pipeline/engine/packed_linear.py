"""Linear layers whose weights are laid out once for oneDNN.

A decoding step multiplies few tokens by large weights. On a CPU the stock layer re-packs the
weights at every call from two tokens on; packing once halves its time for 2 to 32 tokens.
"""

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on a CPU in float32; the original weight is not kept."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Pack `weight` (out, in) and keep `bias` (out,)."""
        super().__init__()
        self._bias = bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out)."""
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def pack_linears(model: nn.Module) -> None:
    """Replace every float32 CPU `nn.Linear` and `Conv1D` of `model`, where oneDNN is there."""
    if not torch.backends.mkldnn.is_available():
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _can_be_packed(child.weight):
                setattr(parent, name, PackedLinear(child.weight, child.bias))
            elif type(child) is Conv1D and _can_be_packed(child.weight):  # GPT-2: transposed
                setattr(parent, name, PackedLinear(child.weight.t().contiguous(), child.bias))


def _can_be_packed(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32
