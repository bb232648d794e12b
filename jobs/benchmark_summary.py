"""From outcomes to numbers: what jobs.benchmark_decoding reports, and against which targets."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jobs.decoding_arms import (
    BUDGET,
    PLAIN,
    PUBLISHED,
    RELAXED,
    STRICT,
    TRANSFORMERS,
    Outcome,
    rows_unlike,
)
from jobs.step_limit import Machine, ModelSize, StepShape, least_seconds
from pipeline.engine.statistics import PARTS

ALL = "all"  # kinds together
OURS = (STRICT, RELAXED, BUDGET)
Outcomes = Mapping[tuple[int, str, str], Sequence[Outcome]]  # (batch size, arm, kind), by block
Prompts = Mapping[str, int]  # request key -> prompt tokens


@dataclass(frozen=True)
class Target:
    """A number to reach."""

    name: str
    bound: float
    at_least: bool = True  # else at most

    def is_met(self, value: float | None) -> bool | None:
        """None where the value was not measured."""
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound


def last_line(
    values: Mapping[str, float | int | None], targets: Sequence[Target], digits: int = 3
) -> dict[str, Any]:
    """What a benchmark ends with: rounded values, and the names of the targets missed."""
    rounded = {
        name: round(value, digits) if isinstance(value, float) else value
        for name, value in values.items()
    }
    missed = [target.name for target in targets if target.is_met(values[target.name]) is False]
    return rounded | {"missed": missed}


TARGETS = (
    Target("strict_to_plain_at_batch_1", 2.2),
    Target("relaxed_to_plain_at_batch_1", 3.5),
    Target("relaxed_to_published_at_batch_1", 1.3),
    Target("relaxed_to_plain_at_best_plain_batch", 1.5),
    Target("relaxed_there_to_best_transformers", 2.0),
    Target("least_of_ours_to_plain", 0.97),
    Target("overhead_share_at_batch_16", 0.10, at_least=False),
    Target("strict_rows_unlike_plain", 0.0, at_least=False),
)


def summarise(
    outcomes: Outcomes, prompts: Prompts, model: ModelSize, machine: Machine
) -> list[dict[str, Any]]:
    """One record for every batch size, arm and kind, and for all kinds of an arm together."""
    kinds = list(dict.fromkeys(kind for _, _, kind in outcomes))
    records = []
    for batch, arm in dict.fromkeys((batch, arm) for batch, arm, _ in outcomes):
        for kind, parts in [*((kind, [kind]) for kind in kinds), (ALL, kinds)]:
            by_kind = [outcomes[batch, arm, part] for part in parts]
            # Some arms ran on the first blocks only.
            plain = [
                outcomes[batch, PLAIN, part][: len(outcomes[batch, arm, part])] for part in parts
            ]
            own = [outcome for part in by_kind for outcome in part]
            record = {"batch": batch, "arm": arm, "kind": kind}
            record |= _speed(own) | _against_plain(by_kind, plain) | _quality(own)
            if any(outcome.statistics.steps for outcome in own):
                record["step"] = _step(own, prompts, model, machine)
            records.append(record)
    return records


def _speed(own: Sequence[Outcome]) -> dict[str, Any]:
    """Totals over blocks. Time cannot be split by row, so loops are left out of passes only."""
    tokens = sum(outcome.num_tokens for outcome in own)
    seconds = sum(outcome.seconds for outcome in own)
    rows = sum(len(outcome.texts) for outcome in own)
    straight = [
        (len(text), outcome.passes[key])
        for outcome in own
        for key, text in outcome.texts.items()
        if key not in outcome.looping
    ]
    return {
        "rows": rows,
        "seconds": seconds,
        "new_tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "tokens_per_forward": _ratio(tokens, sum(outcome.num_passes for outcome in own)),
        "tokens_per_forward_without_loops": _ratio(*np.sum(straight, axis=0)) if straight else None,
        "loop_share": 1.0 - len(straight) / rows,
    }


def _against_plain(
    by_kind: Sequence[Sequence[Outcome]], plain_by_kind: Sequence[Sequence[Outcome]]
) -> dict[str, Any]:
    """Ratio of totals, spread of the blocks' ratios, and rows whose text is another."""
    own = [outcome for part in by_kind for outcome in part]
    plain = [outcome for part in plain_by_kind for outcome in part]
    ratios = [
        _rate(mine) / _rate(others)
        for mine, others in zip(_by_block(by_kind), _by_block(plain_by_kind), strict=True)
    ]
    return {
        "ratio_to_plain": _rate(own) / _rate(plain),
        "spread": {
            "min": min(ratios),
            "median": float(np.median(ratios)),
            "max": max(ratios),
        },
        "rows_unlike_plain": rows_unlike(own, plain),
    }


def _by_block(outcomes: Sequence[Sequence[Outcome]]) -> list[list[Outcome]]:
    """Outcomes of the kinds, side by side in each block."""
    return [list(block) for block in zip(*outcomes, strict=True)]


def _quality(own: Sequence[Outcome]) -> dict[str, Any]:
    """What relaxing took, per new token."""
    statistics = [done.statistics for outcome in own for done in outcome.generations.values()]
    tokens = max(sum(outcome.num_tokens for outcome in own), 1)
    return {
        "relaxed_share": sum(entry.relaxed_tokens for entry in statistics) / tokens,
        "nats_per_token": sum(entry.relaxed_cost for entry in statistics) / tokens,
    }


def _step(
    own: Sequence[Outcome], prompts: Prompts, model: ModelSize, machine: Machine
) -> dict[str, Any]:
    """The mean step, prompts included: where its time went, and the limit of its forward pass."""
    totals = [asdict(outcome.statistics) for outcome in own]
    steps = sum(entry["steps"] for entry in totals)
    seconds = {part: sum(entry[part] for entry in totals) / steps for part in PARTS}
    decoding = sum(entry["decoding"] for entry in totals)
    overhead = sum(entry["decoding_overhead"] for entry in totals)
    limit = least_seconds(shape_of(own, prompts), model, machine)
    return {
        "steps": steps,
        "packed_tokens": sum(entry["packed_tokens"] for entry in totals) / steps,
        "milliseconds": {part: 1000.0 * value for part, value in seconds.items()},
        "overhead_share": overhead / decoding if decoding else 0.0,  # of steps without prompts
        "limit_milliseconds": 1000.0 * limit,
        "forward_to_limit": seconds["forward"] / limit,
    }


def shape_of(own: Sequence[Outcome], prompts: Prompts) -> StepShape:
    """The mean step of an engine's runs.

    A row's context is taken as its prompt and half of its output, in each of its passes.
    """
    steps = sum(outcome.statistics.steps for outcome in own)
    decisions, context = 0, 0.0
    for outcome in own:
        for key, done in outcome.generations.items():
            passes = done.statistics.forward_passes
            decisions += passes + int(done.statistics.drafted_by_source.sum())
            context += passes * (prompts[key] + len(done.token_ids) / 2)
    packed = sum(outcome.statistics.packed_tokens for outcome in own)
    return StepShape(packed / steps, decisions / steps, context / steps)


def totals(records: Sequence[Mapping[str, Any]]) -> dict[str, float | int | None]:
    """The ratios that have targets, and at which batch sizes plain and transformers are best."""
    together = {(entry["batch"], entry["arm"]): entry for entry in records if entry["kind"] == ALL}
    rate = {key: entry["tokens_per_second"] for key, entry in together.items()}
    best_plain = _best_batch(rate, PLAIN)
    best_transformers = _best_batch(rate, TRANSFORMERS)
    to_plain = [entry["ratio_to_plain"] for entry in records if entry["arm"] in OURS]
    overheads = [
        together[16, arm]["step"]["overhead_share"] for arm in OURS if (16, arm) in together
    ]
    strict = [entry["rows_unlike_plain"] for (_, arm), entry in together.items() if arm == STRICT]
    return {
        "strict_to_plain_at_batch_1": _of(rate, (1, STRICT), (1, PLAIN)),
        "relaxed_to_plain_at_batch_1": _of(rate, (1, RELAXED), (1, PLAIN)),
        "relaxed_to_published_at_batch_1": _of(rate, (1, RELAXED), (1, PUBLISHED)),
        "strict_to_published_at_batch_1": _of(rate, (1, STRICT), (1, PUBLISHED)),
        "best_plain_batch": best_plain,
        "best_transformers_batch": best_transformers,
        "relaxed_to_plain_at_best_plain_batch": _of(
            rate, (best_plain, RELAXED), (best_plain, PLAIN)
        ),
        "relaxed_there_to_best_transformers": _of(
            rate, (best_plain, RELAXED), (best_transformers, TRANSFORMERS)
        ),
        "least_of_ours_to_plain": min(to_plain, default=None),
        "overhead_share_at_batch_16": max(overheads, default=None),
        "strict_rows_unlike_plain": sum(strict),
    }


def _best_batch(rate: Mapping[tuple[int, str], float], arm: str) -> int:
    return max((batch for batch, name in rate if name == arm), key=lambda batch: rate[batch, arm])


def _of(
    rate: Mapping[tuple[int, str], float], one: tuple[int, str], other: tuple[int, str]
) -> float | None:
    return rate[one] / rate[other] if one in rate and other in rate else None


def _rate(outcomes: Sequence[Outcome]) -> float:
    tokens = sum(outcome.num_tokens for outcome in outcomes)
    return tokens / sum(outcome.seconds for outcome in outcomes)


def _ratio(numerator: float, denominator: float) -> float | None:
    return float(numerator / denominator) if denominator else None
