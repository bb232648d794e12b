import logging
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from pipeline.errors import DataError
from retrieval_pools import grouping
from retrieval_pools.grouping import (
    choose_number_of_groups,
    choose_representatives,
    cluster,
    group_by_attributes,
)


@pytest.fixture(params=["faiss", "scikit-learn"])
def backend(request, monkeypatch):
    if request.param == "faiss":
        pytest.importorskip("faiss")
    else:
        monkeypatch.setitem(sys.modules, "faiss", None)
    return request.param


def _blobs(sizes, dim=8, noise=0.1, seed=0):
    """Points around one axis per blob, of very different lengths: (vectors, blob numbers)."""
    rng = np.random.default_rng(seed)
    blob = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    vectors = np.eye(dim)[blob] + noise * rng.normal(size=(len(blob), dim))
    return vectors * rng.lognormal(sigma=1.5, size=(len(blob), 1)), blob


@pytest.mark.parametrize("seed", range(3))
def test_separable_groups_are_found(backend, seed):
    vectors, blob = _blobs([60, 40, 30, 20], seed=seed)
    clusters = cluster(vectors, 4, seed)
    assert clusters.backend.startswith(backend)
    assert adjusted_rand_score(blob, clusters.assignment) >= 0.9


def test_groups_are_numbered_by_size_and_measured_to_their_own_centroid(backend):
    vectors, _ = _blobs([10, 50, 30], seed=1)
    clusters = cluster(vectors, 3, seed=0)
    assert np.bincount(clusters.assignment).tolist() == [50, 30, 10]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = unit @ clusters.centroids.T
    assert (similarity.argmax(axis=1) == clusters.assignment).all()
    np.testing.assert_allclose(clusters.distances, 1 - similarity.max(axis=1), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(clusters.centroids, axis=1), 1, atol=1e-5)
    assert clusters.inertia == pytest.approx(clusters.distances.sum(), rel=1e-5)


def test_every_point_forms_its_centroid_however_many_there_are(backend):
    vectors, _ = _blobs([900, 700])  # faiss takes 256 per centroid unless told otherwise
    clusters = cluster(vectors, 2, seed=0)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for group in range(2):
        mean = unit[clusters.assignment == group].mean(axis=0)
        np.testing.assert_allclose(
            clusters.centroids[group], mean / np.linalg.norm(mean), atol=1e-4
        )


def test_the_length_of_a_vector_does_not_matter(backend):
    vectors, _ = _blobs([30, 30, 30])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    plain, scaled = cluster(unit, 3, seed=0), cluster(vectors, 3, seed=0)
    assert adjusted_rand_score(plain.assignment, scaled.assignment) == 1


def test_the_same_seed_gives_the_same_groups(backend):
    vectors = np.random.default_rng(0).normal(size=(300, 8))
    first, again = cluster(vectors, 6, seed=5), cluster(vectors, 6, seed=5)
    assert np.array_equal(first.assignment, again.assignment)
    assert np.array_equal(first.distances, again.distances)


@pytest.mark.parametrize(
    ("vectors", "num_groups", "expected"),
    [
        (np.eye(3), 8, 3),  # more groups than points
        (np.ones((20, 4)), 4, 1),  # identical rows
        (np.repeat(np.eye(4)[:2], 10, axis=0), 5, 2),
        (np.ones((1, 4)), 1, 1),
        (np.zeros((3, 4)), 2, 1),
    ],
)
def test_no_group_is_empty(backend, vectors, num_groups, expected):
    clusters = cluster(vectors, num_groups, seed=0)
    assert sorted(set(clusters.assignment.tolist())) == list(range(expected))
    assert len(clusters.centroids) == expected
    assert len(clusters.assignment) == len(clusters.distances) == len(vectors)


def test_no_vectors_make_no_groups():
    clusters = cluster(np.empty((0, 4), np.float32), 3, seed=0)
    assert (len(clusters.assignment), len(clusters.centroids), clusters.inertia) == (0, 0, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(backend, bad):
    vectors = np.ones((5, 3))
    vectors[2, 1] = bad
    with pytest.raises(DataError, match=r"1 of 5 vectors .* \[2\]"):
        cluster(vectors, 2, seed=0)


def test_a_missing_faiss_is_announced(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with caplog.at_level(logging.INFO, "retrieval_pools.grouping"):
        assert cluster(np.eye(4), 2, seed=0).backend == "scikit-learn"
    assert "faiss is not installed" in caplog.text


def test_an_older_faiss_without_kmeans_plus_plus_still_works(monkeypatch):
    faiss = pytest.importorskip("faiss")
    monkeypatch.delattr(faiss, "ClusteringInitMethod_KMEANS_PLUS_PLUS")
    vectors, blob = _blobs([40, 40])
    assert adjusted_rand_score(blob, cluster(vectors, 2, seed=0).assignment) >= 0.9


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_gpu_is_used_if_faiss_sees_one(monkeypatch, gpus):
    faiss = pytest.importorskip("faiss")
    asked = {}

    class Kmeans:
        def __init__(self, d, k, **options):
            asked.update(options)
            self.centroids = np.eye(k, d, dtype=np.float32)

        def train(self, vectors):
            pass

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: gpus)
    monkeypatch.setattr(faiss, "Kmeans", Kmeans)
    assert cluster(np.eye(4), 2, seed=0).backend == ("faiss-gpu" if gpus else "faiss-cpu")
    assert asked["gpu"] is bool(gpus)


@pytest.mark.parametrize(("members", "expected"), [(12, 1), (100, 8), (120, 8)])
def test_as_many_groups_as_are_large(backend, members, expected):
    vectors, _ = _blobs([members] * 8, noise=0.02)
    assert choose_number_of_groups(vectors, seed=0) == expected


@pytest.mark.parametrize(("small", "passes"), [(15, True), (40, False)])
def test_a_tenth_of_the_entities_may_be_in_small_groups(backend, small, passes):
    """Two large blobs and four small ones: 8 or 19 percent of the entities."""
    vectors, _ = _blobs([400, 300] + [small] * 4, noise=0.02)
    number = choose_number_of_groups(vectors, seed=0)
    assignment = cluster(vectors, number, seed=0).assignment
    own_size = np.bincount(assignment)[assignment]
    assert (own_size >= 100).mean() >= 0.9
    assert (number >= 6) is passes


def test_the_number_of_groups_follows_the_catalog_not_the_sample(monkeypatch):
    vectors, _ = _blobs([400] * 8, noise=0.02)
    whole = choose_number_of_groups(vectors, seed=0)
    monkeypatch.setattr(grouping, "_SAMPLE_ROWS", 400)
    assert abs(choose_number_of_groups(vectors, seed=0) - whole) <= whole // 3


def test_few_or_no_vectors_make_one_group():
    assert choose_number_of_groups(np.empty((0, 4), np.float32), seed=0) == 1
    assert choose_number_of_groups(np.eye(3), seed=0) == 1


def test_attribute_groups_fall_down_the_ladder():
    people = [
        *[{"job": "nurse", "sex": "F"}] * 3,  # large enough as they are
        *[{"job": "nurse", "sex": "M"}] * 2,  # only as nurses, with the next one
        {"job": "nurse"},
        {"job": "pilot", "sex": "F"},  # too few pilots
        {"sex": "F"},
        {},
    ]
    labels = group_by_attributes(people, ["job", "sex"], min_size=3)
    assert labels == ["job=nurse,sex=F"] * 3 + ["job=nurse"] * 3 + ["all"] * 3


def test_without_attributes_everybody_is_in_one_group():
    assert group_by_attributes([{"a": "1"}, {}], [], min_size=5) == ["all", "all"]


def test_values_with_separators_give_distinct_labels():
    rows = [{"a": "x,b=y", "b": "z"}, {"a": "x", "b": "y,b=z"}, {"a": "all", "b": "5%/6"}]
    labels = group_by_attributes(rows, ["a", "b"], min_size=1)
    assert labels == ["a=x%2Cb%3Dy,b=z", "a=x,b=y%2Cb%3Dz", "a=all,b=5%25%2F6"]


row = st.fixed_dictionaries({}, optional={"a": st.sampled_from("xyz"), "b": st.sampled_from("uv")})


@given(st.lists(row, max_size=40), st.integers(1, 6))
def test_only_the_last_group_can_be_small_and_members_share_their_values(rows, min_size):
    labels = group_by_attributes(rows, ["a", "b"], min_size)
    for label, size in Counter(labels).items():
        assert label == "all" or size >= min_size
    for own, label in zip(rows, labels, strict=True):
        if label != "all":
            shared = dict(pair.split("=") for pair in label.split(","))
            assert shared.items() <= own.items()
    assert group_by_attributes(rows, ["a", "b"], min_size) == labels


def test_representatives_are_the_nearest_and_then_the_most_different_of_the_nearer_half():
    angles = np.deg2rad([0, 1, 2, 10, -10, 5, 60, 70, 80, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1)
    distances = 1 - vectors[:, 0]  # the centroid lies at 0 degrees
    chosen = choose_representatives(np.zeros(10, int), 3, vectors, distances)
    # the nearer half is 0, 1, 2, 5, 10 degrees; -10 ties with 10 and comes later
    assert np.flatnonzero(chosen).tolist() == [0, 3, 5]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6), st.booleans())
def test_every_group_has_its_share_of_representatives(assignment, count, has_vectors):
    assignment = np.array(assignment, int)
    vectors = np.ones((len(assignment), 3)) if has_vectors else None  # all alike
    distances = np.zeros(len(assignment)) if has_vectors else None
    chosen = choose_representatives(assignment, count, vectors, distances)
    for group, size in Counter(assignment.tolist()).items():
        assert chosen[assignment == group].sum() == min(count, size)
    assert chosen.sum() == sum(min(count, size) for size in Counter(assignment.tolist()).values())


def test_representatives_without_vectors_are_evenly_spaced():
    chosen = choose_representatives(np.array(["a"] * 12 + ["b"] * 2), 3)
    assert np.flatnonzero(chosen).tolist() == [2, 6, 10, 12, 13]
