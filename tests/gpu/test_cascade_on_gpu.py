"""The cascade with the real variable-length kernel, against masked attention on the same device.

In float32 CUDA keeps masked attention, because the kernel takes half precision only; the float32
exactness of decoding is tested in test_engine_on_gpu.py.
"""

import numpy as np
import pytest
import torch

from pipeline.engine import packing
from pipeline.engine.attention import masked_attention
from pipeline.engine.cascade import Cascade, attend_text, cascade_attention, is_supported, plan_runs
from pipeline.engine.packing import Layout, pack
from pipeline.engine.row import Row
from pipeline.engine.runner import ModelRunner
from pipeline.engine.types import DraftTree, Request

CUDA = torch.device("cuda")
IS_ABLE = torch.cuda.is_available() and is_supported(CUDA, torch.bfloat16, 64)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not IS_ABLE, reason="no CUDA device with the variable-length kernel"),
]

MAX_LENGTH, SLOTS, KV_HEADS, DIM, SCALING = 700, 8, 2, 64, 0.125
WINDOWS = (0, 3, 40, 300, 2000)
HALVES = [torch.bfloat16, torch.float16]


def tree_of(parents):
    parents = np.array(parents, np.int32)
    zeros = np.zeros(len(parents))
    return DraftTree(
        zeros.astype("i4"), parents, zeros.astype("f4"), zeros.astype("i1"), parents.copy()
    )


def row_of(slot, cached, chunk, unread=0):
    tokens = (np.arange(cached + chunk + unread) * 7 % 59 + 1).astype(np.int32)
    row = Row(Request(str(slot), tokens, 5), slot)
    row.num_cached, row.chunk = cached, chunk
    return row


def mixed_step(seed):
    """A long text, an empty cache, a prompt piece, a chunk with a tree; slots out of order."""
    random = np.random.default_rng(seed)
    rows = [row_of(5, 600, 1), row_of(0, 0, 1), row_of(7, 128, 200, unread=9), row_of(2, 31, 17)]
    sizes = [40, 5, 0, 12]
    trees = [tree_of([random.integers(-1, node) for node in range(size)]) for size in sizes]
    return rows, trees


def plain_step(_):
    """One query for every row: the kernel then folds the heads of a group into one product."""
    rows = [row_of(3, 500, 1), row_of(1, 0, 1), row_of(6, 257, 1)]
    return rows, [DraftTree.empty()] * len(rows)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("fold", [1, 4])
@pytest.mark.parametrize("case", [mixed_step, plain_step])
def test_the_cascade_is_as_near_to_float32_as_masked_attention(dtype, fold, case, monkeypatch):
    rows, trees = case(fold)

    def layout(kind):
        return Layout(MAX_LENGTH, WINDOWS, fold, kind, CUDA, DIM)

    step, exact = (pack(rows, trees, layout(kind)) for kind in (dtype, torch.float32))
    assert isinstance(step.attention, Cascade)
    assert not isinstance(exact.attention, Cascade)
    monkeypatch.setattr(packing, "is_supported", lambda *_: False)
    masked = pack(rows, trees, layout(dtype))
    torch.manual_seed(0)
    packed = torch.randn(len(step), KV_HEADS * fold, DIM, device=CUDA).to(dtype)
    arenas = torch.randn(2, SLOTS, MAX_LENGTH, KV_HEADS, DIM, device=CUDA).to(dtype)
    for window in WINDOWS:
        ours = cascade_attention(packed, *arenas, step.attention, window, SCALING)
        other = masked_attention(packed, *arenas, masked.attention, window, SCALING)
        wide = [tensor.float() for tensor in (packed, *arenas)]
        truth = masked_attention(*wide, exact.attention, window, SCALING)
        allowed = 2 * (other.float() - truth).abs().max() + 1e-3
        assert ours.dtype == dtype
        assert (ours.float() - truth).abs().max() <= allowed, f"window {window}"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("widths", [(3, 1, 4, 2), (1, 1, 1, 1)])
def test_the_kernel_gives_the_log_sum_exp_of_every_run(dtype, widths):
    heads, starts, counts = 4, [64, 0, 60, 10], [50, 0, 7, 3]  # overlapping, out of order, empty
    runs = plan_runs(np.arange(sum(widths)), widths, starts, counts, CUDA)
    torch.manual_seed(1)
    query = torch.randn(sum(widths), heads, DIM, device=CUDA).to(dtype)
    keys, values = torch.randn(2, 128, KV_HEADS, DIM, device=CUDA).to(dtype)
    output, lse = attend_text(query, keys, values, runs, (-1, -1), SCALING)
    assert output.shape == query.shape
    assert lse.shape == (sum(widths), heads)
    place = np.repeat(np.arange(4), widths)
    for token, run in enumerate(place.tolist()):
        sight = slice(starts[run], starts[run] + counts[run])
        key = keys[sight].float().repeat_interleave(heads // KV_HEADS, 1)
        value = values[sight].float().repeat_interleave(heads // KV_HEADS, 1)
        scores = torch.einsum("hd,khd->hk", query[token].float(), key) * SCALING
        expected = torch.einsum("hk,khd->hd", scores.softmax(-1), value)
        torch.testing.assert_close(lse[token], scores.logsumexp(-1), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(output[token].float(), expected, rtol=2e-2, atol=2e-2)


def test_the_kernel_takes_no_float32():
    runs = plan_runs(np.arange(2), [2], [0], [8], CUDA)
    query, keys = (torch.randn(size, 2, DIM, device=CUDA) for size in (2, 8))
    with pytest.raises(RuntimeError):
        attend_text(query, keys, keys, runs, (-1, -1), SCALING)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3"])
def test_a_model_in_half_precision_is_as_near_to_float32_either_way(
    family, tiny_model, monkeypatch
):
    def logits(dtype):
        runner = ModelRunner(tiny_model(family).to(dtype).cuda(), 2, 60)
        rows = [row_of(0, 0, 20), row_of(1, 0, 5, unread=4)]
        prompts = pack(rows, [tree_of([-1, 0]), DraftTree.empty()], runner.layout)
        first = runner.forward(prompts)
        rows[0].num_cached, rows[0].chunk = 19, 1
        rows[1].num_cached, rows[1].chunk = 5, 4
        trees = [tree_of([-1, -1, *range(12)]), tree_of([-1, 0, -1])]
        second = pack(rows, trees, runner.layout)
        return torch.cat([first, runner.forward(second)]).float(), second.attention

    truth, none = logits(torch.float32)
    ours, some = logits(torch.bfloat16)
    assert not isinstance(none, Cascade)
    assert isinstance(some, Cascade)
    monkeypatch.setattr(packing, "is_supported", lambda *_: False)
    masked, _ = logits(torch.bfloat16)
    spread = truth.std()
    assert (ours - truth).norm() <= 2 * (masked - truth).norm() + 0.01 * spread
