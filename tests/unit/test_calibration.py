"""The table from evidence to probability."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_pools.calibration import Calibration

evidence = st.tuples(
    st.integers(0, 3), st.integers(1, 80), st.integers(1, 500), st.integers(0, 100)
)


def bucket_of(calibration: Calibration, source: int, match: int, count: int, share: int) -> int:
    cells = calibration.cells
    return int(
        cells.source[source]
        + cells.match[min(match, len(cells.match) - 1)]
        + cells.occurrences[min(count, len(cells.occurrences) - 1)]
        + cells.share[share]
    )


def observe(calibration: Calibration, bucket: int, outcomes: list[int]) -> None:
    buckets = np.full(len(outcomes), bucket, np.int32)
    calibration.observe([buckets], [np.array(outcomes, np.int8)])


@given(evidence)
def test_every_evidence_has_a_bucket_with_a_probability(one):
    calibration = Calibration()
    probability = calibration.cells.probability[bucket_of(calibration, *one)]
    assert 0.0 < probability < 1.0


@given(evidence, st.integers(1, 3))
def test_evidence_of_different_sources_and_strength_is_kept_apart(one, other_source):
    calibration = Calibration()
    source, match, count, share = one
    bucket = bucket_of(calibration, *one)
    assert bucket != bucket_of(calibration, (source + other_source) % 4, match, count, share)
    assert (share == 100) or bucket != bucket_of(calibration, source, match, count, 100)


def test_before_any_outcome_more_evidence_means_more_trust():
    calibration = Calibration()
    probability = calibration.cells.probability

    def prior(source: int, match: int, count: int, share: int) -> float:
        return float(probability[bucket_of(calibration, source, match, count, share)])

    assert prior(2, 8, 1, 100) > prior(2, 2, 1, 100)
    assert prior(2, 2, 9, 100) > prior(2, 2, 1, 100)
    assert prior(2, 2, 9, 100) > prior(2, 2, 9, 50)
    assert prior(2, 1, 1, 100) < 0.3  # one occurrence after one token proves little
    assert prior(2, 16, 70, 100) > 0.95
    assert prior(0, 2, 1, 100) > prior(2, 2, 1, 100)  # a previous text deserves more trust


def test_outcomes_move_their_own_bucket_only():
    calibration = Calibration()
    before = calibration.cells.probability.copy()
    bucket = bucket_of(calibration, 2, 4, 3, 60)
    observe(calibration, bucket, [1] * 10)
    changed = calibration.cells.probability - before
    assert changed[bucket] > 0.0
    assert np.count_nonzero(changed) == 1
    observe(calibration, bucket, [0] * 30)
    assert calibration.cells.probability[bucket] < before[bucket]


def test_untested_nodes_teach_nothing():
    calibration = Calibration()
    before = calibration.cells.probability.copy()
    observe(calibration, bucket_of(calibration, 0, 4, 3, 60), [-1] * 50)
    calibration.observe([], [])
    assert np.array_equal(calibration.cells.probability, before)


def test_probabilities_converge_to_the_rate_of_acceptance():
    calibration = Calibration()
    bucket = bucket_of(calibration, 1, 1, 1, 100)
    rng = np.random.default_rng(5)
    observe(calibration, bucket, (rng.random(4000) < 0.15).astype(int).tolist())
    assert calibration.cells.probability[bucket] == pytest.approx(0.15, abs=0.03)


def test_the_order_of_outcomes_does_not_matter():
    rng = np.random.default_rng(6)
    buckets = rng.integers(0, 40, 300).astype(np.int32)
    outcomes = rng.integers(-1, 2, 300).astype(np.int8)
    forward, backward, parts = Calibration(), Calibration(), Calibration()
    forward.observe([buckets], [outcomes])
    backward.observe([buckets[::-1]], [outcomes[::-1]])
    parts.observe(np.array_split(buckets, 7), np.array_split(outcomes, 7))
    assert np.allclose(forward.cells.probability, backward.cells.probability, rtol=1e-12)
    assert np.allclose(forward.cells.probability, parts.cells.probability, rtol=1e-12)
