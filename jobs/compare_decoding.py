"""How fast is it, and what does it write? The arms of decoding on the same rows, in one process.

    python -m jobs.compare_decoding --config conf/demo.yaml

The rows are a sample of the last wave, whose pools do not hold their own texts. Arms:
`transformers.generate` (left-padded batches, rows sorted by length), and this engine by plain
decoding, strict and relaxed. Every arm warms up on one short row first, pays for its own prefill,
and arms take turns by kind and repeat, each repeat in another order. Where a greedy text leaves
that of plain decoding, the place and the gap of the two logits are told. A few more arms lead from
plain decoding to ours, one thing more at a time: see `jobs.waterfall`.
A killed comparison goes on after the last finished round, the turns of all arms on the rows of one
kind; how many tries it took is told, since the machine may have been busier in one of them.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import json
import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from transformers import PreTrainedModel

from features.frameworks import templates_of
from jobs import cli
from jobs.build_pools import build_wave
from jobs.comparison_summary import ARMS, lines, speeds_of, summary
from jobs.decoding_arms import (
    PLAIN,
    RELAXED,
    STRICT,
    TRANSFORMERS,
    Arm,
    engine_arm,
    leaves_plain,
    transformers_arm,
)
from jobs.generation_actor import make_drafter, make_engine, make_rule
from jobs.left_out import why_no_comparison
from jobs.measured_rounds import MeasuredRounds, Outcomes, Requests, measure, place_of
from jobs.waterfall import Step, extra_arms, steps_of
from jobs.wave_names import last_wave
from jobs.waves import Identity, identify, open_wave, require_own_framework
from pipeline.config import RunConfig
from pipeline.knowledge import requests_of
from pipeline.language_model import ChatTokenizer, device_of, load_model
from pipeline.parts import write_atomically
from pipeline.store import Plan, Store

log = logging.getLogger("jobs.compare_decoding")

JSON = "comparison.json"
UNFINISHED = "unfinished/comparison"  # rounds; an older comparison stays until there is a new one


def run(config: RunConfig, store: Store) -> None:
    """Write `comparison/comparison.json`."""
    require_own_framework(config, store)
    if reason := why_no_comparison(config, store):
        log.info("comparison: no rows, since %s", reason)
        return
    identity = identify(config)
    pools = build_wave(config, store, last_wave(config), identity.tokenizer)
    settings, inputs = settings_of(config, identity), ["knowledge", pools.name]
    plan = store.plan("comparison", settings, inputs)
    if plan.is_done:
        log.info("comparison: up to date")
        return
    tasks = _sample(config, store, identity)
    requests = _requests(config, tasks, identity.tokenizer)
    if not requests:
        log.info("comparison: no rows, since no prompt of the last wave can be asked")
        return
    reference = load_model(config.language_model)
    asked = [request for rows in requests.values() for request in rows]
    steps = steps_of(config, any(request.previous_ids is not None for request in asked))
    folder = store.files.local(pools.name)
    unfinished = store.plan(UNFINISHED, settings, inputs)
    log.info(
        "comparison: a measurement of speed, from which nothing else is made; "
        "--set comparison.rows_per_kind=0 leaves it out"
    )
    rounds = MeasuredRounds(unfinished, place_of(device_of(config.language_model)))
    make_arms = partial(_arms, config, reference, folder, identity.tokenizer, steps)
    outcomes = measure(make_arms, requests, config.comparison.repeats, rounds)
    log.info("comparison: looking for the places where greedy texts part")
    comparison = summary(config, tasks.num_rows, list(requests), outcomes) | {
        "tries": rounds.tries,
        "waterfall": speeds_of(steps, list(requests), outcomes),
        "divergences": _divergences(config, tasks, requests, outcomes, reference),
        "texts": _texts(store, tasks, list(requests), outcomes, identity.tokenizer),
    }
    for line in lines(comparison):
        log.info("comparison: %s", line)
    _write(plan, comparison, tasks.num_rows, rounds)


def _write(plan: Plan, comparison: dict[str, Any], num_rows: int, rounds: MeasuredRounds) -> None:
    """Declare the comparison, which takes the place of an older one; only then let rounds go."""
    text = json.dumps(comparison, indent=2).encode()
    # What the try measured that the seconds are of.
    written = {"rows_written": round(rounds.share_of_this_try * num_rows)}
    plan.write_files(lambda folder: write_atomically(folder / JSON, text), num_rows, written)
    rounds.discard()


def settings_of(config: RunConfig, identity: Identity) -> dict[str, Any]:
    """What a comparison depends on besides its inputs."""
    return {
        "comparison": config.comparison,
        "engine": config.engine,
        "generation": config.generation,
        "drafts": config.drafts,
        "draft_model": identity.draft_model,
        "model": identity.model,
        "templates": templates_of(config).hash,
    }


def _sample(config: RunConfig, store: Store, identity: Identity) -> pa.Table:
    """Evenly spaced rows of the last wave, the same number of each kind."""
    wave = open_wave(config, store, last_wave(config), identity, "")
    tasks = wave.tasks
    chosen = []
    for kind in config.generation.kinds:
        rows = np.flatnonzero(pc.equal(tasks["kind"], kind).to_numpy(zero_copy_only=False))
        count = min(config.comparison.rows_per_kind, len(rows))
        chosen.append(rows[np.linspace(0, len(rows) - 1, count).astype(int)] if count else rows[:0])
    return wave.prompted(tasks.take(np.concatenate(chosen).astype(np.int64)))


def _requests(config: RunConfig, tasks: pa.Table, tokenizer: ChatTokenizer) -> Requests:
    """Rows that can be asked, of the kinds that have any."""
    rows = {
        kind: requests_of(
            tasks.filter(pc.equal(tasks["kind"], kind)),
            tokenizer,
            config.generation.max_new_tokens,
            config.prompts.max_tokens,
        )
        for kind in config.generation.kinds
    }
    asked = {kind: [r for r in of_kind if len(r.prompt_ids)] for kind, of_kind in rows.items()}
    return {kind: of_kind for kind, of_kind in asked.items() if of_kind}


def _arms(
    config: RunConfig,
    reference: PreTrainedModel,
    pools: Path,
    tokenizer: ChatTokenizer,
    steps: Sequence[Step],
) -> dict[str, Arm]:
    engine = make_engine(config, tokenizer, partial(log.info, "comparison: %s"))
    measured, rows = engine.costs, config.engine.batch_rows
    arms = {TRANSFORMERS: transformers_arm(reference, config, tokenizer, rows)}
    for name in ARMS[1:]:
        engine.costs = measured.copy()
        drafter = make_drafter(config, engine, name, pools, tokenizer.fingerprint)
        rule = make_rule(name, config.generation, engine.stops)
        arms[name] = engine_arm(engine, drafter, rule)
    engine.costs = measured
    return arms | extra_arms(config, engine, pools, tokenizer.fingerprint, steps)


def _divergences(
    config: RunConfig,
    tasks: pa.Table,
    requests: Requests,
    outcomes: Outcomes,
    reference: PreTrainedModel,
) -> list[dict[str, Any]]:
    """Where greedy texts of an arm leave plain decoding's, and how far apart the two logits are."""
    found = []
    for kind, rows in requests.items():
        ids = tasks.filter(pc.equal(tasks["kind"], kind))["entity_id"].to_pylist()
        for arm in (TRANSFORMERS, STRICT):
            texts = outcomes[arm, kind][0], outcomes[PLAIN, kind][0]
            for one in leaves_plain(*texts, rows, reference, config):
                place = {"kind": kind, "entity_id": ids[int(one.key)], "position": one.position}
                found.append({"arm": arm, **place, "gap": one.gap})
    return found


def _texts(
    store: Store,
    tasks: pa.Table,
    kinds: list[str],
    outcomes: Outcomes,
    tokenizer: ChatTokenizer,
    per_kind: int = 3,
) -> list[dict[str, Any]]:
    """A few rows, plain and relaxed side by side."""
    items = store.read("items")
    titles = dict(zip(items["item_id"].to_pylist(), items["title"].to_pylist(), strict=True))
    rows = []
    for kind in kinds:
        plain, relaxed = outcomes[PLAIN, kind][0], outcomes[RELAXED, kind][0]
        of_kind = tasks.filter(pc.equal(tasks["kind"], kind)).to_pylist()
        for key, task in list(enumerate(of_kind))[:per_kind]:
            if str(key) not in plain.texts:
                continue
            statistics = relaxed.generations[str(key)].statistics
            entity_id = task["entity_id"]
            is_cut = {
                arm: outcome.generations[str(key)].finish_reason == "length"
                for arm, outcome in (("plain", plain), ("relaxed", relaxed))
            }
            rows.append(
                {
                    "kind": kind,
                    "entity_id": entity_id,
                    "title": titles[entity_id] if kind == "item" else f"user {entity_id}",
                    "prompt": tokenizer.decode(tokenizer.encode(task["prompt"])),
                    "plain": tokenizer.decode(plain.texts[str(key)], is_cut["plain"]),
                    "relaxed": tokenizer.decode(relaxed.texts[str(key)], is_cut["relaxed"]),
                    "plain_is_cut": is_cut["plain"],
                    "relaxed_is_cut": is_cut["relaxed"],
                    "relaxed_tokens": statistics.relaxed_tokens,
                    "relaxed_cost": statistics.relaxed_cost,
                }
            )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
