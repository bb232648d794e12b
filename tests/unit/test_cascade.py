"""The cascade against one-shot masked attention, with the CUDA kernel played by plain torch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.engine import cascade, packing
from pipeline.engine.attention import masked_attention
from pipeline.engine.cascade import Cascade, cascade_attention, is_supported, merge
from pipeline.engine.packing import Layout, pack
from pipeline.engine.row import Row
from pipeline.engine.runner import ModelRunner
from pipeline.engine.types import DraftTree, Request

MAX_LENGTH, SLOTS, KV_HEADS, DIM, SCALING = 60, 6, 2, 8, 0.7
WINDOWS = (0, 2, 5, 13, 100)
CPU = torch.device("cpu")


def plain_varlen_attn(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux, scale, window_size,
    enable_gqa, seqused_k,
):  # fmt: skip
    """What torch's `varlen_attn` promises, and what its kernel does beyond: one loop over runs.

    Windows and causality count from the end of the keys; a run reads `seqused_k` keys from its
    start; log-sum-exp comes as (heads, tokens), +inf and a zero output where there is no key.
    """
    assert return_aux.lse
    assert enable_gqa
    for column in (cu_seq_q, cu_seq_k, seqused_k):
        assert column.dtype == torch.int32
        assert column.is_contiguous()
    assert len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1
    assert max_q == cu_seq_q.diff().max() > 0
    assert cu_seq_q.diff().min() > 0  # with max_q 1 the kernel takes one query for every run
    assert max_k == seqused_k.max() > 0
    assert cu_seq_q[-1] == len(query)
    fold = query.shape[1] // key.shape[1]
    output = torch.zeros_like(query)
    lse = torch.full((query.shape[1], len(query)), math.inf)
    for run, used in enumerate(seqused_k.tolist()):
        first, last = cu_seq_q[run : run + 2].tolist()
        sight = slice(int(cu_seq_k[run]), int(cu_seq_k[run]) + used)
        assert 0 <= sight.start <= sight.stop <= len(key)
        keys = key[sight].repeat_interleave(fold, 1)
        values = value[sight].repeat_interleave(fold, 1)
        at = torch.arange(last - first)[:, None] + used - (last - first)
        gap = torch.arange(used)[None] - at  # (queries, keys)
        left, right = window_size
        hidden = (right >= 0) & (gap > right) | (left >= 0) & (gap < -left)
        scores = torch.einsum("qhd,khd->hqk", query[first:last], keys) * scale
        scores = scores.masked_fill(hidden, -math.inf)
        if used:
            output[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
            lse[:, first:last] = scores.logsumexp(-1)
    return output, lse


@pytest.fixture
def kernel(monkeypatch):
    """Let the CPU take the cascade."""
    monkeypatch.setattr(cascade, "varlen_attn", plain_varlen_attn)
    monkeypatch.setattr(packing, "is_supported", lambda *_: True)


def layout(fold=1, windows=WINDOWS):
    return Layout(MAX_LENGTH, windows, fold, torch.float32, CPU, DIM)


def tree_of(parents):
    parents = np.array(parents, np.int32)
    zeros = np.zeros(len(parents))
    return DraftTree(
        zeros.astype("i4"), parents, zeros.astype("f4"), zeros.astype("i1"), parents.copy()
    )


def row_of(slot, cached, chunk, unread=0):
    tokens = np.zeros(cached + chunk + unread, np.int32)
    row = Row(Request(str(slot), tokens, 5), slot)
    row.num_cached, row.chunk = cached, chunk
    return row


def random_step(random):
    """Rows in any slots, in any order, with and without cached text, chunks and draft nodes."""
    slots = random.permutation(SLOTS)[: int(random.integers(1, SLOTS + 1))]
    rows, trees = [], []
    for slot in slots.tolist():
        cached = int(random.integers(1, 35)) * int(random.integers(0, 2))
        is_reading = bool(random.integers(0, 4) == 0)
        chunk = int(random.choice([1, 1, random.integers(2, 9)]))
        nodes = 0 if is_reading else int(random.integers(0, 12))
        rows.append(row_of(slot, cached, chunk, unread=int(is_reading)))
        trees.append(tree_of([random.integers(-1, node) for node in range(nodes)]))
    return rows, trees


def both_ways(rows, trees, fold, seed, monkeypatch):
    """Yield (window, cascade, masked) outputs of one step over a random arena."""
    with monkeypatch.context() as patch:
        patch.setattr(packing, "is_supported", lambda *_: False)
        patch.setattr(packing, "can_attend", lambda *_: False)
        masked = pack(rows, trees, layout(fold))
    step = pack(rows, trees, layout(fold))
    assert step.attention is not None
    assert isinstance(step.attention, Cascade)
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randn(len(step), KV_HEADS * fold, DIM, generator=generator)
    arenas = torch.randn(2, SLOTS, MAX_LENGTH, KV_HEADS, DIM, generator=generator)
    for window in WINDOWS:
        ours = cascade_attention(packed, *arenas, step.attention, window, SCALING)
        yield window, ours, masked_attention(packed, *arenas, masked.attention, window, SCALING)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), fold=st.sampled_from([1, 2, 3]))
@example(seed=0, fold=2)
def test_the_cascade_equals_one_masked_product(seed, fold):
    random = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cascade, "varlen_attn", plain_varlen_attn)
        patch.setattr(packing, "is_supported", lambda *_: True)
        for window, ours, truth in both_ways(*random_step(random), fold, seed, patch):
            torch.testing.assert_close(ours, truth, rtol=1e-5, atol=2e-6, msg=f"window {window}")


CASES = {
    "plain decoding": ([row_of(2, 20, 1), row_of(0, 7, 1)], [[], []]),
    "nothing cached": ([row_of(1, 0, 1), row_of(3, 0, 6)], [[-1, 0, 0], [-1]]),
    "a prompt piece alone": ([row_of(4, 0, 9, unread=3)], [[]]),
    "a chunk and a tree in one row": ([row_of(5, 30, 7)], [[-1, -1, 0, 1, 2, 2]]),
    "siblings where the window begins": ([row_of(1, 4, 1)], [[-1, -1, 0, 0, 1, 2, 2, 5, 5]]),
    "a chain longer than a window": ([row_of(0, 9, 1), row_of(1, 0, 1)], [range(-1, 14), []]),
}


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("name", CASES)
def test_the_cascade_equals_one_masked_product_at_the_edges(name, monkeypatch):
    rows, parents = CASES[name]
    trees = [tree_of(list(nodes)) for nodes in parents]
    for window, ours, truth in both_ways(rows, trees, 2, 0, monkeypatch):
        torch.testing.assert_close(ours, truth, rtol=1e-5, atol=2e-6, msg=f"window {window}")


@pytest.mark.usefixtures("kernel")
def test_a_windowed_node_starts_at_its_own_key_and_may_see_no_text():
    step = pack([row_of(1, 9, 1)], [tree_of([-1, -1, 0, 2, 3])], layout(windows=(3,)))
    tails = step.attention.tails[3]
    # The text is positions 0 to 9. Root at 9, siblings at 10, then a chain at 11, 12, 13.
    assert tails.num_keys.tolist() == [3, 2, 2, 1, 0, 0]
    first = [7, 8, 8, 9, 10, 10]
    assert tails.key_starts.tolist()[:-1] == [MAX_LENGTH + start for start in first]
    seen = step.attention.block.masks[3][0] == 0
    assert seen.int().tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("window", "runs"), [(0, 2), (11, 8), (13, 2)])
def test_a_row_is_one_run_unless_a_window_begins_inside_the_text(window, runs):
    rows = [row_of(0, 9, 1), row_of(3, 5, 1)]
    step = pack(rows, [tree_of([-1, 0, 1]), tree_of([-1, -1, -1])], layout(windows=(window,)))
    assert step.attention.chunks is None
    assert len(step.attention.tails[window].num_keys) == runs  # the last position is 12


def test_merging_two_halves_gives_the_whole():
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(5, 2, 9, generator=generator) * 4
    values = torch.randn(9, 2, 4, generator=generator)

    def attend(part):
        output = torch.einsum("qhk,khd->qhd", scores[..., part].softmax(-1), values[part])
        return output, scores[..., part].logsumexp(-1)

    whole, _ = attend(slice(0, 9))
    merged = merge(*attend(slice(0, 6)), *attend(slice(6, 9)))
    torch.testing.assert_close(merged, whole)
    nothing = torch.zeros(5, 2, 4), torch.full((5, 2), -math.inf)
    assert torch.equal(merge(*nothing, *attend(slice(6, 9))), attend(slice(6, 9))[0])


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_model_gives_the_same_logits_either_way(family, tiny_model, monkeypatch):
    def logits(runner):
        rows = [row_of(0, 0, 20), row_of(1, 0, 5, unread=4)]
        for row in rows:
            row.tokens[:] = np.arange(len(row.tokens)) * 7 % 59 + 1
        first = runner.forward(pack(rows, [tree_of([-1, 0]), DraftTree.empty()], runner.layout))
        rows[0].num_cached, rows[0].chunk = 19, 1
        rows[1].num_cached, rows[1].chunk = 5, 4
        trees = [tree_of([-1, -1, *range(12)]), tree_of([-1, 0, -1])]
        return torch.cat([first, runner.forward(pack(rows, trees, runner.layout))])

    masked = logits(ModelRunner(tiny_model(family), 2, MAX_LENGTH))
    monkeypatch.setattr(cascade, "varlen_attn", plain_varlen_attn)
    monkeypatch.setattr(packing, "is_supported", lambda *_: True)
    ours = logits(ModelRunner(tiny_model(family), 2, MAX_LENGTH))
    torch.testing.assert_close(ours, masked, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim"),
    [
        ("cpu", torch.bfloat16, 64),
        ("cuda", torch.float32, 64),
        ("cuda", torch.bfloat16, 100),
        ("cuda", torch.float16, 512),
    ],
)
def test_what_the_kernel_refuses_keeps_the_masked_path(device, dtype, head_dim):
    assert not is_supported(torch.device(device), dtype, head_dim)


def test_a_newer_device_takes_the_cascade_and_an_older_one_does_not(monkeypatch):
    for capability, expected in [((7, 5), False), ((8, 0), True), ((9, 0), True)]:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert is_supported(torch.device("cuda"), torch.bfloat16, 128) is expected
