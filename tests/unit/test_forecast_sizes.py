"""Sizes of models and of what fits, step times and yield curves, against independent figures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.engine.budget import CostTable
from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.forecast.accelerators import ACCELERATORS, accelerator_named
from pipeline.forecast.memory import Room
from pipeline.forecast.model_size import read_model_size, size_of_config
from pipeline.forecast.named_models import CONFIGS, named_size
from pipeline.forecast.profiles import curves_of, measured, named_curves
from pipeline.forecast.step_time import MeasuredSteps, Roofline
from pipeline.forecast.yield_curve import YieldCurve, of_benchmark, of_comparison, of_report

BILLIONS = {  # stored, at work in a token: as their publishers say
    "smollm2-135m": (0.1345, 0.1345),
    "qwen2.5-0.5b": (0.494, 0.494),
    "qwen2.5-1.5b": (1.544, 1.544),
    "qwen2.5-7b": (7.616, 7.07),
    "qwen-7b": (7.721, 7.10),
    "vicuna-7b": (6.738, 6.61),
    "llama2-13b": (13.016, 12.85),
    "mistral-7b": (7.248, 7.11),
    "llama-3.1-8b": (8.030, 7.50),
    "llama-3.1-70b": (70.55, 69.5),
    "mixtral-8x7b": (46.70, 12.75),
    "qwen3-30b-a3b": (30.53, 3.04),
}
TINY = {
    "llama": {"num_key_value_heads": 2, "intermediate_size": 96},
    "qwen2": {"num_key_value_heads": 4, "intermediate_size": 96, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 32},
    "gemma3_text": {"num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 32},
    "gpt_neox": {"intermediate_size": 256},
    "mixtral": {"num_key_value_heads": 2, "intermediate_size": 96, "num_local_experts": 4},
    "qwen3_moe": {
        "num_key_value_heads": 2, "intermediate_size": 96, "num_experts": 4, "head_dim": 16,
        "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_named_models_have_the_size_their_publishers_say(name):
    size = named_size(name)
    stored, at_work = BILLIONS[name]
    assert size.parameters / 1e9 == pytest.approx(stored, rel=2e-3)
    assert size.active / 1e9 == pytest.approx(at_work, rel=5e-3)


@pytest.mark.parametrize("family", TINY)
def test_counts_are_those_of_the_model_that_transformers_builds(family):
    config = AutoConfig.for_model(
        family, vocab_size=512, hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=64, **TINY[family],
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = sum(one.numel() for one in model.parameters() if one.dim() > 1)
    assert size_of_config(config.to_dict()).parameters == matrices


def test_gpt2_config_has_other_names():
    config = AutoConfig.for_model("gpt2", n_embd=64, n_layer=2, n_head=4, vocab_size=512)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = sum(one.numel() for one in model.parameters() if one.dim() > 1)
    assert size_of_config(config.to_dict()).parameters == matrices


def test_a_step_reads_few_experts_or_all():
    size = named_size("mixtral-8x7b")
    assert size.read(1) == pytest.approx(size.active)
    stored_but_input = size.parameters - size.head  # one of the two embeddings is never multiplied
    assert size.read(1000) == pytest.approx(stored_but_input)
    assert named_size("llama-3.1-8b").read(1) == named_size("llama-3.1-8b").read(64)


def test_configs_that_cannot_be_counted_are_refused(tmp_path):
    with pytest.raises(ModelError, match="hidden_size"):
        size_of_config({"num_hidden_layers": 2})
    with pytest.raises(ModelError, match="deepseek_v3"):
        size_of_config({"model_type": "deepseek_v3", "kv_lora_rank": 512})
    with pytest.raises(ModelError, match="cannot be read"):
        read_model_size(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="no mapping"):
        read_model_size(tmp_path)
    with pytest.raises(ConfigError, match=r"llama-3\.1-8b"):
        named_size("llama-9b")


def test_cache_of_grouped_heads_is_small():
    assert named_size("llama-3.1-8b").cache_per_token * 2 == 131_072
    assert named_size("qwen-7b").cache_per_token * 2 == 524_288


def test_devices_name_their_source_and_refuse_what_they_cannot_do():
    assert all(device.source for device in ACCELERATORS.values())
    with pytest.raises(ConfigError, match="float16"):
        accelerator_named("v100-32").peak("bfloat16")
    with pytest.raises(ConfigError, match="h100"):
        accelerator_named("h1000")


@given(
    rows=st.integers(1, 512), more=st.integers(1, 64), length=st.integers(16, 4096),
    drafts=st.floats(0, 64),
)  # fmt: skip
def test_memory_left_shrinks_with_the_batch_and_most_rows_is_the_edge(rows, more, length, drafts):
    room = Room(named_size("llama-3.1-8b"), accelerator_named("a100-80"), "bfloat16", length)
    assert room.fit(rows + more, drafts).free < room.fit(rows, drafts).free
    assert room.fit(rows, drafts + 1).free < room.fit(rows, drafts).free
    most = room.most_rows()
    assert room.fit(most).free >= 0.0 > room.fit(most + 1).free


def test_a_model_larger_than_the_device_has_no_rows():
    assert (
        Room(named_size("llama-3.1-70b"), accelerator_named("h100"), "bfloat16", 64).most_rows()
        == 0
    )


def test_roofline_waits_for_weights_then_for_arithmetic_then_for_the_cache():
    size, device = named_size("llama-3.1-8b"), accelerator_named("h200")
    step = Roofline(size, device, "bfloat16")
    one, many = step.seconds(1, np.array([1, 4096]), 0.0)
    assert one == pytest.approx(2e-3 + 7.504658432e9 * 2 / (4.8e12 * 0.8))
    assert many == pytest.approx(2e-3 + 2 * 7.504658432e9 * 4096 / (989e12 * 0.6))
    assert step.seconds(8, np.array([8]), 1000.0)[0] - step.seconds(8, np.array([8]), 0.0)[
        0
    ] == pytest.approx(8000 * 131_072 / (4.8e12 * 0.8))


def test_measured_steps_are_read_as_the_engine_reads_them():
    stored = measured()["costs"]
    arrays = [np.array(stored[name], float) for name in ("contexts", "rows", "per_row", "seconds")]
    table, ours = CostTable(*arrays), MeasuredSteps.from_json(stored)
    for rows, context in ((1, 20.0), (3, 100.0), (16, 5000.0), (11, 300.0)):
        tokens = rows * np.array([1.0, 1.1, 2.7, 30.0, 200.0])
        expected = table.step_seconds(rows, tokens, context)
        np.testing.assert_allclose(ours.seconds(rows, tokens, context), expected)
    with pytest.raises(DataError, match="seconds"):
        MeasuredSteps.from_json({"contexts": [1], "rows": [1], "per_row": [1]})


# Yield curves.


def test_a_curve_is_the_least_concave_one_over_its_points():
    curve = YieldCurve.through([(1, 0.5), (2, 0.6), (4, 1.4), (8, 1.3)], "test")
    assert curve.drafts.tolist() == [0, 1, 4]  # (2, 0.6) lies below, and more drafts bring less
    assert curve.extra_at(np.array([0.5, 2.5, 100.0])).tolist() == pytest.approx([0.25, 0.95, 1.4])
    with pytest.raises(DataError, match="nothing of drafts"):
        YieldCurve.through([(1, 1.5)], "test")


@given(
    levels=st.lists(st.tuples(st.floats(0.05, 30), st.floats(0, 1)), min_size=1, max_size=9),
    factor=st.floats(0.0, 3.0),
)
def test_scaled_curves_stay_concave_and_below_one_for_one(levels, factor):
    try:
        curve = YieldCurve.through([(m, m * share) for m, share in levels], "test")
    except DataError:
        return
    own = curve.scaled(factor) if len(curve.drafts) > 1 else curve
    slopes = np.diff(own.extra) / np.diff(own.drafts)
    assert (slopes <= 1.0 + 1e-9).all()
    assert (np.diff(slopes) <= 1e-9).all()


def benchmark(drafts_at, extra_at):
    """A benchmark whose rows read 100 tokens of prompt and write 90."""
    arms = []
    for batch in drafts_at:
        for arm, drafts, extra in (
            ("plain", 0.0, 0.0),
            ("strict", drafts_at[batch], extra_at[batch]),
        ):
            passes = 16 * 90 / (0.99 * (1 + extra))
            steps = passes / batch
            packed = (16 * 100 + passes * (1 + drafts)) / steps
            arms.append(
                {"arm": arm, "kind": "all", "batch": batch, "rows": 16, "new_tokens": 16 * 90,
                 "tokens_per_forward": 0.99 * (1 + extra),
                 "step": {"steps": steps, "packed_tokens": packed}}
            )  # fmt: skip
    return {"arms": arms}


def test_a_benchmark_gives_the_points_that_its_budget_chose():
    curve = of_benchmark(benchmark({1: 6.0, 16: 0.3}, {1: 1.1, 16: 0.2}), "strict")
    assert curve.drafts.tolist() == pytest.approx([0, 0.3, 6.0])
    assert curve.extra.tolist() == pytest.approx([0, 0.2, 1.1])
    with pytest.raises(DataError, match="relaxed"):
        of_benchmark(benchmark({1: 6.0}, {1: 1.1}), "relaxed")


def report(levels, passes=100):
    waves = [
        {"rules": ["plain"], "forward_passes": 999},
        {"rules": ["strict"], "forward_passes": passes},
    ]
    levels = [{"drafted": drafted, "accepted": accepted} for drafted, accepted in levels]
    return {"acceptance": {"by_depth": levels, "waves": waves}}


def test_a_report_gives_level_by_level_the_surest_first():
    curve = of_report(report([(50, 40), (100, 30), (20, 12)]))
    assert curve.drafts.tolist() == pytest.approx([0, 0.5, 0.7, 1.7])
    assert curve.extra.tolist() == pytest.approx([0, 0.4, 0.52, 0.82])
    with pytest.raises(DataError, match="drafted nothing"):
        of_report(report([]))


def test_a_comparison_scales_the_usual_shape_to_its_tokens_per_pass():
    arms = [{"arm": "plain", "kind": "all", "tokens_per_forward": 1.0}]
    arms.append({"arm": "strict", "kind": "all", "tokens_per_forward": 1.25})
    shape = named_curves()["strict"]
    curve = of_comparison({"arms": arms, "batch_rows": 16, "rows": 64}, "strict", shape)
    usual = np.array([5.5 / 16])
    assert curve.extra_at(usual)[0] == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize(
    ("stored", "names"),
    [
        (benchmark({1: 6.0}, {1: 1.1}), ["strict"]),
        (report([(50, 40)]), ["as that run"]),
        ({"batch_rows": 4, "rows": 8, "arms": [
            {"arm": "plain", "kind": "all", "tokens_per_forward": 1.0},
            {"arm": "relaxed", "kind": "all", "tokens_per_forward": 1.4}]}, ["relaxed"]),
    ],
)  # fmt: skip
def test_a_profile_is_recognised_by_what_is_in_it(tmp_path, stored, names):
    file = tmp_path / "some.json"
    file.write_text(json.dumps(stored))
    assert list(curves_of(str(file))) == names


def test_profiles_that_say_nothing_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="movies-135m"):
        curves_of(str(tmp_path / "absent.json"))
    for text in ("{", "[]", "{}", '{"arms": [{"arm": "plain"}]}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(DataError, match=r"bad\.json"):
            curves_of(str(tmp_path / "bad.json"))


def test_the_named_profile_is_concave_and_relaxed_rules_bring_more():
    curves = named_curves()
    for curve in curves.values():
        slopes = np.diff(curve.extra) / np.diff(curve.drafts)
        assert (np.diff(slopes) <= 1e-3).all()
        assert slopes[0] <= 1.0
    assert {"strict", "relaxed", "budget"} == set(curves)
    at = np.array([0.5, 2.0, 8.0])
    assert (curves["budget"].extra_at(at) > curves["strict"].extra_at(at)).all()


def test_measured_file_is_small():
    assert (Path("pipeline/forecast/measured.json")).stat().st_size < 20_000
