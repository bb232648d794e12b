"""The benchmark as lines for a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.benchmark_summary import ALL, TARGETS

_HEAD = (
    f"{'batch':>5} {'arm':<21} {'rows of':<7} {'tokens/s':>8} {'to plain':>8} {'spread':>13}"
    f" {'tok/fwd':>7} {'no loops':>8} {'loops':>6} {'unlike':>6}"
)
_STEP_HEAD = (
    f"{'batch':>5} {'arm':<12} {'tokens':>7} {'draft':>7} {'forward':>8} {'verify':>7}"
    f" {'other':>7} {'overhead':>8} {'limit':>7} {'fwd/limit':>9}"
)


def lines(benchmark: Mapping[str, Any]) -> Iterator[str]:
    """Speeds, then where the time of a step goes, then targets."""
    yield f"{benchmark['model']} on {benchmark['machine']}, {benchmark['num_documents']} pool texts"
    yield ""
    yield _HEAD
    for record in benchmark["arms"]:
        yield _speed(record)
    yield "A row loops if 8 tokens in a row occur twice. Time cannot be split by row, so such"
    yield "rows are left out of tokens per forward pass only. Unlike: other text than plain."
    yield ""
    yield "Milliseconds of a mean step, prompts included; the limit is that of its forward pass."
    yield _STEP_HEAD
    for record in benchmark["arms"]:
        if record["kind"] == ALL and "step" in record:
            yield _step(record)
    for record in benchmark["draft_model"]:
        yield (
            f"draft model, batch {record['batch']}: expected {record['expected_speedup']:.2f}x, "
            f"measured {record['measured_speedup']:.2f}x"
        )
    for one in benchmark["divergences"]:
        yield (
            f"{one['arm']} leaves plain: batch {one['batch']}, {one['key']}, "
            f"token {one['position']}, logit gap {one['gap']:.2g}"
        )
    yield ""
    for target in TARGETS:
        value = benchmark["totals"][target.name]
        sign = ">=" if target.at_least else "<="
        verdict = {True: "met", False: "missed", None: "not measured"}[target.is_met(value)]
        yield f"{target.name:<38} {_number(value):>7}  {sign} {target.bound:<5g} {verdict}"
    best = benchmark["totals"]
    yield (
        f"plain is fastest at batch {best['best_plain_batch']}, transformers.generate at batch "
        f"{best['best_transformers_batch']}"
    )


def _speed(record: Mapping[str, Any]) -> str:
    spread = f"{record['spread']['min']:.2f}..{record['spread']['max']:.2f}"
    return (
        f"{record['batch']:>5} {record['arm']:<21} {record['kind']:<7}"
        f" {record['tokens_per_second']:>8.1f} {record['ratio_to_plain']:>7.2f}x {spread:>13}"
        f" {_number(record['tokens_per_forward']):>7}"
        f" {_number(record['tokens_per_forward_without_loops']):>8}"
        f" {record['loop_share']:>6.0%} {record['rows_unlike_plain']:>6}"
    )


def _step(record: Mapping[str, Any]) -> str:
    step = record["step"]
    spent = step["milliseconds"]
    return (
        f"{record['batch']:>5} {record['arm']:<12} {step['packed_tokens']:>7.1f}"
        f" {spent['draft']:>7.2f} {spent['forward']:>8.1f} {spent['verify']:>7.2f}"
        f" {spent['bookkeeping']:>7.2f} {step['overhead_share']:>8.1%}"
        f" {step['limit_milliseconds']:>7.1f} {step['forward_to_limit']:>9.2f}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
