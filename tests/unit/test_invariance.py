"""On a CPU in float32 a token's logits have the same bits whatever else is in its step.

So drafts, batch and order cannot even decide between two nearly equal tokens.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers.activations import ACT2FN

from pipeline.engine.activations import IsolatedActivation, isolate_activations
from pipeline.engine.packing import pack
from pipeline.engine.row import Row
from pipeline.engine.runner import ModelRunner
from pipeline.engine.types import ROOT, DraftTree, Request

FAMILIES = ["llama", "qwen3", "mistral", "gemma3", "qwen2_sliding", "gpt_neox", "gpt2"]
VOCAB, LENGTH, SLOTS = 61, 120, 4


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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokens_logits_have_the_same_bits_in_any_step(family, threads, tiny_model):
    runner, random = ModelRunner(tiny_model(family), SLOTS, LENGTH + 30), np.random.default_rng(0)
    text = random.integers(3, VOCAB, LENGTH).astype(np.int32)
    alone = one_by_one(runner, text)
    for _ in range(20):
        end = int(random.integers(2, LENGTH - 8))
        cached = int(random.integers(1, end))
        prefill(runner, 2, text[:cached], random)
        tree, branch = hidden_among_siblings(text[end : end + 6], random)
        others = [
            row_of(slot, random.integers(3, VOCAB, random.integers(1, 40)).astype(np.int32), 0)
            for slot in random.permutation([0, 1, 3])[: random.integers(0, 4)].tolist()
        ]
        rows = [*others, row_of(2, text[:end], cached)]
        step = pack(rows, [*[NONE] * len(others), tree], runner.layout)
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


def test_torch_itself_rounds_by_place():
    """If this fails, `IsolatedActivation` may go."""
    x = 10 * torch.randn(1, 61, 48)
    alone = torch.cat([ACT2FN["silu"](row) for row in x.split(1, 1)], 1)
    assert not torch.equal(ACT2FN["silu"](x), alone)


def test_every_activation_of_a_model_is_wrapped_once(tiny_model):
    model = tiny_model("llama")
    for _ in range(2):
        isolate_activations(model)
    wrapped = [module for module in model.modules() if isinstance(module, IsolatedActivation)]
    assert len(wrapped) == model.config.num_hidden_layers
