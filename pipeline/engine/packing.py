"""All rows of a step in one line of tokens, and a plan of what each token may attend to.

Linear layers see the packed tokens, no padding. How attention is computed depends on device and
type: a cascade where the flash kernel runs, row by row on a CPU in float32, masks elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.engine.cascade import Cascade, is_supported
from pipeline.engine.cascade_plan import plan_cascade
from pipeline.engine.lines import Line, line_of
from pipeline.engine.row import Row
from pipeline.engine.row_attention import can_attend
from pipeline.engine.row_plan import RowPlan, plan_rows
from pipeline.engine.segments import Segment, plan_segments
from pipeline.engine.types import DraftTree


@dataclass(frozen=True)
class Layout:
    """What packing must know of the model and the arena."""

    max_length: int  # arena positions per row
    windows: tuple[int, ...]  # sliding windows of the layers, 0 for full attention
    fold: int  # query heads per key-value head
    dtype: torch.dtype
    device: torch.device
    head_dim: int


@dataclass(frozen=True)
class Step:
    """One packed forward pass."""

    token_ids: torch.Tensor  # (tokens,)
    positions: torch.Tensor  # (tokens,)
    cache_index: torch.Tensor  # (tokens,) slot * max_length + position in the slot
    attention: Cascade | RowPlan | list[Segment]
    deciding: torch.Tensor  # (decisions,) packed index of the tokens whose logits are wanted
    roots: np.ndarray  # (rows,) decision of a ready row's last token; node n is at root + 1 + n

    def __len__(self) -> int:
        return len(self.token_ids)


def pack(rows: Sequence[Row], trees: Sequence[DraftTree], layout: Layout) -> Step:
    """Lay out the rows' pending chunks and draft trees for one forward pass."""
    lines, tokens, start = [], [], 0
    for row, tree in zip(rows, trees, strict=True):
        line = line_of(row, tree, start)
        lines.append(line)
        pending = row.tokens[row.num_cached : row.num_cached + row.chunk]
        tokens.append(np.concatenate([pending, tree.token_ids], dtype=np.int64))
        start += len(line)
    positions = np.concatenate([line.positions for line in lines], dtype=np.int64)
    deciding, roots = _decisions(rows, lines)
    cache_index = np.concatenate(
        [line.slot * layout.max_length + line.cached + np.arange(len(line)) for line in lines]
    )
    return Step(
        token_ids=torch.from_numpy(np.concatenate(tokens)).to(layout.device),
        positions=torch.from_numpy(positions).to(layout.device),
        cache_index=torch.from_numpy(cache_index).to(layout.device),
        attention=_plan_attention(lines, layout),
        deciding=torch.from_numpy(deciding).to(layout.device),
        roots=roots,
    )


def _plan_attention(lines: list[Line], layout: Layout) -> Cascade | RowPlan | list[Segment]:
    device, dtype = layout.device, layout.dtype
    if is_supported(device, dtype, layout.head_dim):
        return plan_cascade(lines, layout.windows, layout.max_length, device)
    if can_attend(device, dtype, layout.head_dim):
        return plan_rows(lines, layout.windows)
    return plan_segments(lines, layout.windows, layout.fold, dtype, device)


def _decisions(rows: Sequence[Row], lines: Sequence[Line]) -> tuple[np.ndarray, np.ndarray]:
    """Root and draft nodes of every ready row, and where each row's root is among them."""
    parts = [
        line.start + np.arange(row.chunk - 1, len(line)) if row.is_ready else np.empty(0, np.int64)
        for row, line in zip(rows, lines, strict=True)
    ]
    roots = np.cumsum([0, *map(len, parts)])[:-1]
    return np.concatenate(parts), roots
