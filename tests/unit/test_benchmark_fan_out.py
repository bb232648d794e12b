"""What the fan-out benchmark makes of its turns."""

import time

import pyarrow as pa
import pytest

from jobs.benchmark_fan_out import Turn, _timed, _totals

ONE, TWO = Turn(1, 2, 10.0, 1000, 0.02), Turn(2, 1, 8.0, 1000, 0.05)


def test_ratios_are_taken_turn_by_turn():
    slower = Turn(2, 1, 12.5, 1000, 0.07)
    totals = _totals([ONE, TWO, ONE, slower])
    assert totals["many_to_one"] == pytest.approx((1.25 + 0.8) / 2)
    assert totals["many_to_one_least"] == pytest.approx(0.8)
    assert totals["many_to_one_most"] == pytest.approx(1.25)
    assert totals["overhead_of_one"] == pytest.approx(0.02)
    assert totals["overhead_of_many"] == pytest.approx(0.06)


def test_a_machine_of_one_core_has_nothing_to_compare():
    totals = _totals([ONE, ONE])
    assert totals["many_to_one"] is None
    assert totals["overhead_of_many"] is None


class Writers:
    """Two engines that work for a part of the time that writing takes."""

    def __init__(self):
        self._seconds = [5.0, 6.0]

    def engine_seconds(self):
        return self._seconds

    def write(self, wave, rule, pools, what):
        time.sleep(0.1)
        self._seconds = [5.08, 6.04]
        row = {"error": "", "token_ids": [1, 2, 3], "forward_passes": 3, "relaxed_tokens": 0}
        yield pa.Table.from_pylist([row, row])


def test_overhead_is_what_the_engines_did_not_use():
    turn = _timed(Writers(), None, None, 2, 1)  # pyright: ignore[reportArgumentType]
    assert turn.tokens == 6
    assert turn.seconds == pytest.approx(0.1, rel=0.3)
    assert turn.overhead == pytest.approx(1 - 0.12 / (2 * turn.seconds))
