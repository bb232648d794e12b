"""Prices: against the paper's, against measured speeds, and as they have to move."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import forecast_cost
from jobs.forecast_chart import render
from jobs.forecast_conclusion import conclusion
from pipeline.config_file import load_config
from pipeline.errors import ConfigError
from pipeline.forecast.accelerators import accelerator_named
from pipeline.forecast.best import Engine, Row, stops_paying
from pipeline.forecast.check import checks
from pipeline.forecast.cost import Fleet
from pipeline.forecast.job import PLAIN, PLAIN_ALONE, Job, arms_of, sensitivity
from pipeline.forecast.laser_example import PUBLISHED_DAYS, PUBLISHED_RATE, figures
from pipeline.forecast.named_models import named_size
from pipeline.forecast.profiles import named_curves
from pipeline.forecast.step_time import HostTime, Roofline
from pipeline.forecast.yield_curve import YieldCurve

CONF = Path(__file__).resolve().parents[2] / "conf" / "plan.yaml"
FREE = HostTime(0.0, 0.0, 0.0, 0.0)


def job(**changes):
    usual = Job(
        1_000_000, Row(300, 250), named_size("llama-3.1-8b"), "bfloat16",
        accelerator_named("a100-80"), Fleet(8, 2.0), 700, [1, 2, 4, 8, 16, 32, 64, 128],
    )  # fmt: skip
    return replace(usual, **changes)


def chain(acceptance, length):
    """A chain whose every token stays with the same probability (Leviathan et al.)."""
    survival = acceptance ** np.arange(1, length + 1)
    return YieldCurve(np.arange(length + 1.0), np.append(0.0, np.cumsum(survival)), "a chain")


def test_the_papers_565_days_follow_from_one_assumption():
    assert pytest.approx(51.2, abs=0.05) == PUBLISHED_RATE
    first, *others = figures()
    assert first.days == pytest.approx(PUBLISHED_DAYS, rel=0.10)
    assert "nothing else" in first.assumptions
    # By hand: 7.10 B weights of two bytes, read at 0.8 of 900 GB/s for each of 2.5 billion tokens,
    # and the cache of 125 tokens on average.
    weights = (7_720_665_088 - 151_936 * 4096) * 2
    seconds = (weights + 125 * 524_288) / (0.8 * 900e9)
    assert first.days == pytest.approx(2.5e9 * seconds / 86_400, rel=1e-6)
    by_name = {figure.assumptions: figure.days for figure in others}
    assert max(by_name.values()) > 1.5 * PUBLISHED_DAYS  # what transformers would take
    assert min(by_name.values()) < 0.1 * PUBLISHED_DAYS  # what a batch takes


def test_forecasts_are_near_what_was_measured_here():
    found = {(one.arm, one.batch): one.error for one in checks()}
    assert {(arm, batch) for arm in ("plain", "strict") for batch in (1, 16)} <= set(found)
    assert all(abs(error) < 0.15 for error in found.values())
    assert abs(found["plain", 1]) < 0.05


@pytest.mark.parametrize(
    ("device", "rows", "context", "gain", "fixed"),
    [
        ("h200", 16, 1024, 2.47, 2.47),
        ("h200", 64, 1024, 1.75, 1.05),
        ("h200", 64, 4096, 1.84, 1.40),
        ("h200", 256, 1024, 1.15, 0.60),
        ("a100-80", 16, 1024, 2.44, 2.11),
        ("a100-80", 64, 1024, 1.52, 0.76),
        ("a100-80", 256, 4096, 1.39, 0.94),
    ],
)
def test_gains_are_those_of_the_published_model_of_budgets(device, rows, context, gain, fixed):
    """SmartSpec's goodput for chains of acceptance 0.6, an 8B model and free drafts."""
    step = Roofline(named_size("llama-3.1-8b"), accelerator_named(device), "bfloat16")
    engine = Engine(step, FREE, Row(context, 1.0, context), chain(0.6, 8))
    assert engine.gain(rows) == pytest.approx(gain, rel=0.07)
    plain = replace(engine, curve=chain(0.0, 8)).at(rows)
    ratio = plain.row_seconds / engine.fixed(rows, 8.0).row_seconds
    assert ratio == pytest.approx(fixed, rel=0.09)


ROWS = st.builds(Row, st.integers(0, 3000), st.integers(1, 800))


@settings(max_examples=60, deadline=None)
@given(row=ROWS, devices=st.integers(1, 60), more=st.integers(1, 60), entities=st.integers(1, 5000))
def test_more_devices_are_never_slower(row, devices, more, entities):
    def days(count):
        arms = arms_of(
            job(row=row, fleet=Fleet(count), entities=entities),
            {"strict": named_curves()["strict"]},
        )
        return {arm.name: arm.cost.days for arm in arms if arm.name != PLAIN_ALONE}

    few, many = days(devices), days(devices + more)
    assert all(many[name] <= few[name] * (1 + 1e-9) for name in few)


@settings(max_examples=60, deadline=None)
@given(
    row=ROWS, factor=st.floats(0.0, 1.0), rule=st.sampled_from(["strict", "relaxed", "budget"]),
    device=st.sampled_from(["v100-32", "l4", "h200"]),
)  # fmt: skip
def test_more_acceptance_is_never_slower_and_drafts_never_harm(row, factor, rule, device):
    curve = named_curves()[rule]
    own = job(row=row, device=accelerator_named(device), dtype="float16", length=3900)
    arms = {a.name: a for a in arms_of(own, {"more": curve, "less": curve.scaled(factor)})}
    if not arms:
        return
    assert arms["more"].cost.device_hours <= arms["less"].cost.device_hours * (1 + 1e-9)
    assert arms["less"].cost.device_hours <= arms[PLAIN].cost.device_hours * (1 + 1e-9)


@given(row=ROWS, shorter=st.floats(0.1, 1.0))
def test_fewer_tokens_cost_less(row, shorter):
    full = arms_of(job(row=row), {})[1]
    less = arms_of(job(row=Row(row.prompt_tokens * shorter, row.new_tokens * shorter)), {})[1]
    assert less.cost.device_hours <= full.cost.device_hours * (1 + 1e-9)


def test_money_is_hours_times_price_and_nothing_without_one():
    priced, free = (arms_of(job(fleet=fleet), {})[1].cost for fleet in (Fleet(8, 2.5), Fleet(8)))
    assert priced.money == pytest.approx(2.5 * priced.device_hours)
    assert free.money is None
    assert priced.device_days == pytest.approx(priced.device_hours / 24)


def test_a_shared_beginning_of_prompts_is_computed_once():
    alone, shared = (arms_of(job(row=Row(300, 250, own)), {})[1] for own in (0, 300))
    assert shared.cost.device_hours < alone.cost.device_hours


def test_drafts_stop_paying_in_large_batches_but_not_where_contexts_are_long():
    step = Roofline(named_size("llama-3.1-8b"), accelerator_named("h200"), "bfloat16")
    short = Engine(step, HostTime(), Row(100, 100), named_curves()["strict"])
    stop = stops_paying(short)
    assert stop is not None
    assert 16 < stop < 512
    assert short.gain(stop // 2) >= 1.05 > short.gain(stop)
    long = Engine(step, FREE, Row(30_000, 100, 30_000), chain(0.6, 4))
    assert stops_paying(long) is None
    never = Engine(step, HostTime(), Row(100, 100), chain(1e-3, 2))
    assert stops_paying(never) == 1


def test_sensitivity_moves_the_right_way():
    own = job(batch_sizes=[8])  # so that drafts pay
    base = arms_of(own, {"strict": named_curves()["strict"]})[-1].cost
    found = {
        (one["what"], one["factor"] > 1): one["money"] / base.money
        for one in sensitivity(own, named_curves()["strict"], [0.2])
    }
    assert found["price", True] == pytest.approx(1.2)
    assert found["acceptance", True] < 1.0 < found["acceptance", False]
    assert found["new tokens", False] < 1.0 < found["new tokens", True]


# The job.


@pytest.fixture
def config(tmp_path):
    def load(*overrides):
        return load_config(CONF, [f"artifacts={tmp_path}", "plan.seeds=2", *overrides])

    return load


def test_make_plan_writes_a_forecast_and_a_picture_that_loads_nothing(tmp_path, capsys):
    argv = ["--config", str(CONF), "--set", f"artifacts={tmp_path}", "--set", "plan.seeds=2"]
    assert forecast_cost.main(argv) == 0
    printed = capsys.readouterr().out
    stored = json.loads((tmp_path / "plan/plan/plan.json").read_text())
    assert {PLAIN, PLAIN_ALONE, "strict", "relaxed"} <= set(stored["totals"])
    assert "LASER's example" in printed
    assert "565 GPU days" in printed
    picture = (tmp_path / "plan/plan/plan.svg").read_text()
    assert ET.fromstring(picture).tag.endswith("svg")
    assert not re.search(r"""(href|src)\s*=|url\(|@import""", picture)
    assert all(word in picture for word in ("acceptance", "new tokens", "price"))
    assert (tmp_path / "plan/plan/manifest.json").is_file()


def test_the_conclusion_is_one_sentence_with_hours_money_batch_and_whether_drafts_pay(
    config, tmp_path, capsys
):
    small = "plan.batch_sizes=[1,16]"
    result = forecast_cost.forecast(config(small))
    said, simulated = result["conclusion"], result["simulated"]
    (own,) = [arm for arm in result["arms"] if arm["arm"] == "strict"]
    hours = {name: one["hours"] for name, one in simulated.items()}
    assert f"at batch {own['rows']} with drafts (strict)" in said
    paid = hours["strict"] * 8
    assert f"{paid:,.0f} GPU hours and costs {2.5 * paid:,.0f} at 2.5 an hour" in said
    assert f"drafts pay: they save {100 * (1 - hours['strict'] / hours['plain']):.0f} %" in said
    best = min(hours, key=hours.get)
    assert f"others ({best}), which change texts a little" in said
    assert "\n" not in said
    settings = [f"artifacts={tmp_path}", "plan.seeds=2", small]
    words = [part for one in settings for part in ("--set", one)]
    assert forecast_cost.main(["--config", str(CONF), *words]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == said
    assert json.loads((tmp_path / "plan/plan/plan.json").read_text())["conclusion"] == said


def test_where_drafts_do_not_pay_the_conclusion_is_of_plain_decoding(config):
    said = forecast_cost.forecast(config())["conclusion"]
    assert "at batch 512 without drafts" in said
    assert "drafts (strict) do not pay here: it would take" in said
    assert "others" not in said
    assert "costs" not in forecast_cost.forecast(config("plan.price=null"))["conclusion"]


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        ({"plain": 10.0, "strict": 9.8}, "they would save 2.0 % of the time"),
        ({"plain": 10.0, "strict": 9.8, "budget": 8.0}, "little, 20 %"),
        ({"plain": 0.0, "strict": 0.0}, "they would save"),
        ({"plain": 100.0}, "4.2 days on 2 x gpu"),
    ],
)
def test_the_conclusion_of_any_forecast(hours, said):
    forecast = {
        "simulated": {name: {"hours": spent} for name, spent in hours.items()},
        "arms": [{"arm": name, "rows": 4} for name in hours],
        "sensitivity_of": "strict" if "strict" in hours else "plain",
        "settings": {"entities": 1, "devices": 2, "price": None},
        "model": "m",
        "device": {"name": "gpu"},
    }
    assert said in conclusion(forecast)


def test_without_a_price_there_is_no_money(config):
    result = forecast_cost.forecast(config("plan.price=null"))
    assert result["unit"] == "device hours"
    assert all(arm["money"] is None for arm in result["arms"])
    assert "device hours" in render(result)


def test_more_waits_than_the_closed_form_knows(config):
    result = forecast_cost.forecast(config())
    for arm in result["arms"]:
        if arm["arm"] in result["simulated"]:
            assert result["simulated"][arm["arm"]]["hours"] > 24 * arm["days"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("plan.accelerator=b300", "h100"),
        ("plan.model=unknown-9b", "config.json of unknown-9b"),
        ("plan.model=llama-3.1-70b", "weights take 141"),
        ("plan.profile=absent.json", "movies-135m"),
        ("plan.dtype=float64", "dtype"),
        ("plan.batch_sizes=[]", "batch_sizes"),
        ("plan.entities=0", "entities"),
    ],
)
def test_what_cannot_be_planned_is_a_config_error(config, override, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        forecast_cost.forecast(config(override))


def test_a_device_without_the_dtype_is_a_config_error(config):
    with pytest.raises(ConfigError, match="float16"):
        forecast_cost.forecast(config("plan.accelerator=v100-32"))


def test_a_model_may_be_a_folder(config, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100})
    )  # fmt: skip
    size = forecast_cost.model_size(config(f"plan.model={folder}"))
    assert size.parameters == 2 * (4 * 64 * 64 + 3 * 64 * 128) + 2 * 100 * 64
