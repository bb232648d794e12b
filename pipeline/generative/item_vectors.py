"""What an item is like, by content and by behaviour, as one vector that a quantizer takes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BLOCKS = ("content", "collaborative")


@dataclass(frozen=True)
class ItemVectors:
    """Two blocks of columns side by side; of a block that is not known all columns are zero."""

    values: np.ndarray  # (n, width) float32
    known: np.ndarray  # (n, len(BLOCKS)) bool
    widths: tuple[int, ...]  # of the blocks

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: np.ndarray) -> "ItemVectors":
        """The vectors of some items; `rows` are numbers or a mask."""
        return ItemVectors(self.values[rows], self.known[rows], self.widths)

    def by_known(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows of equal `known`, and their columns as a mask (width,), pattern by pattern."""
        patterns, which = np.unique(self.known, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            columns = np.repeat(pattern, self.widths)
            yield np.flatnonzero(which.reshape(-1) == number), columns


@dataclass(frozen=True)
class BlockScaling:
    """Standardises blocks, so that each counts by its weight, not by its width or length.

    Rows are brought to length 1 first: the length of a LightGCN vector follows popularity.
    """

    mean: np.ndarray  # (width,) float32
    scale: np.ndarray  # (width,) float32
    widths: tuple[int, ...]

    def apply(self, blocks: tuple[np.ndarray, ...], known: np.ndarray) -> ItemVectors:
        """Standardised vectors of items, from their blocks (n, width of the block)."""
        values = np.concatenate([_directions(block) for block in blocks], axis=1)
        values -= self.mean
        values *= self.scale
        values *= np.repeat(known, self.widths, axis=1)
        return ItemVectors(values, known, self.widths)


def fit_scaling(
    blocks: tuple[np.ndarray, ...], rows: np.ndarray, weights: tuple[float, ...]
) -> BlockScaling:
    """Mean 0 and variance 1 of every column over `rows`; a block's variances then sum to weight^2.

    Args:
        blocks: content (n, width) and collaborative vectors (n, width).
        rows: warm items of which all blocks are known.
        weights: how far each block counts.
    """
    means, scales = [], []
    for block, weight in zip(blocks, weights, strict=True):
        unit = _directions(block[rows])
        deviation = unit.std(axis=0, dtype=np.float64)
        is_constant = deviation < 1e-6  # says nothing, and is not blown up either
        means.append(unit.mean(axis=0, dtype=np.float64))
        width = max(np.count_nonzero(~is_constant), 1)
        scales.append(weight / np.sqrt(width) / np.where(is_constant, np.inf, deviation))
    widths = tuple(block.shape[1] for block in blocks)
    mean, scale = (np.concatenate(parts).astype(np.float32) for parts in (means, scales))
    return BlockScaling(mean, scale, widths)


def _directions(block: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(block, axis=1, keepdims=True)
    return (block / np.where(lengths > 0, lengths, 1)).astype(np.float32)
