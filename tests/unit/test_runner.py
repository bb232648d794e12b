"""Which models the engine takes, that it runs them exactly, and what it says to all others."""

import re
import threading

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    FalconMambaConfig,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    GraniteConfig,
    JambaConfig,
    LlamaConfig,
    MptConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
    StableLmConfig,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from pipeline.config import EngineSettings
from pipeline.engine import compatibility, runner
from pipeline.engine.attention import TREE_ATTENTION, tree_attention
from pipeline.engine.budget import FREE
from pipeline.engine.engine import Engine
from pipeline.engine.packed_linear import PackedLinear, pack_linears
from pipeline.engine.probe import require_same
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Strict
from pipeline.engine.runner import ModelRunner
from pipeline.engine.stops import Stops
from pipeline.engine.types import Request
from pipeline.errors import ModelError

FAMILIES = [
    "llama",
    "mistral",
    "gemma3",
    "qwen2",
    "qwen2_sliding",
    "qwen3",
    "gpt_neox",
    "gpt_neox_tied",
    "gpt2",
    "gpt2_scaled",
]
STOP, PENALTY, NEW = 2, 1.2, 20
SETTINGS = EngineSettings(batch_rows=3, max_length=128, prefill_tokens=24, draft_nodes=12)
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDE = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2}
# `type(config)` decides the model; the engine must know these from the configuration alone.
RECURRENT = {
    "falcon_mamba": lambda: FalconMambaConfig(**SIZES, state_size=4),
    "jamba": lambda: JambaConfig(**WIDE, num_experts=2),
    "recurrent_gemma": lambda: RecurrentGemmaConfig(**WIDE, lru_width=32),
    "rwkv": lambda: RwkvConfig(**SIZES),
}
ALIBI = {
    "bloom": lambda: BloomConfig(**SIZES),
    "mpt": lambda: MptConfig(vocab_size=61, d_model=32, n_layers=2, n_heads=4),
    "falcon": lambda: FalconConfig(**SIZES, alibi=True),
}


def make_engine(model, settings=SETTINGS):
    stops = Stops([STOP])
    return Engine(model, settings, stops, Processors(stops.ids, PENALTY), costs=FREE)


def build(config, dtype=torch.float32):
    """A tiny random model whose logits are far apart."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model


def refusal(model, batch_rows=2, max_length=64):
    with pytest.raises(ModelError) as caught:
        ModelRunner(model, batch_rows, max_length)
    return str(caught.value)


def greedy(model, prompt):
    with torch.inference_mode():
        output = model.generate(
            torch.from_numpy(prompt.astype(np.int64))[None],
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW,
            do_sample=False,
            repetition_penalty=PENALTY,
            eos_token_id=STOP,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
    return output[: output.index(STOP)] if STOP in output else output


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_families_pass_the_probe(family, batch_rows, dtype, tiny_model):
    """Also in the smallest arena the configuration allows."""
    ModelRunner(tiny_model(family).to(dtype), batch_rows, 16)


@pytest.mark.parametrize("family", FAMILIES)
def test_strict_with_noise_drafts_equals_greedy_generate(family, tiny_model, noise_drafter):
    """Prompts and texts are longer than the sliding windows, which are 12 tokens."""
    random = np.random.default_rng(4)
    prompts = [random.integers(3, 61, int(n)).astype(np.int32) for n in (1, 9, 40, 17, 30)]
    truth = [greedy(tiny_model(family), prompt) for prompt in prompts]
    engine = make_engine(tiny_model(family))
    engine.use(noise_drafter(), Strict(), FREE)
    requests = [Request(str(index), prompt, NEW) for index, prompt in enumerate(prompts)]
    texts = {done.key: done.token_ids.tolist() for done in engine.generate(requests)}
    assert [texts[str(index)] for index in range(len(prompts))] == truth


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_refused(name):
    config = RECURRENT[name]()
    message = refusal(build(config))
    assert f"'{config.model_type}'" in message
    assert "recurrent or linear-attention layers" in message
    assert "choose another model" in message


@pytest.mark.parametrize("name", ALIBI)
def test_alibi_is_refused(name):
    message = refusal(build(ALIBI[name]()))
    assert f"'{name}'" in message
    assert "ALiBi" in message


@pytest.mark.parametrize("name", [*RECURRENT, *ALIBI])
def test_the_probe_refuses_them_too(name, monkeypatch):
    """As if no field of the configuration gave them away; never by a bare TypeError."""
    model = build({**RECURRENT, **ALIBI}[name]())
    monkeypatch.setattr(compatibility, "_reason_to_refuse", lambda _: "")
    assert f"'{model.config.model_type}'" in refusal(model)


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        (LlamaConfig, {"rope_type": "dynamic", "factor": 2.0}),
        (
            Phi3Config,
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 256,
            },
        ),
    ],
)
def test_rope_that_depends_on_the_batch_is_refused(family, rope):
    config = family(
        **WIDE, max_position_embeddings=512, rope_parameters={"rope_theta": 1e4, **rope}
    )
    message = refusal(build(config))
    assert f"'{config.model_type}'" in message
    assert f"RoPE of type {rope['rope_type']} looks at the longest row" in message


def test_attention_soft_capping_is_refused(monkeypatch):
    config = Gemma2Config(**WIDE, head_dim=8)
    assert "'gemma2': attention soft-capping" in refusal(build(config))
    # The cap is far from what a few tokens reach, so the probe must see the argument itself.
    monkeypatch.setattr(compatibility, "_reason_to_refuse", lambda _: "")
    assert "attention soft-capping" in refusal(build(config))


def test_attention_sinks_are_refused():
    rope = {"rope_type": "default", "rope_theta": 1e4}
    config = GptOssConfig(**WIDE, head_dim=8, num_local_experts=4, rope_parameters=rope)
    assert "attention sinks" in refusal(build(config))


def test_cross_attention_is_refused():
    assert "cross-attention" in refusal(build(GPT2Config(**SIZES, add_cross_attention=True)))


def test_a_model_with_attention_code_of_its_own_is_refused():
    message = refusal(build(FalconConfig(**SIZES, alibi=False)))
    assert "FalconForCausalLM (type 'falcon') has attention code of its own" in message


def test_a_model_that_hands_nothing_on_to_attention_is_refused_with_its_cause():
    with pytest.raises(ModelError, match=r"StableLmForCausalLM \(type 'stablelm'\)") as caught:
        ModelRunner(build(StableLmConfig(**WIDE)), 2, 64)
    assert isinstance(caught.value.__cause__, TypeError)
    assert "'step'" in str(caught.value)


def test_scaled_logits_are_refused():
    message = refusal(build(GraniteConfig(**WIDE, logits_scaling=8.0)))
    assert "GraniteForCausalLM (type 'granite') computes its logits in a way" in message


def test_a_window_kept_from_the_attention_function_is_refused():
    """No token of the probe leaves the window, so the logits are the same."""
    model = build(windowed_mixture())
    assert "sliding window of 32 tokens" in refusal(model)
    ModelRunner(build(windowed_mixture()), 2, 32)  # no row is longer than the window


def windowed_mixture():
    return Qwen2MoeConfig(
        **WIDE,
        use_sliding_window=True,
        sliding_window=32,
        max_window_layers=1,
        num_experts=4,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )


def positions_of_its_own(model):
    """Counts tokens as they lie instead of taking positions."""
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: forward(x, torch.arange(x.shape[1])[None])


def a_running_mean(model):
    """Mixes every token with those that lie before it, outside attention."""

    def mixed(_, __, output):
        counts = torch.arange(1, output.shape[1] + 1)[:, None]
        return output.cumsum(1) / counts

    model.model.layers[0].mlp.register_forward_hook(mixed)


def a_short_convolution(model):
    """Adds the token before; a root's first child and a chain are served well."""

    def mixed(_, __, output):
        return output + output.roll(1, 1) * (torch.arange(output.shape[1]) > 0)[:, None]

    model.model.layers[0].mlp.register_forward_hook(mixed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch_rows", [1, 2])
@pytest.mark.parametrize("flaw", [positions_of_its_own, a_running_mean, a_short_convolution])
def test_the_probe_finds_what_only_a_tree_shows(flaw, batch_rows, dtype, tiny_model):
    """Each flaw is right on a chain that begins at the start of the text."""
    model = tiny_model("llama").to(dtype)
    flaw(model)
    message = refusal(model, batch_rows)
    assert "LlamaForCausalLM (type 'llama') computes its logits in a way" in message


def test_a_broken_weight_does_not_pass_as_the_same(tiny_model):
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    assert "nan of their spread" in refusal(model)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_row_longer_than_the_models_positions_is_refused(family, tiny_model):
    ModelRunner(tiny_model(family), 1, 512)
    message = refusal(tiny_model(family), max_length=513)
    assert "engine.max_length is 513" in message
    assert f"(type '{family}') knows 512 positions only" in message
    assert "set engine.max_length to 512 or less" in message


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "default"}, 256),
        ({"rope_type": "linear", "factor": 2.0}, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
    ],
)
def test_scaled_rope_lengthens_the_context(rope, limit):
    config = LlamaConfig(
        **WIDE, max_position_embeddings=256, rope_parameters={"rope_theta": 1e4, **rope}
    )
    compatibility.require_length(config, limit)
    with pytest.raises(ModelError, match=f"knows {limit} positions"):
        compatibility.require_length(config, limit + 1)


def test_a_kv_cache_beyond_the_memory_is_refused_before_it_is_taken(tiny_model, monkeypatch):
    row = 2 * 3 * 64 * 2 * 8 * 4  # keys and values, layers, tokens, heads, width, bytes
    monkeypatch.setattr(compatibility, "_available_bytes", lambda _: 5 * row)
    assert ModelRunner(tiny_model("llama"), 5, 64).cache.keys.nbytes * 2 == 5 * row
    message = refusal(tiny_model("llama"), batch_rows=6)
    assert "engine.batch_rows 6 x engine.max_length 64" in message
    assert f"needs {6 * row} bytes" in message
    assert "enough for 5 such rows" in message


def test_the_size_of_the_kv_cache_is_stated(tiny_model, caplog):
    caplog.set_level("INFO", "pipeline.engine.runner")
    ModelRunner(tiny_model("llama"), 5, 64)
    assert "KV cache: 5 rows of 64 tokens" in caplog.text


def test_an_absurd_kv_cache_is_refused_on_this_machine():
    config = Qwen2Config(**WIDE, max_position_embeddings=2**40)
    message = refusal(build(config), batch_rows=64, max_length=2**36)
    assert "GiB available" in message


def test_memory_of_a_host_and_of_a_container(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  900 kB\nMemFree:  10 kB\nMemAvailable:  700 kB\n")
    assert compatibility._host_headroom(meminfo) == 700 * 1024
    assert compatibility._host_headroom(tmp_path / "none") > 2**20
    assert compatibility._container_headroom(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert compatibility._container_headroom(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 200\ninactive_file 650\n")
    assert compatibility._container_headroom(tmp_path) == 750


@pytest.mark.parametrize("has_bias", [True, False])
def test_packed_layers_give_the_same(has_bias):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=has_bias), Conv1D(3, 8))
    torch.nn.init.normal_(layers[1].bias)
    x = torch.randn(2, 5, 4)
    expected = layers(x)
    pack_linears(layers)
    assert [type(layer) for layer in layers] == [PackedLinear, PackedLinear]
    torch.testing.assert_close(layers(x), expected)


def test_two_runners_built_at_once_leave_the_attention_function_as_it_is(tiny_model, monkeypatch):
    """The second one's trial begins in the midst of the first one's and ends behind it."""
    models = {"first": tiny_model("llama"), "second": tiny_model("qwen3")}
    prepared = threading.Barrier(2, timeout=60)
    inside = {name: threading.Event() for name in models}
    first_is_built, built = threading.Event(), set()

    def held(*arguments):
        prepared.wait()
        assert threading.current_thread().name == "first" or inside["first"].wait(60)
        require_same(*arguments)

    def build(name, model):
        def meet(_, __, options):
            if "step" in options:  # a packed pass
                inside[name].set()
                assert (inside["second"] if name == "first" else first_is_built).wait(60)

        model.model.register_forward_pre_hook(meet, with_kwargs=True)
        ModelRunner(model, 2, 32)
        built.add(name)
        if name == "first":
            first_is_built.set()

    monkeypatch.setattr(runner, "require_same", held)
    threads = [threading.Thread(target=build, args=pair, name=pair[0]) for pair in models.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == {"first", "second"}
    assert ALL_ATTENTION_FUNCTIONS[TREE_ATTENTION] is tree_attention
    assert all(model.config._attn_implementation == TREE_ATTENTION for model in models.values())


def test_every_refusal_says_what_to_do():
    """A message names the setting that changes it."""
    for config in (BloomConfig(**SIZES), GPT2Config(**SIZES, add_cross_attention=True)):
        with pytest.raises(ModelError, match=re.escape("language_model.path")):
            compatibility.sliding_windows(config)
