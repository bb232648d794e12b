"""The benchmark's arithmetic, on outcomes of our own."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from jobs.benchmark_rows import block_of
from jobs.benchmark_summary import ALL, TARGETS, Target, shape_of, summarise, totals
from jobs.benchmark_table import lines
from jobs.decoding_arms import PLAIN, PUBLISHED, RELAXED, STRICT, TRANSFORMERS, Outcome, loops
from jobs.step_limit import Machine, ModelSize, StepShape, least_seconds, size_of
from pipeline.engine.statistics import EngineStatistics
from pipeline.engine.types import Generation, Request, RowStatistics

MODEL = ModelSize(body_weights=1000, head_weights=500, bytes_per_weight=4, cache_bytes_per_token=10)
MACHINE = Machine(bytes_per_second=1000.0, flops_per_second=10_000.0)
ARMS = (TRANSFORMERS, PLAIN, PUBLISHED, STRICT, RELAXED)


def an_outcome(
    seconds: float,
    texts: dict[str, Sequence[int]],
    passes: int = 0,
    statistics: EngineStatistics | None = None,
    drafted: int = 0,
) -> Outcome:
    arrays = {key: np.array(text, np.int32) for key, text in texts.items()}
    generations = {}
    for key, text in arrays.items():
        own = RowStatistics(forward_passes=passes or len(text), relaxed_tokens=1, relaxed_cost=0.5)
        own.drafted_by_source[2] = drafted
        generations[key] = Generation(key, text, "length", own)
    return Outcome(
        seconds,
        arrays,
        {key: passes or len(text) for key, text in arrays.items()},
        generations if statistics else {},
        statistics or EngineStatistics(),
    )


def steps(draft: float = 0.0, forward: float = 1.0) -> EngineStatistics:
    return EngineStatistics(
        steps=10,
        packed_tokens=50,
        draft=draft,
        forward=forward,
        verify=0.25,
        bookkeeping=0.25,
        decoding=(draft + forward + 0.5) / 2,  # the other half of the time went to prompts
        decoding_overhead=(draft + 0.5) / 2,
    )


def a_benchmark(
    speeds: dict[tuple[int, str], float], strict_text: int = 7
) -> list[dict[str, object]]:
    """Two blocks of two kinds; 12 tokens in 12 / speed seconds, the second block at half speed."""
    outcomes: dict[tuple[int, str, str], list[Outcome]] = {}
    for (batch, arm), speed in speeds.items():
        first = strict_text if arm == STRICT else 7
        text = [first, *range(20, 31)]
        own = None if arm == TRANSFORMERS else steps()
        for kind in ("user", "item"):
            outcomes[batch, arm, kind] = [
                an_outcome(12 / speed, {f"{kind} 0": text}, statistics=own),
                an_outcome(24 / speed, {f"{kind} 1": text}, statistics=own),
            ]
    prompts = {f"{kind} {row}": 100 for kind in ("user", "item") for row in (0, 1)}
    return summarise(outcomes, prompts, MODEL, MACHINE)


def find(records, batch, arm, kind=ALL):
    (record,) = [
        one for one in records if (one["batch"], one["arm"], one["kind"]) == (batch, arm, kind)
    ]
    return record


@pytest.mark.parametrize(
    ("text", "is_loop"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8] * 2, True),
        ([*range(8), 99, *range(8)], True),
        ([*range(7), 99, *range(7)], False),
        ([5] * 8, False),
        ([5] * 9, True),
        ([], False),
    ],
)
def test_a_row_loops_when_eight_tokens_occur_twice(text, is_loop):
    assert loops(np.array(text, np.int32)) == is_loop


def test_kinds_are_told_apart_and_together():
    outcomes = {
        (4, PLAIN, "user"): [an_outcome(2.0, {"u": range(12)})],
        (4, PLAIN, "item"): [an_outcome(1.0, {"i": range(12)})],
        (4, STRICT, "user"): [an_outcome(1.0, {"u": range(12)}, passes=4)],
        (4, STRICT, "item"): [an_outcome(1.0, {"i": range(12)}, passes=8)],
    }
    records = summarise(outcomes, {}, MODEL, MACHINE)
    assert len(records) == 2 * 3
    assert find(records, 4, STRICT, "user")["ratio_to_plain"] == pytest.approx(2.0)
    assert find(records, 4, STRICT, "item")["ratio_to_plain"] == pytest.approx(1.0)
    both = find(records, 4, STRICT)
    assert both["ratio_to_plain"] == pytest.approx(1.5)  # 24 tokens in 2 s against 3 s
    # A block holds both kinds: that they differ is no noise.
    assert both["spread"] == {"min": 1.5, "median": 1.5, "max": 1.5}
    assert both["tokens_per_second"] == pytest.approx(12.0)
    assert both["tokens_per_forward"] == pytest.approx(2.0)
    assert "step" not in both


def test_looping_rows_are_left_out_of_tokens_per_forward():
    plain = an_outcome(1.0, {"a": range(16), "b": [3] * 16})
    drafted = an_outcome(1.0, {"a": range(16), "b": [3] * 16})
    drafted = Outcome(1.0, drafted.texts, {"a": 8, "b": 2}, {}, EngineStatistics())
    records = summarise(
        {(1, PLAIN, "user"): [plain], (1, STRICT, "user"): [drafted]}, {}, MODEL, MACHINE
    )
    record = find(records, 1, STRICT)
    assert record["loop_share"] == pytest.approx(0.5)
    assert record["tokens_per_forward"] == pytest.approx(3.2)
    assert record["tokens_per_forward_without_loops"] == pytest.approx(2.0)


def test_where_every_row_loops_nothing_is_said_of_the_others():
    plain = an_outcome(1.0, {"a": [3] * 16})
    records = summarise({(1, PLAIN, "user"): [plain]}, {}, MODEL, MACHINE)
    assert find(records, 1, PLAIN)["tokens_per_forward_without_loops"] is None


def test_rows_unlike_plain_are_counted_in_every_block():
    records = a_benchmark({(1, PLAIN): 10.0, (1, STRICT): 20.0}, strict_text=8)
    assert find(records, 1, STRICT)["rows_unlike_plain"] == 4
    assert find(records, 1, STRICT, "user")["rows_unlike_plain"] == 2
    assert find(records, 1, PLAIN)["rows_unlike_plain"] == 0


def test_a_step_is_split_into_its_parts():
    text = {"a": range(12)}
    own = an_outcome(1.0, text, statistics=steps(draft=0.5, forward=3.0))
    records = summarise({(1, PLAIN, "user"): [own]}, {"a": 100}, MODEL, MACHINE)
    record = find(records, 1, PLAIN)
    assert record["step"]["milliseconds"] == pytest.approx(
        {"draft": 50.0, "forward": 300.0, "verify": 25.0, "bookkeeping": 25.0}
    )
    assert record["step"]["overhead_share"] == pytest.approx(0.25)
    assert record["step"]["packed_tokens"] == pytest.approx(5.0)
    assert record["relaxed_share"] == pytest.approx(1 / 12)
    assert record["nats_per_token"] == pytest.approx(0.5 / 12)
    limit = record["step"]["limit_milliseconds"]
    assert record["step"]["forward_to_limit"] == pytest.approx(300.0 / limit)


def test_the_mean_step_knows_its_decisions_and_contexts():
    texts = {"a": range(12), "b": range(20)}
    own = an_outcome(1.0, texts, passes=5, statistics=steps(), drafted=15)
    shape = shape_of([own], {"a": 100, "b": 200})
    assert shape.tokens == pytest.approx(5.0)
    assert shape.decisions == pytest.approx((5 + 15) * 2 / 10)
    assert shape.context == pytest.approx((5 * 106 + 5 * 210) / 10)


def test_the_limit_is_reading_or_computing_and_the_cache_on_top():
    reading = 1500 * 4 / 1000.0
    small = StepShape(tokens=1, decisions=1, context=0)
    assert least_seconds(small, MODEL, MACHINE) == pytest.approx(reading)
    large = StepShape(tokens=100, decisions=10, context=0)
    computing = 2 * (1000 * 100 + 500 * 10) / 10_000.0
    assert least_seconds(large, MODEL, MACHINE) == pytest.approx(computing)
    far = StepShape(tokens=1, decisions=1, context=300)
    assert least_seconds(far, MODEL, MACHINE) == pytest.approx(reading + 3.0)


def test_weights_are_those_that_tokens_are_multiplied_with(tiny_model):
    model = tiny_model("llama")
    size = size_of(model, torch.zeros(3, 2, 50, 2, 8))
    layer = 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48  # attention, then the gated MLP
    assert (size.body_weights, size.head_weights) == (3 * layer, 32 * 61)
    assert (size.bytes_per_weight, size.cache_bytes_per_token) == (4, 2 * 3 * 2 * 8 * 4)


def test_totals_compare_at_the_batch_sizes_that_the_targets_name():
    speeds = {
        (1, TRANSFORMERS): 8.0,
        (1, PLAIN): 10.0,
        (1, PUBLISHED): 20.0,
        (1, STRICT): 25.0,
        (1, RELAXED): 40.0,
        (16, TRANSFORMERS): 30.0,
        (16, PLAIN): 50.0,
        (16, STRICT): 48.0,
        (16, RELAXED): 80.0,
        (32, TRANSFORMERS): 35.0,
        (32, PLAIN): 45.0,
        (32, STRICT): 45.0,
        (32, RELAXED): 90.0,
    }
    values = totals(a_benchmark(speeds))
    assert values["best_plain_batch"] == 16
    assert values["best_transformers_batch"] == 32
    wanted = {
        "strict_to_plain_at_batch_1": 2.5,
        "relaxed_to_plain_at_batch_1": 4.0,
        "relaxed_to_published_at_batch_1": 2.0,
        "strict_to_published_at_batch_1": 1.25,
        "relaxed_to_plain_at_best_plain_batch": 1.6,
        "relaxed_there_to_best_transformers": 80 / 35,
        "least_of_ours_to_plain": 0.96,
        "overhead_share_at_batch_16": 1 / 3,
        "strict_rows_unlike_plain": 0,
    }
    assert {name: values[name] for name in wanted} == pytest.approx(wanted)
    verdicts = {target.name: target.is_met(values[target.name]) for target in TARGETS}
    missed = {name for name, is_met in verdicts.items() if not is_met}
    assert missed == {"least_of_ours_to_plain", "overhead_share_at_batch_16"}


def test_what_was_not_measured_is_neither_met_nor_missed():
    values = totals(a_benchmark({(4, arm): 10.0 for arm in ARMS}))
    assert values["strict_to_plain_at_batch_1"] is None
    assert values["overhead_share_at_batch_16"] is None
    assert Target("any", 1.0).is_met(None) is None


def test_the_table_names_every_arm_and_every_target():
    records = a_benchmark({(1, arm): 10.0 for arm in ARMS})
    benchmark = {
        "model": "m",
        "machine": "here",
        "num_documents": 3,
        "arms": records,
        "draft_model": [{"batch": 1, "expected_speedup": 1.5, "measured_speedup": 1.25}],
        "divergences": [
            {"batch": 1, "arm": "strict", "key": "user 3", "position": 17, "gap": 0.0125}
        ],
        "totals": totals(records),
    }
    text = "\n".join(lines(benchmark))
    assert all(arm in text for arm in ARMS)
    assert all(target.name in text for target in TARGETS)
    assert "not measured" in text
    assert "strict leaves plain: batch 1, user 3, token 17, logit gap 0.013" in text
    assert "expected 1.50x, measured 1.25x" in text


def test_blocks_take_other_rows_until_there_are_no_more():
    requests = [Request(str(row), np.ones(1, np.int32), 1) for row in range(5)]
    keys = [[request.key for request in block_of(requests, block, 2)] for block in range(3)]
    assert keys == [["0", "1"], ["2", "3"], ["4", "0"]]
    assert len(block_of(requests, 0, 50)) == 5
