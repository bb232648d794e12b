"""Linear layers whose weights are laid out once for products with few rows."""

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from pipeline.engine.skinny_gemm import PackedWeight, can_pack


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on a CPU in float32; the original weight is not kept."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Pack `weight` (out, in) and keep `bias` (out,)."""
        super().__init__()
        self._bias = bias
        self._weight = PackedWeight(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out)."""
        y = self._weight.multiply(x)
        return y if self._bias is None else y + self._bias


def pack_linears(model: nn.Module) -> None:
    """Replace every `nn.Linear` and `Conv1D` of `model` that can be packed."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and can_pack(child.weight):
                setattr(parent, name, PackedLinear(child.weight, child.bias))
            elif type(child) is Conv1D and can_pack(child.weight.t()):  # GPT-2: transposed
                setattr(parent, name, PackedLinear(child.weight.t(), child.bias))


def is_packed(model: nn.Module) -> bool:
    """Whether no product is left to torch: neither a layer nor a stack of experts' matrices."""
    is_linear = any(type(module) in (nn.Linear, Conv1D) for module in model.modules())
    return not is_linear and all(parameter.dim() < 3 for parameter in model.parameters())
