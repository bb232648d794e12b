"""RQ-KMeans: residual quantization of the vectors as they are, by k-means level by level."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.generative import residual
from pipeline.generative.item_vectors import ItemVectors

_FITTED_PER_CODE = 256  # more vectors than that do not change a centroid; faiss's figure too


@dataclass(frozen=True)
class RqKmeans:
    """Codebooks over standardised vectors.

    An item is compared with codebook vectors by the blocks that are known of it, so a cold item
    goes by its content alone, and no item by the zeros that stand for an untrained vector.
    """

    codebooks: np.ndarray  # (levels, k, width) float32

    def encode(self, vectors: ItemVectors) -> np.ndarray:
        """Nearest codes: (n, levels) int32."""
        return self._by_known(vectors, len(self.codebooks), residual.quantize).astype(np.int32)

    def last_level_choices(self, vectors: ItemVectors) -> np.ndarray:
        """All codes of the last level, the nearest first: (n, k)."""
        return self._by_known(vectors, self.codebooks.shape[1], residual.last_level_choices)

    def reconstruct(self, codes: np.ndarray) -> np.ndarray:
        """Standardised vectors that `codes` (n, some levels) stand for: (n, width)."""
        return residual.reconstruct(codes, self.codebooks)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that is needed to encode, by name."""
        return {"codebooks": self.codebooks}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "RqKmeans":
        """The quantizer that `arrays` was made of."""
        return cls(arrays["codebooks"])

    def _by_known(
        self,
        vectors: ItemVectors,
        width: int,
        of: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        found = np.empty((len(vectors), width), np.int64)
        for rows, columns in vectors.by_known():
            own = np.ascontiguousarray(vectors.values[rows][:, columns])
            found[rows] = of(own, np.ascontiguousarray(self.codebooks[:, :, columns]))
        return found


def fit_rq_kmeans(vectors: ItemVectors, levels: int, size: int, seed: int) -> RqKmeans:
    """Fit on items of which all blocks are known.

    A level takes at most 45 passes over min(n, 256 k) vectors of width d, 2 n k d operations each.
    """
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(vectors))[: _FITTED_PER_CODE * size])
    return RqKmeans(residual.fit_codebooks(vectors.values[rows], levels, size, seed))
