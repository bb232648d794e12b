"""How long stages will take is learnt from runs that were killed and went on, too."""

import pytest

from jobs.commands.durations import _rates
from pipeline.store import Store


def write(store, name, seconds, rows, facts, monkeypatch, inputs=()):
    """A dataset of files, as if its last try had taken so many seconds."""
    settings = {"generation": {"max_new_tokens": 10}, "model": "ours"}
    plan = store.plan(name, settings, inputs)
    with monkeypatch.context() as later:
        later.setattr("pipeline.store.time.monotonic", lambda: plan.began + seconds)
        plan.write_files(lambda folder: None, rows, facts)


@pytest.fixture
def rates(tmp_path, monkeypatch):
    """Seconds by what drives a stage, of a run with one dataset."""

    def of(name, seconds, rows, facts):
        store = Store(tmp_path / "run")
        write(store, "users", 0.0, 40, {}, monkeypatch)
        write(store, name, seconds, rows, facts, monkeypatch)
        if name.startswith("waves"):
            write(store, "knowledge", 0.0, rows, {}, monkeypatch, [name])
        return dict(_rates(store, is_by_model=True))

    return of


@pytest.mark.parametrize(
    ("written", "rate"), [(16, 100 / 16), (4, 400 / 16), (2, 800 / 16), (None, 100 / 16)]
)
def test_a_resumed_comparison_is_taken_for_what_it_would_have_taken_at_one_go(rates, written, rate):
    facts = {} if written is None else {"rows_written": written}  # of an older program
    assert rates("comparison", 100.0, 16, facts)["compare_decoding"] == pytest.approx(rate)


@pytest.mark.parametrize("written", [0, 1])
def test_a_last_try_that_did_little_tells_nothing(rates, written):
    assert "compare_decoding" not in rates("comparison", 100.0, 16, {"rows_written": written})


@pytest.mark.parametrize(
    ("name", "stage", "facts", "rate"),
    [
        ("features", "encode_features", {"rows_written": 10}, 100 / 40 * 4),
        (
            "waves/0/knowledge",
            "generate_knowledge",
            {"steps": {"rows_written": 20}},
            100 / (40 * 10) * 2,
        ),
    ],
)
def test_so_are_texts_and_features(rates, name, stage, facts, rate):
    assert rates(name, 100.0, 40, facts)[stage] == pytest.approx(rate)


def test_an_empty_dataset_is_no_part_of_one(rates):
    assert rates("features", 100.0, 0, {"rows_written": 0})["encode_features"] == 2.5
