"""Tree attention as a transformers attention function.

Registered under one name for any model; takes the arena as keys and values and the packed `Step`
as a forward argument, whose plan says how to compute it. In masked attention grouped-query heads
are folded into the query axis, so keys and values are never repeated in memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from pipeline.engine.cascade import Cascade, cascade_attention
from pipeline.engine.packing import Step
from pipeline.engine.row_attention import row_attention
from pipeline.engine.row_plan import RowPlan
from pipeline.engine.segments import Segment

TREE_ATTENTION = "laser_tree"


def tree_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    step: Step,
    scaling: float,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from packed queries (1, heads, tokens, dim) to the arena (rows, length, heads, dim).

    Returns (1, tokens, heads, dim). `attention_mask` is not used: a step holds its own masks.
    """
    packed = query[0].transpose(0, 1)  # (tokens, heads, dim)
    window, plan = sliding_window or 0, step.attention
    if isinstance(plan, Cascade):
        output = cascade_attention(packed, key, value, plan, window, scaling)
    elif isinstance(plan, RowPlan):
        output = row_attention(packed, key, value, plan, window, scaling)
    else:
        output = masked_attention(packed, key, value, plan, window, scaling)
    return output[None], None


def masked_attention(
    packed: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Sequence[Segment],
    window: int,
    scaling: float,
) -> torch.Tensor:
    """One masked product for each segment: any device, any floating-point type.

    Queries and result (tokens, heads, dim), the arena (rows, length, heads, dim).
    """
    output = torch.empty_like(packed)
    for segment in segments:
        mask = segment.masks[window]
        output[segment.packed] = _attend(packed, key, value, segment, mask, scaling)
    return output


def _attend(
    packed: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segment: Segment,
    mask: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """Attention of one segment's real queries: (tokens, heads, dim)."""
    rows, width = segment.last - segment.first, segment.width
    heads, dim = packed.shape[1:]
    kv_heads = key.shape[2]
    fold = heads // kv_heads
    query = packed[segment.queries].view(rows, width, kv_heads, fold, dim)
    folded = query.permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, fold * width, dim)
    sight = slice(segment.first, segment.last), slice(0, segment.length)
    result = scaled_dot_product_attention(
        folded,
        key[sight].transpose(1, 2),  # (rows, kv_heads, length, dim), a view
        value[sight].transpose(1, 2),
        attn_mask=mask,
        scale=scaling,
    )
    result = result.view(rows, kv_heads, fold, width, dim).permute(0, 3, 1, 2, 4)
    return result.reshape(rows * width, heads, dim)[segment.real]


def register(name: str, attention: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Make `attention` known to transformers; for the whole process, so a name never changes hands.

    The mask function is registered too: without one, a plain call of the model would silently
    attend to the future.
    """
    AttentionInterface.register(name, attention)  # pyright: ignore[reportArgumentType]
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
