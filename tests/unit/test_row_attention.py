"""The compiled attention of a CPU's rows against one masked product for each padded block."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.engine import packing, row_plan
from pipeline.engine.attention import masked_attention
from pipeline.engine.packing import Layout, pack
from pipeline.engine.row import Row
from pipeline.engine.row_attention import can_attend, row_attention
from pipeline.engine.row_plan import RowPlan
from pipeline.engine.runner import ModelRunner
from pipeline.engine.segments import Segment
from pipeline.engine.types import DraftTree, Request

MAX_LENGTH, SLOTS, SCALING = 170, 4, 0.3
WINDOWS = (0, 1, 2, 13, 1000)
CPU = torch.device("cpu")


def layout(fold, dim, dtype=torch.float32):
    return Layout(MAX_LENGTH, WINDOWS, fold, dtype, CPU, dim)


def tree_of(parents):
    zeros = np.zeros(len(parents))
    parents = np.array(parents, np.int32)
    return DraftTree(zeros.astype("i4"), parents, zeros.astype("f4"), zeros.astype("i1"), parents)


def row_of(slot, cached, chunk):
    row = Row(Request(str(slot), np.zeros(cached + chunk, np.int32), 5), slot)
    row.num_cached, row.chunk = cached, chunk
    return row


def random_step(random):
    """Ragged rows in any slots and order, with and without cached text, chunks and draft nodes."""
    rows, trees = [], []
    for slot in random.permutation(SLOTS)[: int(random.integers(1, SLOTS + 1))].tolist():
        cached = int(random.integers(1, 90)) * int(random.integers(0, 2))
        rows.append(row_of(slot, cached, int(random.choice([1, 1, random.integers(2, 50)]))))
        nodes = int(random.integers(0, 30))
        trees.append(tree_of([random.integers(-1, node) for node in range(nodes)]))
    return rows, trees


def masked(rows, trees, packed, key, value, window=0):
    """The result in double precision, which the kernel does not take."""
    fold, dim = packed.shape[1] // key.shape[2], packed.shape[2]
    segments = pack(rows, trees, layout(fold, dim, torch.float64)).attention
    tensors = (packed.double(), key.double(), value.double())
    return masked_attention(*tensors, segments, window, SCALING).float()


def tensors(seed, tokens, heads, fold, dim):
    """Random queries (tokens, heads * fold, dim), and an arena's keys and values."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randn(tokens, heads * fold, dim, generator=generator)
    return packed, torch.randn(2, SLOTS, MAX_LENGTH, heads, dim, generator=generator)


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    heads=st.integers(1, 3),
    fold=st.integers(1, 4),
    dim=st.sampled_from([8, 16, 24, 32, 40, 64, 80, 96, 128]),
)
@example(seed=0, heads=3, fold=3, dim=64)
def test_every_row_attends_as_a_masked_product_does(seed, heads, fold, dim):
    rows, trees = random_step(np.random.default_rng(seed))
    step = pack(rows, trees, layout(fold, dim))
    packed, (key, value) = tensors(seed, len(step), heads, fold, dim)
    assert isinstance(step.attention, RowPlan)
    for window in WINDOWS:
        ours = row_attention(packed, key, value, step.attention, window, SCALING)
        expected = masked(rows, trees, packed, key, value, window)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=5e-6)


def test_what_no_token_sees_is_not_read():
    rows, trees = (
        [row_of(SLOTS - 1, MAX_LENGTH - 6, 3), row_of(0, 7, 1)],
        [tree_of([-1, 0, -1])] * 2,
    )
    step = pack(rows, trees, layout(2, 16))
    packed, (key, value) = tensors(1, len(step), 2, 2, 16)
    written = torch.zeros(SLOTS, MAX_LENGTH, dtype=torch.bool)
    written[SLOTS - 1] = True  # up to the end of the arena
    written[0, :11] = True
    key[~written], value[~written] = float("nan"), float("nan")
    ours = row_attention(packed, key, value, step.attention, 0, SCALING)
    assert ours.isfinite().all()


def test_a_broken_number_is_not_swallowed():
    rows, trees = [row_of(0, 20, 1), row_of(1, 20, 1)], [tree_of([])] * 2
    step = pack(rows, trees, layout(1, 8))
    packed, (key, value) = tensors(2, 2, 1, 1, 8)
    key[0, 5] = float("nan")
    ours = row_attention(packed, key, value, step.attention, 0, SCALING)
    assert ours[0].isnan().all()
    assert ours[1].isfinite().all()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e5])
def test_scores_of_any_size_make_weights(size):
    rows, trees = [row_of(0, 100, 1)], [tree_of([-1])]
    step = pack(rows, trees, layout(1, 8))
    packed, (key, value) = tensors(3, 2, 1, 1, 8)
    ours = row_attention(packed * size, key, value, step.attention, 0, SCALING)
    expected = masked(rows, trees, packed * size, key, value)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_a_chunk_without_changing_it(threads, monkeypatch):
    rows, trees = [row_of(2, 10, 120)], [tree_of([])]
    packed, (key, value) = tensors(4, 120, 2, 2, 16)
    step = pack(rows, trees, layout(2, 16))
    alone = row_attention(packed, key, value, step.attention, 0, SCALING)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        step = pack(rows, trees, layout(2, 16))
        shared = row_attention(packed, key, value, step.attention, 0, SCALING)
    finally:
        torch.set_num_threads(before)
    assert len(step.attention.units) >= 2 * threads
    assert torch.equal(shared, alone)


def test_units_cover_every_token_once_and_the_largest_come_first():
    rows = [row_of(0, 5, 1), row_of(3, 60, 1), row_of(1, 0, 70)]
    plan = pack(rows, [tree_of([]), tree_of([-1] * 20), tree_of([])], layout(1, 8)).attention
    seen = [token for unit in plan.units for token in range(unit[1], unit[1] + unit[2])]
    assert sorted(seen) == list(range(1 + 21 + 70))
    work = plan.units[:, 2] * plan.units[:, 2:5].sum(1)
    assert work.tolist() == sorted(work, reverse=True)
    assert plan.most_tokens == plan.units[:, 2].max() <= row_plan._MOST


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_model_gives_the_logits_of_the_masked_path(family, tiny_model, monkeypatch):
    rows, trees = [row_of(0, 0, 30), row_of(1, 0, 5)], [tree_of([-1, 0, -1]), tree_of([])]

    def logits():
        runner = ModelRunner(tiny_model(family), 2, MAX_LENGTH)
        step = pack(rows, trees, runner.layout)
        return step.attention, runner.forward(step)

    plan, ours = logits()
    monkeypatch.setattr(packing, "can_attend", lambda *_: False)
    segments, expected = logits()
    assert isinstance(plan, RowPlan)
    assert isinstance(segments[0], Segment)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "expected"),
    [
        ("cpu", torch.float32, 64, True),
        ("cpu", torch.float32, 60, False),
        ("cpu", torch.bfloat16, 64, False),
        ("cuda", torch.float32, 64, False),
    ],
)
def test_what_the_kernel_takes(device, dtype, head_dim, expected):
    assert can_attend(torch.device(device), dtype, head_dim) is expected
    if device == "cpu":
        step = pack([row_of(0, 3, 1)], [tree_of([])], layout(1, head_dim, dtype))
        assert isinstance(step.attention, RowPlan) is expected
