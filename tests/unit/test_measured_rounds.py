"""A comparison that is killed goes on with the rounds that are missing, and says that it did."""

import logging

import numpy as np
import pytest

from jobs.decoding_arms import PLAIN, RELAXED, STRICT, TRANSFORMERS, Outcome
from jobs.measured_rounds import MeasuredRounds, measure
from pipeline.engine.statistics import EngineStatistics
from pipeline.engine.types import Generation, Request, RowStatistics
from pipeline.store import Store

ARMS = (TRANSFORMERS, PLAIN, STRICT, RELAXED)
MACHINE = "one, 2 threads"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


@pytest.fixture
def requests():
    prompt = np.arange(3, dtype=np.int32)
    return {kind: [Request(str(row), prompt, 20) for row in range(2)] for kind in ("user", "item")}


def writer_of(store, **settings):
    return store.plan("comparison", settings).open_writer()


def arms_of(taken, dies_at=None):
    """Four arms; whoever takes turn `dies_at` (of whole turns, from 0) is stopped in it."""

    def arm(name):
        def run(rows):
            if rows[0].max_new_tokens == 4:  # it warms up
                return None
            if len(taken) == dies_at:
                raise KeyboardInterrupt
            taken.append((name, len(rows)))
            texts = {row.key: np.arange(len(taken) + 3, dtype=np.int32) for row in rows}
            passes = dict.fromkeys(texts, len(taken))
            generations = {
                key: Generation(key, text, "length", RowStatistics(len(taken), 2, 0.25))
                for key, text in texts.items()
            }
            is_engine = name != TRANSFORMERS
            statistics = EngineStatistics(3, 9, 27, 0.5, 0.25, tokens=7)
            return Outcome(
                1.5 + len(taken),
                texts,
                passes,
                generations if is_engine else {},
                statistics if is_engine else EngineStatistics(),
            )

        return run

    return lambda: {name: arm(name) for name in ARMS}


def plain(outcomes):
    """Outcomes as values that can be compared."""
    return {
        key: [
            (
                one.seconds,
                {name: text.tolist() for name, text in one.texts.items()},
                one.passes,
                {
                    name: (g.token_ids.tolist(), g.finish_reason, g.statistics.relaxed_cost)
                    for name, g in one.generations.items()
                },
                one.statistics,
            )
            for one in of_repeats
        ]
        for key, of_repeats in outcomes.items()
    }


def test_a_killed_comparison_measures_only_the_rounds_that_are_missing(store, requests, caplog):
    taken, again = [], []
    with pytest.raises(KeyboardInterrupt):
        measure(arms_of(taken, 10), requests, 2, MeasuredRounds(writer_of(store), MACHINE))
    assert len(taken) == 10  # two rounds, and two turns of the third
    rounds = MeasuredRounds(writer_of(store), MACHINE)
    assert [one in rounds for one in ((0, "user"), (0, "item"), (1, "user"), (1, "item"))] == [
        *(True, True, False, False)
    ]
    with caplog.at_level(logging.INFO):
        outcomes = measure(arms_of(again), requests, 2, rounds)
    assert "2 rounds of 2 rows to measure, 2 stored already" in caplog.text
    # A whole round again, in the order of its repeat: arms are compared within one.
    assert [name for name, _ in again] == [RELAXED, *ARMS[:3]] * 2
    assert {key: len(found) for key, found in outcomes.items()} == {
        (arm, kind): 2 for arm in ARMS for kind in requests
    }
    assert rounds.tries == 2
    assert rounds.share_of_this_try == 0.5


def test_what_is_stored_is_what_was_measured(store, requests):
    rounds = MeasuredRounds(writer_of(store), MACHINE)
    measured = measure(arms_of([]), requests, 1, rounds)
    stored = MeasuredRounds(writer_of(store), MACHINE).outcomes()
    assert plain(stored) == plain(measured)
    (relaxed,) = stored[RELAXED, "item"]
    assert isinstance(relaxed.statistics.steps, int)
    assert relaxed.statistics == EngineStatistics(3, 9, 27, 0.5, 0.25, tokens=7)
    assert relaxed.generations["1"].statistics.relaxed_tokens == 2
    assert relaxed.texts["1"].dtype == np.int32
    assert stored[TRANSFORMERS, "user"][0].generations == {}


def test_one_killed_at_its_very_end_loads_no_engine_again(store, requests):
    measure(arms_of([]), requests, 1, MeasuredRounds(writer_of(store), MACHINE))

    def none():
        raise AssertionError("no arm is needed")

    rounds = MeasuredRounds(writer_of(store), MACHINE)
    assert measure(none, requests, 1, rounds)[PLAIN, "user"]
    assert rounds.tries == 1


@pytest.mark.parametrize("other", ["machine", "settings"])
def test_rounds_of_another_machine_or_other_settings_do_not_count(store, requests, other, caplog):
    measure(arms_of([]), requests, 1, MeasuredRounds(writer_of(store), MACHINE))
    with caplog.at_level(logging.INFO):
        if other == "machine":
            rounds = MeasuredRounds(writer_of(store), "another, 64 threads")
            assert "was measured on another machine" in caplog.text
        else:
            rounds = MeasuredRounds(writer_of(store, rows=3), MACHINE)
    taken = []
    measure(arms_of(taken), requests, 1, rounds)
    assert len(taken) == 8
    assert rounds.tries == 1
