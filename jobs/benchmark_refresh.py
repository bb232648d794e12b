"""What a refresh saves: every user gains one interaction, and has said something before.

    python -m jobs.benchmark_refresh --config conf/bench.yaml

Users of the last wave get the text that plain decoding writes without their latest interaction;
as in a refresh, the pools hold these texts too. Then all arms write the text with it, in turns:
plain decoding, which starts anew, and drafts from the earlier text first, then own text and pools.
Replays without a draft budget say what the earlier text is worth by itself. Stands on what `make
bench` builds. The last line on stdout is one JSON object.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import json
import logging
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from jobs import cli
from jobs.benchmark_rows import prepare
from jobs.benchmark_summary import Target, last_line
from jobs.decoding_arms import (
    BUDGET,
    PLAIN,
    RELAXED,
    STRICT,
    Outcome,
    engine_arm,
    engine_arms,
    pool_drafters,
    rows_unlike,
)
from jobs.generation_actor import make_engine
from jobs.refresh_rows import Setting, refreshed, sized
from jobs.waves import identify
from pipeline.config import RunConfig
from pipeline.engine.rules import Strict
from pipeline.engine.types import NoDraft
from pipeline.store import Store
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.pool_folder import open_pools
from retrieval_pools.replay import Recording, replay

log = logging.getLogger("jobs.benchmark_refresh")

_ARMS = (PLAIN, STRICT, RELAXED, BUDGET)
_READ = ("benchmark", "engine", "generation", "drafts", "pools", "prompts", "seed")
_WARM_UP_TOKENS = 4
_RUN = 3  # tokens; shorter ones recur by chance
TARGETS = (
    Target("strict_tokens_per_forward", 5.0),
    Target("relaxed_tokens_per_forward", 8.0),
    Target("relaxed_to_plain", 4.0),
)


def run(config: RunConfig, store: Store) -> None:
    """Write `refresh_benchmark/refresh_benchmark.json`; print a table and a line of JSON."""
    identity = identify(config)
    pools = prepare(config, store, identity)
    settings = {name: getattr(config, name) for name in _READ} | {"model": identity.model}
    plan = store.plan("refresh_benchmark", settings, inputs=["interactions", pools.name])
    with tempfile.TemporaryDirectory(prefix=".refresh-", dir=store.root) as scratch:
        setting = refreshed(config, store, store.files.local(pools.name), Path(scratch), identity)
        records = [
            record
            for batch in config.benchmark.refresh_batch_sizes
            for record in _measure(config, batch, setting)
        ]
        worth = _worth_of_earlier_text(config, setting)
    totals = _totals(records)
    result = {"rows": len(setting.rows), "arms": records, "replays": worth, "totals": totals}

    def fill(folder: Any) -> None:
        (folder / "refresh_benchmark.json").write_text(json.dumps(result, indent=2))

    plan.write_files(fill, len(records))
    for line in (*_lines(records), _sentence(worth)):
        print(line)
    print(json.dumps(last_line(totals, TARGETS)))


def _measure(config: RunConfig, batch: int, setting: Setting) -> Iterator[dict[str, Any]]:
    """One record per arm at one batch size."""
    own, rows = sized(config, batch), setting.rows
    engine = make_engine(own, setting.tokenizer)
    drafters = pool_drafters(own, engine, setting.pools, setting.tokenizer)
    arms = engine_arms(engine, own, {name: drafters[name] for name in _ARMS})
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
        yield _record(batch, name, outcomes[name], outcomes[PLAIN], setting.earlier)


def _worth_of_earlier_text(config: RunConfig, setting: Setting) -> dict[str, float]:
    """Tokens per pass of strict replays with and without the earlier text, budget aside.

    And how much of the new texts stands in the earlier ones, in the same order.
    """
    engine = make_engine(
        sized(config, max(config.benchmark.refresh_batch_sizes)), setting.tokenizer
    )
    done = engine_arm(engine, NoDraft(), Strict())(setting.rows)
    recordings = [
        Recording(row, done.texts[row.key], done.generations[row.key].finish_reason)
        for row in setting.rows
    ]
    every = set(config.drafts.sources)
    arms = {
        "all sources": (setting.pools, every),
        "earlier text in pools only": (setting.pools, every - {"previous"}),
        "no earlier text": (setting.without, every - {"previous"}),
        "earlier text alone": (setting.without, {"previous"}),
    }
    worth = {}
    for name, (folder, use) in arms.items():
        pools = open_pools(folder, setting.tokenizer.fingerprint)
        drafter = PoolDrafter(pools, config.pools.depth, use)
        played = replay(recordings, drafter, engine.stops, config.engine.draft_nodes)
        worth[name] = played.tokens_per_pass
    earlier = setting.earlier.texts
    common = sum(
        _common(earlier[row.key].tolist(), done.texts[row.key].tolist()) for row in setting.rows
    )
    return worth | {"share in earlier text": common / done.num_tokens}


def _common(before: list[int], after: list[int]) -> int:
    """Tokens of `after` in runs that stand in `before` too, in the same order (Ratcliff 1988)."""
    matcher: SequenceMatcher = SequenceMatcher(None, before, after, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks() if block.size >= _RUN)


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


def _sentence(worth: Mapping[str, float]) -> str:
    earnings = (f"{name} {rate:.2f}" for name, rate in worth.items() if "share" not in name)
    return (
        f"strict replays without a budget, tokens per pass: {', '.join(earnings)}; "
        f"{worth['share in earlier text']:.0%} of the new texts stand in the earlier ones in runs "
        f"of {_RUN} tokens or more"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
