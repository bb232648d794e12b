"""What the fan-out benchmark makes of its turns."""

import pyarrow as pa
import pytest

from jobs.benchmark_fan_out import Turn, _sized, _timed, _totals
from jobs.cli import ROOT
from pipeline.config_file import load_config

TEXTS = {("user", "a"): [1, 2], ("item", "a"): [3]}


@pytest.fixture
def demo_config():
    return load_config(ROOT / "conf/demo.yaml")


def turn(actors, seconds, overhead, texts=TEXTS):
    return Turn(actors, 2 // actors, 32 // actors, seconds, 1000, overhead, texts)


def test_ratios_are_taken_turn_by_turn():
    one, two, slower = turn(1, 10.0, 0.02), turn(2, 8.0, 0.05), turn(2, 12.5, 0.07)
    totals = _totals([one, two, one, slower])
    assert totals["many_to_one"] == pytest.approx((1.25 + 0.8) / 2)
    assert totals["many_to_one_least"] == pytest.approx(0.8)
    assert totals["many_to_one_most"] == pytest.approx(1.25)
    assert totals["overhead_of_one"] == pytest.approx(0.02)
    assert totals["overhead_of_many"] == pytest.approx(0.06)
    assert totals["rows_unlike"] == 0


def test_a_row_of_another_text_is_counted():
    other = turn(2, 8.0, 0.05, TEXTS | {("item", "a"): [4]})
    assert _totals([turn(1, 10.0, 0.02), other])["rows_unlike"] == 1


def test_a_machine_of_one_core_has_nothing_to_compare():
    totals = _totals([turn(1, 10.0, 0.02)] * 2)
    assert totals["many_to_one"] is None
    assert totals["overhead_of_many"] is None


def test_all_turns_have_the_same_cores_and_rows_in_flight(demo_config):
    for actors in (1, 4):
        sized = _sized(demo_config, actors, 4)
        stage = sized.cluster.knowledge
        assert (stage.actors, stage.cores) == (actors, 4 // actors)
        assert actors * sized.engine.batch_rows == 4 * demo_config.engine.batch_rows


class Writers:
    """Two rows by engines that are at work for most of the time."""

    engine_share = 0.9

    def write(self, wave, rule, pools, what):
        statistics = {"error": "", "forward_passes": 3, "relaxed_tokens": 0}
        for entity in ("a", "b"):
            row = {"kind": "user", "entity_id": entity, "token_ids": [1, 2, 3]}
            yield pa.Table.from_pylist([row | statistics])


def test_overhead_is_what_the_engines_did_not_use(demo_config):
    done = _timed(Writers(), None, None, _sized(demo_config, 2, 2))  # pyright: ignore[reportArgumentType]
    assert done.tokens == 6
    assert done.overhead == pytest.approx(0.1)
    assert done.texts == {("user", "a"): [1, 2, 3], ("user", "b"): [1, 2, 3]}
