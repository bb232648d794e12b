"""All rows of a step in one line of tokens, and what each token may attend to.

Linear layers see the packed tokens, no padding. Attention sees *segments*: the rows that decode
as one padded block, because one masked call per layer beats a loop over rows on a CPU, and every
row that reads a long piece of its prompt as a block of its own. Where the flash kernel runs,
attention sees a *cascade* instead, and no mask wider than a draft tree is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit

from pipeline.engine.cascade import Block, Cascade, Runs, is_supported, plan_runs
from pipeline.engine.row import Row
from pipeline.engine.types import DraftTree

# What attention costs on a CPU, in queries of one row: reading the row's keys and values, and the
# calls of one more segment (measured with scaled_dot_product_attention at 336 keys, 3 heads).
_ROW = 7
_SEGMENT = 10


@dataclass(frozen=True)
class Layout:
    """What packing must know of the model and the arena."""

    max_length: int  # arena positions per row
    windows: tuple[int, ...]  # sliding windows of the layers, 0 for full attention
    fold: int  # query heads per key-value head
    dtype: torch.dtype
    device: torch.device
    head_dim: int = 0  # 0 where it is not known: taken as fit for the flash kernel

    @property
    def cascades(self) -> bool:
        """Whether steps bring a cascade, not masks over the whole arena."""
        return is_supported(self.device, self.dtype, self.head_dim)


@dataclass(frozen=True)
class Segment:
    """Rows `first..last` of the arena, padded to one width of queries and one length of keys."""

    first: int
    last: int  # exclusive
    length: int  # arena positions in sight
    queries: torch.Tensor  # (rows * width,) packed index of every query, 0 where padded
    real: torch.Tensor  # (tokens,) index into `queries` of the unpadded ones
    packed: torch.Tensor  # (tokens,) their packed index
    width: int
    masks: dict[int, torch.Tensor]  # window -> additive (rows, 1, fold * width, length)


@dataclass(frozen=True)
class Step:
    """One packed forward pass."""

    token_ids: torch.Tensor  # (tokens,)
    positions: torch.Tensor  # (tokens,)
    cache_index: torch.Tensor  # (tokens,) slot * max_length + position in the slot
    segments: list[Segment]  # empty where there is a cascade
    deciding: torch.Tensor  # (decisions,) packed index of the tokens whose logits are wanted
    roots: np.ndarray  # (rows,) decision of a ready row's last token; node n is at root + 1 + n
    cascade: Cascade | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class _Line:
    """A row's tokens in a step: its chunk of pending tokens as a chain, then its draft nodes."""

    slot: int
    start: int  # packed index of the first token
    cached: int
    chunk: int  # tokens of the chain
    parents: np.ndarray  # (tokens,) int32, index in this line, -1 for the first token
    positions: np.ndarray  # (tokens,) int32

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def num_nodes(self) -> int:
        """Draft nodes behind the chain."""
        return len(self) - self.chunk


def pack(rows: Sequence[Row], trees: Sequence[DraftTree], layout: Layout) -> Step:
    """Lay out the rows' pending chunks and draft trees for one forward pass."""
    lines, tokens, start = [], [], 0
    for row, tree in zip(rows, trees, strict=True):
        line = _line_of(row, tree, start)
        lines.append(line)
        pending = row.tokens[row.num_cached : row.num_cached + row.chunk]
        tokens.append(np.concatenate([pending, tree.token_ids], dtype=np.int64))
        start += len(line)
    positions = np.concatenate([line.positions for line in lines], dtype=np.int64)
    deciding, roots = _decisions(rows, lines)
    cache_index = np.concatenate(
        [line.slot * layout.max_length + line.cached + np.arange(len(line)) for line in lines]
    )
    cascades = layout.cascades
    return Step(
        token_ids=torch.from_numpy(np.concatenate(tokens)).to(layout.device),
        positions=torch.from_numpy(positions).to(layout.device),
        cache_index=torch.from_numpy(cache_index).to(layout.device),
        segments=[] if cascades else [_segment(part, layout) for part in _partition(lines)],
        deciding=torch.from_numpy(deciding).to(layout.device),
        roots=roots,
        cascade=_cascade(lines, layout) if cascades else None,
    )


def _decisions(rows: Sequence[Row], lines: Sequence[_Line]) -> tuple[np.ndarray, np.ndarray]:
    """Root and draft nodes of every ready row, and where each row's root is among them."""
    parts = [
        line.start + np.arange(row.chunk - 1, len(line)) if row.is_ready else np.empty(0, np.int64)
        for row, line in zip(rows, lines, strict=True)
    ]
    roots = np.cumsum([0, *map(len, parts)])[:-1]
    return np.concatenate(parts), roots


def _line_of(row: Row, tree: DraftTree, start: int) -> _Line:
    chain = np.arange(-1, row.chunk - 1, dtype=np.int32)
    parents = np.concatenate([chain, tree.parents + row.chunk], dtype=np.int32)
    depths = np.concatenate([np.arange(row.chunk), row.chunk - 1 + tree.depths()])
    positions = (row.num_cached + depths).astype(np.int32)
    return _Line(row.slot, start, row.num_cached, row.chunk, parents, positions)


def _partition(lines: list[_Line]) -> list[list[_Line]]:
    """Lines up to some width together, padded to it, and each wider one alone: the cheapest way."""
    splits = [_split(lines, width) for width in {len(line) for line in lines}]
    return min(splits, key=lambda parts: sum(map(_attention_cost, parts)))


def _split(lines: list[_Line], width: int) -> list[list[_Line]]:
    return [
        [line for line in lines if len(line) <= width],
        *([line] for line in lines if len(line) > width),
    ]


def _attention_cost(lines: list[_Line]) -> int:
    slots = [line.slot for line in lines]
    span = max(slots) - min(slots) + 1
    return _SEGMENT + span * (_ROW + max(map(len, lines)))


def _segment(lines: list[_Line], layout: Layout) -> Segment:
    first, last = min(line.slot for line in lines), max(line.slot for line in lines) + 1
    width = max(len(line) for line in lines)
    length = max(line.cached + len(line) for line in lines)
    queries = np.zeros((last - first, width), np.int64)
    is_real = np.zeros((last - first, width), bool)
    for line in lines:
        queries[line.slot - first, : len(line)] = line.start + np.arange(len(line))
        is_real[line.slot - first, : len(line)] = True
    real = np.flatnonzero(is_real)
    masks = {}
    for window in layout.windows:
        mask = torch.from_numpy(_mask(lines, first, last, width, length, window))
        masks[window] = mask.repeat(1, 1, layout.fold, 1).to(layout.device, layout.dtype)
    return Segment(
        first,
        last,
        length,
        queries=torch.from_numpy(queries.ravel()).to(layout.device),
        real=torch.from_numpy(real).to(layout.device),
        packed=torch.from_numpy(queries.ravel()[real]).to(layout.device),
        width=width,
        masks=masks,
    )


def _mask(
    lines: list[_Line], first: int, last: int, width: int, length: int, window: int
) -> np.ndarray:
    """(rows, 1, width, length) float32: 0 where a query sees a key, -inf elsewhere."""
    mask = np.full((last - first, 1, width, length), -np.inf, np.float32)
    mask[:, :, :, 0] = 0.0  # a padded query must see something, or softmax gives NaN
    for line in lines:
        rows = mask[line.slot - first, 0, : len(line)]
        rows[:, 0] = -np.inf
        reveal(rows, line.cached, line.parents, line.positions, window or np.iinfo(np.int32).max)
    return mask


def _cascade(lines: list[_Line], layout: Layout) -> Cascade:
    """Chunks, tails and draft nodes of a step; see `pipeline.engine.cascade`."""
    # A window that begins before the text for every token is no window.
    longest = max(int(line.positions.max()) for line in lines)
    in_effect = {window: window if window <= longest else 0 for window in layout.windows}
    trees = [line for line in lines if line.num_nodes]
    return Cascade(
        _chunk_runs([line for line in lines if line.chunk > 1], layout),
        {window: _tail_runs(lines, layout, effect) for window, effect in in_effect.items()},
        _block(trees, layout, in_effect) if trees else None,
    )


def _chunk_runs(lines: list[_Line], layout: Layout) -> Runs | None:
    """The chain of every line without its last token, which is the root of the line's tree."""
    if not lines:
        return None
    return plan_runs(
        np.concatenate([line.start + np.arange(line.chunk - 1) for line in lines]),
        [line.chunk - 1 for line in lines],
        [line.slot * layout.max_length for line in lines],
        [line.cached + line.chunk - 1 for line in lines],
        layout.device,
    )


def _tail_runs(lines: list[_Line], layout: Layout, window: int) -> Runs:
    """Root and draft nodes: a run for every line, or for every token where a window matters."""
    widths = np.array([line.num_nodes + 1 for line in lines])
    queries = [line.start + np.arange(line.chunk - 1, len(line)) for line in lines]
    firsts = np.array([line.slot * layout.max_length for line in lines])
    texts = np.array([line.cached + line.chunk for line in lines])  # all but draft nodes
    if window:
        positions = np.concatenate([line.positions[line.chunk - 1 :] for line in lines])
        firsts, texts = np.repeat(firsts, widths), np.repeat(texts, widths)
        skipped = np.clip(positions - window + 1, 0, texts)
        firsts, texts, widths = firsts + skipped, texts - skipped, np.ones_like(texts)
    return plan_runs(np.concatenate(queries), widths, firsts, texts, layout.device)


def _block(lines: list[_Line], layout: Layout, in_effect: dict[int, int]) -> Block:
    """The draft nodes of `lines`; `in_effect` maps a window to 0 where it is none in this step."""
    width, device = max(line.num_nodes for line in lines), layout.device
    packed = np.array([[line.start + line.chunk] for line in lines])
    arena = np.array([[line.slot * layout.max_length + line.cached + line.chunk] for line in lines])
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


def _node_mask(lines: list[_Line], width: int, window: int) -> np.ndarray:
    """(rows, width, width) float32: 0 where a draft node sees a node of its row, -inf elsewhere."""
    mask = np.full((len(lines), width, width), -np.inf, np.float32)
    mask[:, np.arange(width), np.arange(width)] = 0.0  # padding sees itself, or gives NaN
    for row, line in zip(mask, lines, strict=True):
        parents, positions = line.parents[line.chunk :] - line.chunk, line.positions[line.chunk :]
        reveal(row[: len(parents)], 0, parents, positions, window or np.iinfo(np.int32).max)
    return mask


@njit(cache=True)
def reveal(
    mask: np.ndarray, cached: int, parents: np.ndarray, positions: np.ndarray, window: int
) -> None:
    """Let every token see the cached tokens, its ancestors and itself, if within the window.

    `mask` is (tokens, keys). Cached token k stands at position k; token j of the line at arena
    position `cached + j` but at position `positions[j]` of the text, which counts for the window.
    """
    for query in range(len(parents)):
        oldest = positions[query] - window + 1  # first position in the window
        mask[query, max(0, oldest) : cached] = 0.0
        key = query
        while key >= 0 and positions[key] >= oldest:
            mask[query, cached + key] = 0.0
            key = parents[key]
