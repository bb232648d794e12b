"""From outcomes to numbers: what jobs.compare_decoding reports."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch

from features.formats import counted, or_unknown
from jobs.decoding_arms import PLAIN, RELAXED, STRICT, TRANSFORMERS, Outcome, keys_unlike
from jobs.measured_rounds import Outcomes
from jobs.waterfall import Step, waterfall
from pipeline.config import RunConfig
from pipeline.engine.statistics import PARTS

ARMS = (TRANSFORMERS, PLAIN, STRICT, RELAXED)

ByKind = Mapping[str, list[Outcome]]  # of the repeats of one arm


def summary(
    config: RunConfig, rows: int, kinds: Sequence[str], outcomes: Outcomes
) -> dict[str, Any]:
    """Every arm of `ARMS` on the rows of each kind, and on all of them."""
    arms = [
        _arm(arm, kind, _of(parts, outcomes, arm), _of(parts, outcomes, PLAIN))
        for kind, parts in [*((kind, [kind]) for kind in kinds), ("all", kinds)]
        for arm in ARMS
    ]
    return {
        "model": config.language_model.path.rstrip("/").rpartition("/")[2],
        "machine": machine(),
        "rows": rows,
        "max_new_tokens": config.generation.max_new_tokens,
        "batch_rows": config.engine.batch_rows,
        "arms": arms,
    }


def machine() -> str:
    """What decodes: its kind and how many threads, in words."""
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def _arm(arm: str, kind: str, own: ByKind, plain: ByKind) -> dict[str, Any]:
    """Times and tokens of all repeats; rows are counted once, however often they were repeated."""
    outcomes = [one for repeats in own.values() for one in repeats]
    seconds = sum(outcome.seconds for outcome in outcomes)
    tokens = sum(outcome.num_tokens for outcome in outcomes)
    statistics = [asdict(outcome.statistics) for outcome in outcomes]
    return {
        "arm": arm,
        "kind": kind,
        "rows": sum(len(repeats[0].texts) for repeats in own.values()),
        "repeats": max(map(len, own.values())),
        "seconds": seconds,
        "new_tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "tokens_per_forward": tokens / max(sum(outcome.num_passes for outcome in outcomes), 1),
        "looping_rows": sum(len(_looping(repeats)) for repeats in own.values()),
        "rows_unlike_plain": sum(len(keys_unlike(own[one], plain[one])) for one in own),
        "seconds_by_part": {part: sum(entry[part] for entry in statistics) for part in PARTS},
    }


def speeds_of(
    steps: Sequence[Step], kinds: Sequence[str], outcomes: Outcomes
) -> list[dict[str, Any]]:
    """The waterfall of `steps`, on the rows of all `kinds`."""
    plain = _of(kinds, outcomes, PLAIN)
    names = {step.arm for step in steps}
    arms = {name: _arm(name, "all", _of(kinds, outcomes, name), plain) for name in names}
    return waterfall(steps, arms)


def _of(kinds: Sequence[str], outcomes: Outcomes, arm: str) -> ByKind:
    """An arm's outcomes on the rows of several kinds."""
    return {kind: outcomes[arm, kind] for kind in kinds}


def _looping(repeats: Sequence[Outcome]) -> frozenset[str]:
    """Keys of the rows of one kind that loop in any of the repeats."""
    return frozenset[str]().union(*(outcome.looping for outcome in repeats))


def lines(comparison: Mapping[str, Any]) -> Iterator[str]:
    """What a person reads in the log."""
    for arm in comparison["arms"]:
        yield (
            f"{arm['arm']:<22} {arm['kind']:<5} {arm['tokens_per_second']:6.1f} tokens/s, "
            f"{arm['tokens_per_forward']:.2f} tokens per forward pass, "
            f"{arm['looping_rows']} of {arm['rows']} rows loop"
        )
    for one in comparison["waterfall"]:
        yield (
            f"{one['step']:<28} {one['tokens_per_second']:6.1f} tokens/s, "
            f"{or_unknown(one['ratio_to_plain'], '.2f')} of plain"
        )
    for arm, places in groupby(comparison["divergences"], key=itemgetter("arm")):
        first, *more = places
        others = f", and {counted(len(more), 'more rows')} part" if more else ""
        yield (
            f"{arm} and plain part at token {first['position']} of {first['kind']} "
            f"{first['entity_id']}, where their logits are {first['gap']:.2g} apart{others}"
        )
    if (tries := comparison.get("tries", 1)) > 1:
        yield f"measured in {tries} tries; the machine may have been busier in one of them"
