"""Residual quantization: a code per level, each of what the levels before left over."""

from dataclasses import dataclass

import numpy as np

_BLOCK_ROWS = 4096  # whose distances to a thousand centroids stay in a cache
_SEEDED_AMONG = 4096  # vectors, or eight per cluster if that is more
_ROUNDS = 25  # as faiss; later ones move little
_STARTS, _TRIAL = 3, 5  # seedings, and rounds after which the best goes on alone


@dataclass(frozen=True)
class KMeans:
    """Centroids, and the nearest of every vector."""

    centroids: np.ndarray  # (k, d) float32
    assignment: np.ndarray  # (n,) int64


def quantize(vectors: np.ndarray, codebooks: np.ndarray) -> np.ndarray:
    """Nearest codes of `vectors` (n, d) by `codebooks` (levels, k, d): (n, levels) int32."""
    codes = np.empty((len(vectors), len(codebooks)), np.int32)
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        residual = vectors[block].copy()
        for level, book in enumerate(codebooks):
            codes[block, level] = distances(residual, book).argmin(axis=1)
            residual -= book[codes[block, level]]
    return codes


def last_level_choices(vectors: np.ndarray, codebooks: np.ndarray) -> np.ndarray:
    """All codes of the last level, the nearest first, below each vector's own prefix: (n, k)."""
    residual = vectors - reconstruct(quantize(vectors, codebooks[:-1]), codebooks)
    return np.argsort(distances(residual, codebooks[-1]), axis=1, kind="stable")


def reconstruct(codes: np.ndarray, codebooks: np.ndarray) -> np.ndarray:
    """What `codes` (n, some levels) stand for: (n, d) float32."""
    found = np.zeros((len(codes), codebooks.shape[2]), np.float32)
    for level in range(codes.shape[1]):
        found += codebooks[level][codes[:, level]]
    return found


def distances(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Squared distances less the vectors' own squared lengths: (n, k), to find the nearest by."""
    found = vectors @ (-2 * centroids.T)
    found += np.square(centroids).sum(axis=1)
    return found


def fit_codebooks(vectors: np.ndarray, levels: int, size: int, seed: int) -> np.ndarray:
    """k-means of `vectors` (n, d), then of what is left over, level by level: (levels, k, d)."""
    residual = vectors.copy()
    books = []
    for level in range(levels):
        found = k_means(residual, size, np.random.default_rng([seed, level]))
        books.append(found.centroids)
        residual -= found.centroids[found.assignment]
    return np.stack(books)


def k_means(vectors: np.ndarray, size: int, rng: np.random.Generator) -> KMeans:
    """Lloyd's algorithm from the best of several k-means++ seedings.

    One seed gives one result to the bit, which scikit-learn's threads do not promise. A cluster
    that empties on the way takes the vector farthest from its centroid.
    """
    squares = np.square(vectors).sum(axis=1)
    starts = [_lloyd(vectors, squares, _seeds(vectors, size, rng), _TRIAL) for _ in range(_STARTS)]
    best = min(starts, key=lambda found: _inertia(vectors, found))
    best = _lloyd(vectors, squares, best, _ROUNDS)
    return KMeans(best, _nearest(vectors, best)[0])


def _lloyd(
    vectors: np.ndarray, squares: np.ndarray, centroids: np.ndarray, rounds: int
) -> np.ndarray:
    """Centroids after `rounds`, or when no vector changes its own any more."""
    assignment = np.full(len(vectors), -1)
    for _ in range(rounds):
        nearest, gaps = _nearest(vectors, centroids)
        if np.array_equal(nearest, assignment):
            break
        assignment = nearest
        _refill(assignment, squares + gaps, len(centroids))
        centroids = _means(vectors, assignment, centroids)
    return centroids


def _inertia(vectors: np.ndarray, centroids: np.ndarray) -> float:
    """What k-means makes small, but for what all centroids have in common."""
    return float(_nearest(vectors, centroids)[1].sum(dtype=np.float64))


def _seeds(vectors: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Greedy k-means++ (Arthur and Vassilvitskii, SODA'07) over a sample.

    Of several vectors drawn each time the one that explains most is taken, so outliers seldom are.
    """
    among = max(_SEEDED_AMONG, 8 * size)
    sample = vectors[np.sort(rng.permutation(len(vectors))[:among])]
    squares = np.square(sample).sum(axis=1)
    trials = 2 + int(np.log(size))
    chosen = [int(rng.integers(len(sample)))]
    gaps = _gaps(sample, squares, np.array(chosen))[0]
    for _ in range(size - 1):
        total = np.cumsum(gaps, dtype=np.float64)
        drawn = np.searchsorted(total, rng.random(trials) * total[-1], side="right")
        drawn = np.minimum(drawn, len(sample) - 1)
        after = np.minimum(_gaps(sample, squares, drawn), gaps)  # (trials, sample)
        best = int(after.sum(axis=1, dtype=np.float64).argmin())
        chosen.append(int(drawn[best]))
        gaps = after[best]
    return sample[chosen]


def _gaps(sample: np.ndarray, squares: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Squared distances of all vectors to those of `rows`: (rows, sample)."""
    found = squares + squares[rows, None] - 2 * (sample[rows] @ sample.T)
    found[np.arange(len(rows)), rows] = 0
    return np.maximum(found, 0)


def _nearest(vectors: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest centroid of each vector, and its `distances`: (n,) int64, (n,) float32."""
    nearest = np.empty(len(vectors), np.int64)
    gaps = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        found = distances(vectors[block], centroids)
        nearest[block] = found.argmin(axis=1)
        gaps[block] = found[np.arange(len(found)), nearest[block]]
    return nearest, gaps


def _refill(assignment: np.ndarray, gaps: np.ndarray, size: int) -> None:
    """Give every empty cluster one of the vectors farthest from their centroids."""
    sizes = np.bincount(assignment, minlength=size)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return
    farthest = iter(np.argsort(-gaps, kind="stable"))
    for cluster in empty:
        for row in farthest:
            if sizes[assignment[row]] > 1:
                sizes[assignment[row]] -= 1
                assignment[row] = cluster
                break


def _means(vectors: np.ndarray, assignment: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    order = np.argsort(assignment, kind="stable")
    filled, start = np.unique(assignment[order], return_index=True)
    counts = np.diff(np.append(start, len(order)))
    means = centroids.copy()
    means[filled] = np.add.reduceat(vectors[order], start, axis=0) / counts[:, None]
    return means
