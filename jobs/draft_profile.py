"""What `profile.json` holds: curves of drafts, the rows they are of, and what a benchmark says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.benchmark_summary import ALL
from jobs.decoding_arms import PLAIN, STRICT, Outcome
from pipeline.engine.budget import CostTable
from pipeline.engine.types import Request
from pipeline.forecast.draft_nodes import DraftNodes, stored
from pipeline.forecast.yield_curve import batches_of, computed_prompt, record_of


@dataclass(frozen=True)
class Verified:
    """Some rows of a kind under a rule, all their drafts verified."""

    rule: str
    kind: str
    nodes: DraftNodes
    outcome: Outcome

    @property
    def rate(self) -> float:
        """Tokens of a row's forward pass."""
        return self.outcome.num_tokens / self.outcome.num_passes


@dataclass(frozen=True)
class Benchmarked:
    """What `make bench` left in a run."""

    benchmark: Mapping[str, Any]  # benchmark.json
    costs: CostTable | None  # of the configured batch, if they are in this machine's cache


def profile_of(
    about: str,
    requests: Mapping[str, Sequence[Request]],
    verified: Sequence[Verified],
    beside: Benchmarked | None,
) -> dict[str, Any]:
    """The profile; without a benchmark it has no speeds, costs or shared prompts.

    Raises:
        DataError: a rule had no drafts.
    """
    return {
        "about": about,
        "curves": _curves(verified),
        "rows": {
            one.kind: _rows(requests[one.kind], one, beside)
            for one in verified
            if one.rule == STRICT
        },
        "costs": _costs(beside.costs) if beside and beside.costs else None,
        "speeds": _speeds(beside.benchmark, {one.rule: None for one in verified}) if beside else [],
    }


def _curves(verified: Sequence[Verified]) -> dict[str, Any]:
    """By rule, then of every kind and of all."""
    found: dict[str, dict[str, Any]] = {}
    for rule in dict.fromkeys(one.rule for one in verified):
        nodes = {one.kind: one.nodes for one in verified if one.rule == rule}
        nodes[ALL] = DraftNodes.together(list(nodes.values()))
        found[rule] = {kind: stored(own, f"{kind}, {rule}") for kind, own in nodes.items()}
    return found


def _rows(
    requests: Sequence[Request], strict: Verified, beside: Benchmarked | None
) -> dict[str, Any]:
    """Prompts of all held-out rows, and the lengths of the texts that were written."""
    prompt = float(np.mean([len(request.prompt_ids) for request in requests]))
    lengths = [len(text) for text in strict.outcome.texts.values()]
    shared = None
    if beside:
        batch = batches_of(beside.benchmark, PLAIN)[-1]
        plain = record_of(beside.benchmark, PLAIN, strict.kind, batch)
        shared = round(round(prompt, 1) - computed_prompt(plain), 1)
    return {
        "prompt_tokens": round(prompt, 1),
        "new_tokens": round(float(np.mean(lengths)), 2),
        "lengths": lengths,
        "shared_tokens": shared,
    }


def _costs(costs: CostTable) -> dict[str, Any]:
    arrays = ("contexts", "rows", "per_row", "seconds")
    return {name: np.round(getattr(costs, name), 6).tolist() for name in arrays}


def _speeds(benchmark: Mapping[str, Any], rules: Mapping[str, None]) -> list[dict[str, Any]]:
    """Of plain decoding and all rules at every batch size, users and items together."""
    records = [
        record_of(benchmark, arm, ALL, batch)
        for batch in batches_of(benchmark, PLAIN)
        for arm in (PLAIN, *rules)
    ]
    names = ("arm", "batch", "kind", "rows", "new_tokens")
    return [
        {name: record[name] for name in names}
        | {"tokens_per_second": round(record["tokens_per_second"], 2)}
        for record in records
    ]
