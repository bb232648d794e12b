"""What the repeats of a comparison come to: times are added up, rows are counted once."""

from pathlib import Path

import numpy as np
import pytest

from jobs.comparison_summary import ARMS, lines, summary
from jobs.decoding_arms import STRICT, Outcome
from pipeline.config_file import load_config
from pipeline.engine.statistics import EngineStatistics

PLAIN_TEXT, OTHER, LOOP = range(20), range(1, 21), [3] * 20


def outcome(**texts):
    arrays = {key: np.array(list(text), np.int32) for key, text in texts.items()}
    passes = {key: len(text) for key, text in arrays.items()}
    return Outcome(2.0, arrays, passes, {}, EngineStatistics())


@pytest.fixture
def arms(demo):
    """Three repeats of two users and one item, whose keys are numbers of their own kind."""
    plain = outcome(r0=PLAIN_TEXT, r1=PLAIN_TEXT)
    users = {name: [plain, plain, plain] for name in ARMS} | {
        STRICT: [outcome(r0=OTHER, r1=PLAIN_TEXT), outcome(r0=LOOP, r1=PLAIN_TEXT), plain]
    }
    item = outcome(r0=PLAIN_TEXT)
    items = {name: [item] * 3 for name in ARMS} | {STRICT: [outcome(r0=LOOP)] * 3}
    outcomes = {(arm, "user"): users[arm] for arm in ARMS}
    outcomes |= {(arm, "item"): items[arm] for arm in ARMS}
    made = summary(demo, 3, ["user", "item"], outcomes)
    return {(arm["arm"], arm["kind"]): arm for arm in made["arms"]}


@pytest.fixture
def demo():
    return load_config(Path(__file__).parents[2] / "conf" / "demo.yaml")


@pytest.mark.parametrize(
    ("kind", "rows", "unlike", "looping"), [("user", 2, 1, 1), ("item", 1, 1, 1), ("all", 3, 2, 2)]
)
def test_a_row_is_counted_once_however_often_it_was_written(arms, kind, rows, unlike, looping):
    arm = arms[STRICT, kind]
    assert (arm["rows"], arm["rows_unlike_plain"], arm["looping_rows"]) == (rows, unlike, looping)
    assert arm["repeats"] == 3
    assert arms["plain", kind]["rows_unlike_plain"] == 0


def test_time_and_tokens_are_those_of_all_repeats(arms):
    assert (arms[STRICT, "all"]["seconds"], arms[STRICT, "all"]["new_tokens"]) == (12.0, 180)


def test_a_measurement_of_several_tries_says_so_and_places_are_told_once_for_each_arm():
    place = {"kind": "item", "position": 37, "gap": 4e-6}
    parted = [
        {"arm": arm, "entity_id": entity, **place}
        for arm, entities in (("transformers.generate", "abc"), (STRICT, "d"))
        for entity in entities
    ]
    comparison = {"arms": [], "waterfall": [], "divergences": parted}
    told = list(lines(comparison))
    assert told == [
        "transformers.generate and plain part at token 37 of item a, where their logits are 4e-06 "
        "apart, and 2 more rows part",
        "strict and plain part at token 37 of item d, where their logits are 4e-06 apart",
    ]
    assert list(lines(comparison | {"tries": 1})) == told
    assert "measured in 2 tries" in list(lines(comparison | {"tries": 2}))[-1]
