"""Cascade tree attention: the path of a CUDA device in half precision.

Committed text branches nowhere, so a variable-length flash kernel reads it straight from the
arena, without a mask and with grouped heads. A prompt's chunk attends to it causally. The last
token of a row and its draft nodes see all of it; the nodes then see their ancestors by a small
masked product, and the two halves are merged by log-sum-exp (as in Hydragen, arXiv:2402.05099).

The kernel takes float16 and bfloat16 only; float32 keeps the masked path on CUDA too.

A kernel's sliding window counts keys from the end of a sequence. That is right for a chunk, whose
keys lie in text order, and wrong for draft nodes, whose place in the text is their depth. Where a
window begins inside the text, every node is therefore a run of its own, with its own first key.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.attention.varlen import AuxRequest, varlen_attn

_KERNEL_DTYPES = (torch.float16, torch.bfloat16)
_WIDEST_HEAD = 256
_AMPERE = (8, 0)  # compute capability


@dataclass(frozen=True)
class Runs:
    """Runs of queries and the run of arena keys that each sees: what the kernel is told."""

    queries: torch.Tensor  # (tokens,) packed index
    query_starts: torch.Tensor  # (runs + 1,) int32, into `queries`
    key_starts: torch.Tensor  # (runs + 1,) int32, slot * max_length + position; need not grow
    num_keys: torch.Tensor  # (runs,) int32
    most_queries: int
    most_keys: int


@dataclass(frozen=True)
class Block:
    """The draft nodes of all rows that have some, padded to the widest tree."""

    queries: torch.Tensor  # (rows * width,) packed index of every node, 0 where padded
    keys: torch.Tensor  # (rows * width,) arena index of every node, 0 where padded
    real: torch.Tensor  # (nodes,) index into `queries` of the unpadded ones
    packed: torch.Tensor  # (nodes,) their packed index
    masks: dict[int, torch.Tensor]  # window -> additive (rows, width, width) float32


@dataclass(frozen=True)
class Cascade:
    """What a step's attention needs, built once and used by every layer."""

    chunks: Runs | None  # pending tokens before the last one of a row; causal
    tails: dict[int, Runs]  # window -> last pending tokens and draft nodes, over the text
    block: Block | None


def is_supported(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether torch's variable-length kernel runs there, and on such keys."""
    return (
        device.type == "cuda"
        and dtype in _KERNEL_DTYPES
        and head_dim <= _WIDEST_HEAD
        and head_dim % 8 == 0
        and torch.cuda.get_device_capability(device) >= _AMPERE
    )


def plan_runs(
    queries: np.ndarray,
    widths: Sequence[int] | np.ndarray,
    key_starts: Sequence[int] | np.ndarray,
    num_keys: Sequence[int] | np.ndarray,
    device: torch.device,
) -> Runs:
    """Runs of `widths` queries each; run i sees `num_keys[i]` keys from `key_starts[i]` on."""
    ends = np.asarray(key_starts)[-1:] + np.asarray(num_keys)[-1:]  # the kernel wants runs + 1
    columns = (np.cumsum([0, *widths]), np.concatenate([key_starts, ends]), num_keys)
    starts, keys, counts = (
        torch.from_numpy(np.asarray(column, np.int32)).to(device) for column in columns
    )
    packed = torch.from_numpy(queries).to(device)
    return Runs(packed, starts, keys, counts, int(max(widths)), int(max(num_keys)))


def cascade_attention(
    packed: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cascade: Cascade,
    window: int,
    scaling: float,
) -> torch.Tensor:
    """Attend from packed queries (tokens, heads, dim) to the arena (rows, length, heads, dim).

    `window` is the layer's sliding window, 0 for full attention. Returns (tokens, heads, dim).
    """
    keys, values = key.flatten(0, 1), value.flatten(0, 1)
    output = torch.empty_like(packed)
    if cascade.chunks is not None:
        causal = (window - 1, 0)  # keys to the left and right; -1 is all of them
        output[cascade.chunks.queries], _ = attend_text(
            packed, keys, values, cascade.chunks, causal, scaling
        )
    tails, block = cascade.tails[window], cascade.block
    seen, text_lse = attend_text(packed, keys, values, tails, (-1, -1), scaling)
    output[tails.queries] = seen
    if block is not None:
        lse = text_lse.new_empty(packed.shape[:2])
        lse[tails.queries] = text_lse
        nodes = block.packed
        guesses = _attend_nodes(packed, keys, values, block, block.masks[window], scaling)
        output[nodes] = merge(output[nodes], lse[nodes], *guesses).to(output.dtype)
    return output


def merge(
    text: torch.Tensor, text_lse: torch.Tensor, nodes: torch.Tensor, nodes_lse: torch.Tensor
) -> torch.Tensor:
    """Attention over two disjoint sets of keys, from attention over each.

    Outputs (tokens, heads, dim), log-sum-exp of their scores (tokens, heads). `text_lse` may be
    -inf, `nodes_lse` not: a node always sees itself. Returns float32.
    """
    share = torch.sigmoid(text_lse - nodes_lse)  # exp(text) / (exp(text) + exp(nodes))
    return torch.lerp(nodes.float(), text.float(), share[..., None])


def attend_text(
    packed: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    runs: Runs,
    sight: tuple[int, int],
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of `runs` to keys and values (arena, heads, dim), by the kernel.

    `sight` bounds keys to the left and right of a query whose run ends with the keys, -1 for no
    bound. Returns the output (tokens, heads, dim) and the log-sum-exp (tokens, heads) float32, zero
    and -inf for a query that sees no key.
    """
    output, lse = varlen_attn(
        packed[runs.queries],
        keys,
        values,
        runs.query_starts,
        runs.key_starts,
        runs.most_queries,
        runs.most_keys,
        return_aux=AuxRequest(lse=True),
        scale=scaling,
        window_size=sight,
        enable_gqa=True,
        seqused_k=runs.num_keys,
    )
    # The kernel gives (heads, tokens), whatever its docstring says, and +inf for "no key".
    return output, torch.where(lse.T.isposinf(), -math.inf, lse.T)


def _attend_nodes(
    packed: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block: Block,
    mask: torch.Tensor,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the draft nodes to each other: (nodes, heads, dim), (nodes, heads).

    In float32, like the inside of the kernel: scores rounded to half precision would weigh the two
    halves wrongly. r, q, k, g, f, d: row, query, key, key-value head, query head of it, dimension.
    """
    heads, dim = packed.shape[1:]
    kv_heads = keys.shape[1]
    rows, width = mask.shape[:2]
    query = packed[block.queries].view(rows, width, kv_heads, heads // kv_heads, dim).float()
    key = keys[block.keys].view(rows, width, kv_heads, dim).float()
    value = values[block.keys].view(rows, width, kv_heads, dim).float()
    scores = torch.einsum("rqgfd,rkgd->rgfqk", query, key) * scaling + mask[:, None, None]
    lse = scores.logsumexp(-1).permute(0, 3, 1, 2).reshape(rows * width, heads)
    output = torch.einsum("rgfqk,rkgd->rqgfd", scores.softmax(-1), value)
    return output.reshape(rows * width, heads, dim)[block.real], lse[block.real]
