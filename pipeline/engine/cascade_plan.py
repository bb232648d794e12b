"""Which queries meet which keys in a cascade; see `pipeline.engine.cascade`."""

from collections.abc import Sequence

import numpy as np
import torch

from pipeline.engine.cascade import Block, Cascade, Runs, plan_runs
from pipeline.engine.lines import Line, reveal


def plan_cascade(
    lines: list[Line], windows: Sequence[int], max_length: int, device: torch.device
) -> Cascade:
    """Chunks, tails and draft nodes of a step; see `pipeline.engine.cascade`."""
    # A window that begins before the text for every token is no window.
    longest = max(int(line.positions.max()) for line in lines)
    in_effect = {window: window if window <= longest else 0 for window in windows}
    trees = [line for line in lines if line.num_nodes]
    return Cascade(
        _chunk_runs([line for line in lines if line.chunk > 1], max_length, device),
        {
            window: _tail_runs(lines, max_length, device, effect)
            for window, effect in in_effect.items()
        },
        _block(trees, max_length, device, in_effect) if trees else None,
    )


def _chunk_runs(lines: list[Line], max_length: int, device: torch.device) -> Runs | None:
    """The chain of every line without its last token, which is the root of the line's tree."""
    if not lines:
        return None
    return plan_runs(
        np.concatenate([line.start + np.arange(line.chunk - 1) for line in lines]),
        [line.chunk - 1 for line in lines],
        [line.slot * max_length for line in lines],
        [line.cached + line.chunk - 1 for line in lines],
        device,
    )


def _tail_runs(lines: list[Line], max_length: int, device: torch.device, window: int) -> Runs:
    """Root and draft nodes: a run for every line, or for every token where a window matters."""
    widths = np.array([line.num_nodes + 1 for line in lines])
    queries = [line.start + np.arange(line.chunk - 1, len(line)) for line in lines]
    firsts = np.array([line.slot * max_length for line in lines])
    texts = np.array([line.cached + line.chunk for line in lines])  # all but draft nodes
    if window:
        positions = np.concatenate([line.positions[line.chunk - 1 :] for line in lines])
        firsts, texts = np.repeat(firsts, widths), np.repeat(texts, widths)
        skipped = np.clip(positions - window + 1, 0, texts)
        firsts, texts, widths = firsts + skipped, texts - skipped, np.ones_like(texts)
    return plan_runs(np.concatenate(queries), widths, firsts, texts, device)


def _block(
    lines: list[Line], max_length: int, device: torch.device, in_effect: dict[int, int]
) -> Block:
    """The draft nodes of `lines`; `in_effect` maps a window to 0 where it is none in this step."""
    width = max(line.num_nodes for line in lines)
    packed = np.array([[line.start + line.chunk] for line in lines])
    arena = np.array([[line.slot * max_length + line.cached + line.chunk] for line in lines])
    is_real = np.arange(width) < np.array([[line.num_nodes] for line in lines])
    queries = np.where(is_real, packed + np.arange(width), 0).ravel()
    real = np.flatnonzero(is_real)
    masks = {
        effect: torch.from_numpy(_node_mask(lines, width, effect)).to(device)
        for effect in set(in_effect.values())
    }
    return Block(
        queries=torch.from_numpy(queries).to(device),
        keys=torch.from_numpy(np.where(is_real, arena + np.arange(width), 0).ravel()).to(device),
        real=torch.from_numpy(real).to(device),
        packed=torch.from_numpy(queries[real]).to(device),
        masks={window: masks[effect] for window, effect in in_effect.items()},
    )


def _node_mask(lines: list[Line], width: int, window: int) -> np.ndarray:
    """(rows, width, width) float32: 0 where a draft node sees a node of its row, -inf elsewhere."""
    mask = np.full((len(lines), width, width), -np.inf, np.float32)
    mask[:, np.arange(width), np.arange(width)] = 0.0  # padding sees itself, or gives NaN
    for row, line in zip(mask, lines, strict=True):
        parents, positions = line.parents[line.chunk :] - line.chunk, line.positions[line.chunk :]
        reveal(row[: len(parents)], 0, parents, positions, window or np.iinfo(np.int32).max)
    return mask
