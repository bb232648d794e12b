"""On a CPU in float32 a token's logits have the same bits whatever else is in its step.

So drafts, batch and order cannot even decide between two nearly equal tokens.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, LlamaConfig, Phi3Config, Qwen2MoeConfig
from transformers.activations import ACT2FN

from pipeline.engine.activations import IsolatedActivation, isolate_activations
from pipeline.engine.packing import pack
from pipeline.engine.row import Row
from pipeline.engine.runner import ModelRunner
from pipeline.engine.types import ROOT, DraftTree, Request

FAMILIES = ["llama", "qwen3", "mistral", "gemma3", "qwen2_sliding", "gpt_neox", "gpt2"]
VOCAB, LENGTH, SLOTS = 61, 80, 4
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
OTHERS = {
    "gate and up in one": lambda: Phi3Config(**SIZES, hidden_act="gelu"),
    "biases": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "scaled logits": lambda: CohereConfig(**SIZES, logit_scale=1.0),
}


@pytest.fixture(params=[1, 2, 3])
def threads(request) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def row_of(slot, tokens, cached):
    row = Row(Request(str(slot), tokens, 1), slot)
    row.num_cached, row.chunk = cached, len(tokens) - cached
    return row


def tree_of(tokens, parents):
    zeros = np.zeros(len(tokens))
    parents = np.array(parents, np.int32)
    return DraftTree(
        np.array(tokens, np.int32), parents, zeros.astype("f4"), zeros.astype("i1"), parents
    )


NONE = tree_of([], [])


def hidden_among_siblings(coming, random):
    """A tree that holds the tokens to come as one branch of many; and its nodes of that branch."""
    tokens, parents, branch, last = [], [], [], ROOT
    for token in coming:
        for _ in range(int(random.integers(0, 4))):
            tokens.append(int(random.integers(3, VOCAB)))
            parents.append(int(random.integers(-1, len(parents))) if parents else ROOT)
        tokens.append(int(token))
        parents.append(last)
        last = len(tokens) - 1
        branch.append(last)
    return tree_of(tokens, parents), branch


def random_tree(random):
    nodes = int(random.integers(0, 9))
    tokens = random.integers(3, VOCAB, nodes).tolist()
    return tree_of(tokens, [int(random.integers(-1, node)) for node in range(nodes)])


def one_by_one(runner, text):
    return [
        runner.forward(pack([row_of(0, text[: end + 1], end)], [NONE], runner.layout))[0]
        for end in range(len(text))
    ]


def prefill(runner, slot, text, random):
    done = 0
    while done < len(text):
        part = text[: done + int(random.integers(1, 50))]
        runner.forward(pack([row_of(slot, part, done)], [NONE], runner.layout))
        done = len(part)


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_a_tokens_logits_have_the_same_bits_in_any_step(family, threads, tiny_model):
    torch.manual_seed(0)
    is_other = family in OTHERS
    model = AutoModelForCausalLM.from_config(OTHERS[family]()) if is_other else tiny_model(family)
    runner, random = ModelRunner(model.eval(), SLOTS, LENGTH + 30), np.random.default_rng(0)
    runner.cache.keys.normal_()  # what nobody sees is anything
    runner.cache.values.normal_()
    text = random.integers(3, VOCAB, LENGTH).astype(np.int32)
    alone = one_by_one(runner, text)
    for _ in range(12):
        end = int(random.integers(2, LENGTH - 8))
        cached = int(random.integers(1, end))
        prefill(runner, 2, text[:cached], random)
        tree, branch = hidden_among_siblings(text[end : end + 6], random)
        others = [
            row_of(slot, random.integers(3, VOCAB, random.integers(1, 40)).astype(np.int32), 0)
            for slot in random.permutation([0, 1, 3])[: random.integers(0, 4)].tolist()
        ]
        rows = [*others, row_of(2, text[:end], cached)]
        trees = [random_tree(random) for _ in others]
        step = pack(rows, [*trees, tree], runner.layout)
        logits = runner.forward(step)[step.roots[-1] :]
        for place, node in enumerate([ROOT, *branch]):
            assert torch.equal(logits[1 + node], alone[end - 1 + place])


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu"])
@pytest.mark.parametrize("width", [5, 48, 1536, 40_000])
def test_an_activation_rounds_each_row_alike(name, width, threads):
    activation = IsolatedActivation(ACT2FN[name])
    x = 10 * torch.randn(1, 61, width)
    together = activation(x)
    assert torch.equal(together, torch.cat([activation(row) for row in x.split(1, 1)], 1))
    torch.testing.assert_close(together, ACT2FN[name](x))


def test_half_of_a_fused_layer_is_rounded_as_a_whole_one_is():
    half, _ = torch.randn(1, 61, 128).chunk(2, dim=-1)
    activation = IsolatedActivation(ACT2FN["gelu"])
    assert torch.equal(activation(half), activation(half.clone()))


def test_a_model_that_rounds_otherwise_in_other_steps_says_so(tiny_model, caplog):
    caplog.set_level("INFO", "pipeline.engine.runner")
    ModelRunner(tiny_model("llama"), 2, 32)
    assert "round otherwise" not in caplog.text
    sizes = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4}
    experts = Qwen2MoeConfig(**SIZES, **sizes)
    odd_heads = LlamaConfig(**SIZES, head_dim=12)
    odd_layers = LlamaConfig(**{**SIZES, "intermediate_size": 50})
    for config in (experts, odd_heads, odd_layers):
        caplog.clear()
        ModelRunner(AutoModelForCausalLM.from_config(config).eval(), 2, 32)
        assert "round otherwise" in caplog.text


def test_every_activation_of_a_model_is_wrapped_once(tiny_model):
    model = tiny_model("llama")
    for _ in range(2):
        isolate_activations(model)
    wrapped = [module for module in model.modules() if isinstance(module, IsolatedActivation)]
    assert len(wrapped) == model.config.num_hidden_layers
