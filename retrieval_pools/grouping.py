"""Groups of similar entities: by behaviour (k-means over vectors) or by attributes.

Also which few of a group are written first, because the group's pool starts from them.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from pipeline.errors import DataError

log = logging.getLogger(__name__)

EVERYBODY = "all"  # the last rung of the attribute ladder
_RESTARTS = 5  # of which k-means keeps the best
_ITERATIONS = 25
_BLOCK_ROWS = 65_536
# Of the automatic number of groups.
_CANDIDATES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_LARGE = 100
_MAY_BE_SMALLER = 0.1  # share of the entities whose group is not
_SAMPLE_ROWS = 20_000
_SEPARATORS = str.maketrans({"%": "%25", ",": "%2C", "=": "%3D", "/": "%2F"})


@dataclass(frozen=True)
class Clusters:
    """Groups 0..k-1, the largest first; none is empty."""

    assignment: np.ndarray  # (n,) int64
    centroids: np.ndarray  # (k, d) float32, of length 1
    distances: np.ndarray  # (n,) float32, cosine distance to the own centroid
    backend: str  # faiss-gpu | faiss-cpu | scikit-learn

    @property
    def inertia(self) -> float:
        """Sum of the distances: what k-means made small."""
        return float(self.distances.sum(dtype=np.float64))


def cluster(vectors: np.ndarray, num_groups: int, seed: int) -> Clusters:
    """Spherical k-means of `vectors` (n, d) by direction; LightGCN's lengths follow popularity.

    There are fewer than `num_groups` groups where the vectors have fewer distinct directions.
    Without faiss (`pip install laser-knowledge[cpu]`) scikit-learn does the work.

    Raises:
        DataError: a vector is not finite.
    """
    unit = _directions(vectors)
    num_groups = min(num_groups, len(unit))
    if num_groups == 0:
        return Clusters(np.empty(0, np.int64), unit, np.empty(0, np.float32), "none")
    faiss = _import_faiss()
    if faiss is None:
        centroids, backend = _sklearn_centroids(unit, num_groups, seed), "scikit-learn"
    else:
        centroids, backend = _faiss_centroids(faiss, unit, num_groups, seed)
    assignment, similarity = _nearest(unit, centroids)
    sizes = np.bincount(assignment, minlength=num_groups)
    by_size = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    number = np.empty(num_groups, np.int64)
    number[by_size] = np.arange(len(by_size))
    distances = np.clip(1 - similarity, 0, 2)
    return Clusters(number[assignment], centroids[by_size], distances, backend)


def choose_number_of_groups(vectors: np.ndarray, seed: int) -> int:
    """The largest number of groups that leaves nine of ten entities a large group.

    A group of `vectors` (n, d) is large from `_LARGE` members on. Drafts gain less from likeness
    inside a group than they lose with the size of its pool. With the global pool beside them, as
    `make sweep` says, groups of 150 were as good as one group, of 70 at best as good, and of 20
    cost a percent. The k-means is over a sample, so a million vectors take no longer than
    `_SAMPLE_ROWS`; sizes are scaled up.
    """
    rows = np.random.default_rng(seed).permutation(len(vectors))[:_SAMPLE_ROWS]
    scale = len(vectors) / max(len(rows), 1)
    for number in reversed(_CANDIDATES):
        if number * _LARGE > len(vectors):  # the mean is too small already
            continue
        assignment = cluster(vectors[np.sort(rows)], number, seed).assignment
        own_size = np.bincount(assignment)[assignment] * scale  # of every entity's group
        if np.quantile(own_size, _MAY_BE_SMALLER) >= _LARGE:
            return number
    return 1


def group_by_attributes(
    attributes: Sequence[Mapping[str, str]], names: Sequence[str], min_size: int
) -> list[str]:
    """Labels such as "genre=Drama", one per entity, down a ladder of ever coarser groups.

    The first rung asks for equal values of all `names`, every further rung for one name fewer (the
    last name goes first), the lowest for nothing: "all". An entity whose group would stay below
    `min_size`, or that lacks one of the values, goes one rung down; so only "all" can be small.
    """
    labels = [EVERYBODY] * len(attributes)
    waiting = list(range(len(attributes)))
    for rung in range(len(names), 0, -1):
        values = {entity: _values(attributes[entity], names[:rung]) for entity in waiting}
        sizes = Counter(values.values())
        waiting = []
        for entity, own in values.items():
            if own is not None and sizes[own] >= min_size:
                labels[entity] = _label(names, own)
            else:
                waiting.append(entity)
    return labels


def choose_representatives(
    assignment: np.ndarray,
    count: int,
    vectors: np.ndarray | None = None,
    distances: np.ndarray | None = None,
) -> np.ndarray:
    """Mark `count` entities of every group, or all of a smaller one: (n,) bool.

    With `vectors` (n, d) and `distances` (n,) to the centroid: the nearest entity of a group, then
    always the one farthest from those chosen (Gonzalez 1985), among the nearer half of the group,
    so that outliers do not win. Without: evenly spaced in the order given.
    """
    chosen = np.zeros(len(assignment), bool)
    if len(assignment) == 0:
        return chosen
    _, group = np.unique(assignment, return_inverse=True)
    order = np.argsort(group, kind="stable")
    unit = None if vectors is None else _directions(vectors)
    for members in np.split(order, np.cumsum(np.bincount(group))[:-1]):
        if unit is None or distances is None:
            places = _evenly_spaced(len(members), count)
        else:
            places = _spread_near_centroid(unit[members], distances[members], count)
        chosen[members[places]] = True
    return chosen


def _directions(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1 (a zero vector stays zero), (n, d) float32."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(
            f"{len(bad)} of {len(vectors)} vectors are not finite, such as rows "
            f"{bad[:3].tolist()}; lower embeddings.learning_rate and train again"
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _import_faiss() -> ModuleType | None:
    try:
        import faiss
    except ImportError:
        log.info("faiss is not installed (extra `cpu` or `gpu`): scikit-learn does the k-means")
        return None
    return faiss


def _faiss_centroids(
    faiss: ModuleType, unit: np.ndarray, num_groups: int, seed: int
) -> tuple[np.ndarray, str]:
    options = {}
    if hasattr(faiss, "ClusteringInitMethod_KMEANS_PLUS_PLUS"):  # faiss 1.14 and later
        options["init_method"] = faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS
    on_gpu = faiss.get_num_gpus() > 0  # a CPU build accepts gpu=True and ignores it
    kmeans = faiss.Kmeans(
        unit.shape[1],
        num_groups,
        spherical=True,
        seed=seed % 2**31,
        niter=_ITERATIONS,
        nredo=_RESTARTS,
        gpu=on_gpu,
        min_points_per_centroid=1,  # small groups are wanted; faiss would warn on stderr
        max_points_per_centroid=len(unit),  # it would take a sample otherwise
        **options,
    )
    kmeans.train(unit)
    return kmeans.centroids, "faiss-gpu" if on_gpu else "faiss-cpu"


def _sklearn_centroids(unit: np.ndarray, num_groups: int, seed: int) -> np.ndarray:
    kmeans = KMeans(
        num_groups,
        n_init=_RESTARTS,  # pyright: ignore[reportArgumentType]
        max_iter=_ITERATIONS,
        random_state=seed % 2**32,
    )
    with warnings.catch_warnings():  # fewer distinct points than groups: empty groups go later
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans.fit(unit)
    return _directions(kmeans.cluster_centers_)


def _nearest(unit: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of and cosine similarity to the nearest centroid: (n,) int64, (n,) float32."""
    assignment = np.empty(len(unit), np.int64)
    similarity = np.empty(len(unit), np.float32)
    for start in range(0, len(unit), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        products = unit[block] @ centroids.T  # (rows, k)
        assignment[block] = products.argmax(axis=1)
        similarity[block] = products.max(axis=1)
    return assignment, similarity


def _values(attributes: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...] | None:
    """The values of `names`; None if one is missing."""
    values = tuple(attributes.get(name, "") for name in names)
    return values if all(values) else None


def _label(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = zip(names, values, strict=False)  # a lower rung has fewer values
    return ",".join("=".join(word.translate(_SEPARATORS) for word in pair) for pair in pairs)


def _evenly_spaced(size: int, count: int) -> np.ndarray:
    """The middles of `count` equal stretches of 0..size-1."""
    count = min(count, size)
    return (2 * np.arange(count) + 1) * size // (2 * count)


def _spread_near_centroid(unit: np.ndarray, distances: np.ndarray, count: int) -> np.ndarray:
    near = np.argsort(distances, kind="stable")[: max(count, (len(unit) + 1) // 2)]
    chosen = [0]
    gaps = np.full(len(near), np.inf)  # to the nearest chosen one
    for _ in range(1, min(count, len(near))):
        gaps = np.minimum(gaps, 1 - unit[near] @ unit[near[chosen[-1]]])
        gaps[chosen] = -np.inf
        chosen.append(int(gaps.argmax()))
    return near[chosen]
