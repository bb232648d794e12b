"""Events on a clock, against the closed form and against what has to hold."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.forecast.lengths import longest_over_mean, mean_rows
from pipeline.forecast.simulate import Cluster, Wave, simulate


def closed_form_seconds(waves, cluster):
    """What a job takes where no device is slow or dies and all rows are equal."""
    seconds = cluster.start_seconds
    for wave in waves:
        blocks = math.ceil(wave.rows / cluster.block_rows)
        rounds = math.ceil(blocks / cluster.devices)
        # If the last round has one block only and that is no full one, it ends earlier.
        rows = rounds * cluster.block_rows
        if blocks % cluster.devices == 1 or cluster.devices == 1:
            rows -= blocks * cluster.block_rows - wave.rows
        seconds += wave.pools_seconds + rows * wave.row_seconds + wave.drain_seconds
    return seconds


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(1, 5000), min_size=1, max_size=4),
    devices=st.integers(1, 17),
    block=st.integers(1, 700),
    start=st.floats(0, 100),
)
def test_without_faults_and_with_equal_rows_it_is_the_closed_form(rows, devices, block, start):
    waves = [Wave(size, 0.05, 3.0, 10.0 * n) for n, size in enumerate(rows)]
    cluster = Cluster(devices, block, start_seconds=start)
    outcome = simulate(waves, cluster, seeds=2)
    expected = closed_form_seconds(waves, cluster)
    np.testing.assert_allclose(outcome.hours * 3600, expected, rtol=1e-9)
    work = sum(size * 0.05 for size in rows)
    np.testing.assert_allclose(outcome.utilisation, work / expected / devices, rtol=1e-9)


def naive_closed_form(rows, block, devices, row_seconds):
    """Device after device, the one that is free first."""
    free = [0.0] * devices
    while rows:
        taken = min(rows, block)
        rows -= taken
        first = min(range(devices), key=free.__getitem__)
        free[first] += taken * row_seconds
    return max(free)


@pytest.mark.parametrize(("rows", "block", "devices"), [(1000, 64, 8), (130, 64, 2), (65, 64, 4)])
def test_closed_form_is_what_a_list_of_devices_gives(rows, block, devices):
    got = closed_form_seconds([Wave(rows, 0.5)], Cluster(devices, block))
    assert got == pytest.approx(naive_closed_form(rows, block, devices, 0.5))


@pytest.mark.parametrize(
    "worse",
    [
        {"slow_share": 0.3, "slow_factor": 2.0},
        {"hours_between_faults": 1.0, "restart_seconds": 600.0},
        {"start_seconds": 500.0},
    ],
)
def test_what_goes_wrong_takes_time(worse):
    waves, cluster = [Wave(100_000, 0.5), Wave(100_000, 0.5)], Cluster(16, 256)
    good, bad = simulate(waves, cluster, 5), simulate(waves, replace(cluster, **worse), 5)
    assert bad.hours.mean() > good.hours.mean()
    if "slow_share" not in worse:  # who is slow is at work all the same
        assert bad.utilisation.mean() < good.utilisation.mean()


def test_faults_come_as_often_as_they_should_and_lose_what_is_in_flight():
    waves = [Wave(200_000, 1.0)]
    cluster = Cluster(20, 100, 64, hours_between_faults=2.0, restart_seconds=60.0)
    outcome = simulate(waves, cluster, 30)
    work = 200_000 / 3600  # device hours
    assert outcome.faults.mean() == pytest.approx(work / 2.0, rel=0.1)
    lost = outcome.lost_share * outcome.hours * 20 * 3600
    assert (lost <= outcome.faults * 64 / 2 + 1e-6).all()
    useful = outcome.utilisation * outcome.hours * 20
    np.testing.assert_allclose(useful, work)  # every row is written once, whatever dies


def test_a_device_that_never_gets_through_a_block_still_ends():
    """Rows outside what is in flight are kept, so work shrinks even if no block ends."""
    cluster = Cluster(2, 1000, 4, hours_between_faults=0.05, restart_seconds=1.0)
    outcome = simulate([Wave(4000, 1.0)], cluster, 3)
    assert np.isfinite(outcome.hours).all()
    assert (outcome.faults > 10).all()


def test_one_seed_is_one_result():
    cluster = Cluster(8, 64, hours_between_faults=1.0, slow_share=0.2, slow_factor=2.0)
    first, second = (simulate([Wave(50_000, 0.3)], cluster, 4, seed=7) for _ in range(2))
    np.testing.assert_array_equal(first.hours, second.hours)
    assert len(set(first.hours)) > 1


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 20_000), devices=st.integers(1, 64), more=st.integers(1, 64))
def test_more_devices_are_never_slower(rows, devices, more):
    few, many = (
        simulate([Wave(rows, 0.1)], Cluster(count, 64), 1).hours[0]
        for count in (devices, devices + more)
    )
    assert many <= few * (1 + 1e-12)


def test_ten_million_rows_on_64_devices_take_seconds():
    waves = [Wave(100_000, 0.02), *(Wave(3_300_000, 0.02, 5.0, 300.0) for _ in range(3))]
    cluster = Cluster(
        64, 512, 256, 180.0, slow_share=0.05, slow_factor=1.5, hours_between_faults=200.0,
        restart_seconds=300.0, length_deviation=0.3,
    )  # fmt: skip
    began = time.process_time()
    outcome = simulate(waves, cluster, seeds=20)
    assert time.process_time() - began < 20.0
    assert outcome.percentile(5) <= outcome.percentile(95)
    bound = 10_000_000 * 0.02 / 64 / 3600
    assert bound < outcome.hours.min() < 3 * bound


def test_batches_run_empty_at_the_end():
    assert mean_rows([10, 10, 10, 10], 2) == 2.0
    assert mean_rows([10, 1], 4) == pytest.approx(1.1)
    assert mean_rows([4, 8, 4], 2) == 2.0
    assert longest_over_mean(0.3, 1) == 1.0
    sample = np.random.default_rng(0).normal(1.0, 0.3, (400, 200)).max(axis=1).mean()
    assert longest_over_mean(0.3, 200) == pytest.approx(sample, rel=0.1)
    assert math.isclose(longest_over_mean(0.0, 500), 1.0)
