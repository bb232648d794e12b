"""What a refresh saves: every user gains one interaction, and has said something before.

    python -m jobs.benchmark_refresh --config conf/bench.yaml

Users of the last wave get the text that plain decoding writes without their latest interaction.
Then all arms write the text with it, in turns: plain decoding, which starts anew, and drafts from
the earlier text first, then own text and pools. Stands on what `make bench` builds. The last line
on stdout is one JSON object.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import json
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs import cli
from jobs.benchmark_rows import prepare
from jobs.benchmark_summary import Target, last_line, rows_unlike
from jobs.decoding_arms import (
    BUDGET,
    PLAIN,
    RELAXED,
    STRICT,
    Outcome,
    engine_arm,
    engine_arms,
    pool_drafters,
)
from jobs.generation_actor import make_engine
from jobs.waves import CATALOG, Identity, identify, last_wave, wave_tasks
from pipeline.config import RunConfig
from pipeline.engine.rules import Strict
from pipeline.engine.types import NoDraft, Request
from pipeline.errors import DataError
from pipeline.knowledge import requests_of
from pipeline.prompts import build_prompts
from pipeline.store import Store

log = logging.getLogger("jobs.benchmark_refresh")

_ARMS = (PLAIN, STRICT, RELAXED, BUDGET)
_WARM_UP_TOKENS = 4
TARGETS = (
    Target("strict_tokens_per_forward", 5.0),
    Target("relaxed_tokens_per_forward", 8.0),
    Target("relaxed_to_plain", 4.0),
)


@dataclass(frozen=True)
class Change:
    """What was asked before a user's latest interaction, and what is asked since."""

    before: list[Request]
    after: list[Request]


def run(config: RunConfig, store: Store) -> None:
    """Write `refresh_benchmark/refresh_benchmark.json`; print a table and a line of JSON."""
    identity = identify(config)
    pools = prepare(config, store, identity)
    change = _change(config, store, identity)
    settings = {"benchmark": config.benchmark, "engine": config.engine, "model": identity.model}
    plan = store.plan("refresh_benchmark", settings, inputs=["interactions", pools.name])
    records = [
        record
        for batch in config.benchmark.refresh_batch_sizes
        for record in _measure(config, batch, change, store, pools.name, identity)
    ]
    totals = _totals(records)
    result = {"rows": len(change.after), "arms": records, "totals": totals}

    def fill(folder: Any) -> None:
        (folder / "refresh_benchmark.json").write_text(json.dumps(result, indent=2))

    plan.write_files(fill, len(records))
    for line in _lines(records):
        print(line)
    print(json.dumps(last_line(totals, TARGETS)))


def _change(config: RunConfig, store: Store, identity: Identity) -> Change:
    """Users of the last wave whose prompt shows an interaction that it can do without."""
    tasks = wave_tasks(config, store, last_wave(config), identity, "")
    tasks = tasks.filter(
        pc.and_(pc.equal(tasks["kind"], "user"), pc.greater(tasks["source_events"], 1))
    )
    if not tasks.num_rows:
        raise DataError("the last wave has no user with a history; raise catalog.max_users")
    order = np.random.default_rng(config.seed).permutation(tasks.num_rows)
    tasks = tasks.take(order[: config.benchmark.refresh_rows])
    users, items, interactions = (store.read(name) for name in CATALOG)
    shorter = build_prompts("user", users, items, _without_latest(interactions), config.prompts)
    texts = {prompt.entity_id: prompt.text for prompt in shorter}
    limits = (config.benchmark.max_new_tokens, config.prompts.max_tokens)
    after = requests_of(tasks, *limits)
    before = [
        replace(request, prompt_ids=identity.tokenizer.encode(texts[user]))
        for request, user in zip(after, tasks["entity_id"].to_pylist(), strict=True)
    ]
    usable = [
        number
        for number, request in enumerate(before)
        if len(after[number].prompt_ids) and len(request.prompt_ids) <= limits[1]
    ]
    return Change([before[number] for number in usable], [after[number] for number in usable])


def _without_latest(interactions: pa.Table) -> pa.Table:
    """The past without each user's latest part of it, a row per user."""
    past = interactions.filter(pc.equal(interactions["split"], "knowledge"))
    users = past["user_id"].to_pylist()  # in the order of time
    latest = {user: row for row, user in enumerate(users)}
    keep = np.ones(past.num_rows, bool)
    keep[list(latest.values())] = False
    return past.filter(pa.array(keep))


def _measure(
    config: RunConfig,
    batch: int,
    change: Change,
    store: Store,
    pools: str,
    identity: Identity,
) -> Iterator[dict[str, Any]]:
    """One record per arm at one batch size."""
    settings = config.engine.model_copy(update={"batch_rows": batch})
    sized = config.model_copy(update={"engine": settings})
    engine = make_engine(sized, identity.tokenizer)
    earlier = engine_arm(engine, NoDraft(), Strict())(change.before)
    rows = [replace(row, previous_ids=earlier.texts[row.key]) for row in change.after]
    drafters = pool_drafters(sized, engine, store.path(pools), identity.tokenizer)
    arms = engine_arms(engine, sized, {name: drafters[name] for name in _ARMS})
    for name in _ARMS:
        arms[name]([replace(row, max_new_tokens=_WARM_UP_TOKENS) for row in rows[:2]])
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    order = np.random.default_rng([config.seed, batch])
    for block in range(config.benchmark.blocks):
        for name in order.permutation(_ARMS).tolist():
            outcomes[name].append(arms[name](rows))
            log.info(
                "batch %d, block %d of %d: %s %.1f s",
                batch,
                block + 1,
                config.benchmark.blocks,
                name,
                outcomes[name][-1].seconds,
            )
    for name in _ARMS:
        yield _record(batch, name, outcomes[name], outcomes[PLAIN], earlier)


def _record(
    batch: int, arm: str, own: Sequence[Outcome], plain: Sequence[Outcome], earlier: Outcome
) -> dict[str, Any]:
    ratios = [
        other.seconds / other.num_tokens * outcome.num_tokens / outcome.seconds
        for outcome, other in zip(own, plain, strict=True)
    ]
    statistics = [done.statistics for outcome in own for done in outcome.generations.values()]
    tokens = sum(outcome.num_tokens for outcome in own)
    accepted = np.sum([entry.accepted_by_source for entry in statistics], axis=0)
    return {
        "batch": batch,
        "arm": arm,
        "tokens_per_second": tokens / sum(outcome.seconds for outcome in own),
        "ratio_to_plain": float(np.median(ratios)),
        "spread": [min(ratios), max(ratios)],
        "tokens_per_forward": tokens / sum(outcome.num_passes for outcome in own),
        "accepted_by_source": accepted.tolist(),
        "rows_unlike_plain": rows_unlike(own, plain),
        "rows_like_earlier_text": sum(
            np.array_equal(text, earlier.texts[key]) for key, text in own[0].texts.items()
        ),
        "nats_per_token": sum(entry.relaxed_cost for entry in statistics) / max(tokens, 1),
        "seconds_by_part": asdict(own[0].statistics),
    }


def _totals(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What has targets, each at its best batch size."""
    best = {
        (arm, key): max(record[key] for record in records if record["arm"] == arm)
        for arm in _ARMS
        for key in ("tokens_per_forward", "ratio_to_plain")
    }
    return {
        "strict_tokens_per_forward": best[STRICT, "tokens_per_forward"],
        "relaxed_tokens_per_forward": best[RELAXED, "tokens_per_forward"],
        "budget_tokens_per_forward": best[BUDGET, "tokens_per_forward"],
        "strict_to_plain": best[STRICT, "ratio_to_plain"],
        "relaxed_to_plain": best[RELAXED, "ratio_to_plain"],
        "budget_to_plain": best[BUDGET, "ratio_to_plain"],
    }


def _lines(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        f"{'batch':>5} {'arm':<8} {'tokens/s':>8} {'to plain':>8} {'spread':>12} {'tok/fwd':>7}"
        f" {'unlike':>6} {'nats':>6}  accepted from previous, own, group, global, model"
    )
    for record in records:
        low, high = record["spread"]
        yield (
            f"{record['batch']:>5} {record['arm']:<8} {record['tokens_per_second']:>8.1f}"
            f" {record['ratio_to_plain']:>7.2f}x {f'{low:.2f}..{high:.2f}':>12}"
            f" {record['tokens_per_forward']:>7.2f} {record['rows_unlike_plain']:>6}"
            f" {record['nats_per_token']:>6.3f}  {record['accepted_by_source']}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
