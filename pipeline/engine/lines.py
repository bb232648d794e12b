"""A row's tokens in a step, and which of them each may see."""

from dataclasses import dataclass

import numpy as np
from numba import njit

from pipeline.engine.row import Row
from pipeline.engine.types import DraftTree


@dataclass(frozen=True)
class Line:
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


def line_of(row: Row, tree: DraftTree, start: int) -> Line:
    """The pending chunk and the draft nodes of a row, from packed index `start` on."""
    chain = np.arange(-1, row.chunk - 1, dtype=np.int32)
    parents = np.concatenate([chain, tree.parents + row.chunk], dtype=np.int32)
    depths = np.concatenate([np.arange(row.chunk), row.chunk - 1 + tree.depths()])
    positions = (row.num_cached + depths).astype(np.int32)
    return Line(row.slot, start, row.num_cached, row.chunk, parents, positions)


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
