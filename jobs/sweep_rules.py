"""Relaxed rules, which need the model: tokens per forward pass against what the text gives up."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jobs.decoding_arms import STRICT, Outcome, drafting_from_pools, engine_arm
from jobs.generation_actor import make_drafter, make_engine
from jobs.sweep_summary import Draws, spread
from pipeline.config import RunConfig
from pipeline.engine.budget import FREE
from pipeline.engine.quality import QualityBudget
from pipeline.engine.rules import Relaxed, Rule, Strict, TopKFloor
from pipeline.engine.stops import Stops
from pipeline.engine.types import Request
from pipeline.language_model import ChatTokenizer

log = logging.getLogger("jobs.sweep_rules")


def measure_rules(
    config: RunConfig,
    requests: Mapping[str, Sequence[Request]],
    pools: Path,
    tokenizer: ChatTokenizer,
) -> list[dict[str, Any]]:
    """One record per rule and kind, decoded one row at a time by the engine.

    All drafts are verified, as in the replays: a draft budget would follow the machine's mood, and
    relaxed text follows the drafts. Every rule has a drafter of its own.
    """
    alone = config.engine.model_copy(update={"batch_rows": 1})
    sized = drafting_from_pools(config).model_copy(update={"engine": alone})
    engine = make_engine(sized, tokenizer)
    records = []
    for name, rule in _rules(config, engine.stops):
        drafter = make_drafter(sized, engine, name, pools, tokenizer.fingerprint)
        arm = engine_arm(engine, drafter, rule, FREE)
        for kind, rows in requests.items():
            outcome = arm(rows)
            records.append(_record(kind, name, outcome, config))
            log.info("%ss, %s: %.1f s", kind, name, outcome.seconds)
    return records


def _rules(config: RunConfig, stops: Stops) -> Iterator[tuple[str, Rule]]:
    """Strict first: the others are held against it."""
    sweep = config.sweep
    yield STRICT, Strict()
    for top_k in sweep.rule_top_k:
        for floor in sweep.rule_floors:
            yield f"k={top_k}, p={floor:g}", Relaxed(TopKFloor(top_k, floor), stops)
    for nats in sweep.rule_nats:
        yield f"budget of {nats:g} nats", Relaxed(QualityBudget(nats), stops)


def _record(kind: str, rule: str, outcome: Outcome, config: RunConfig) -> dict[str, Any]:
    keys = list(outcome.texts)
    tokens = np.array([[len(outcome.texts[key]) for key in keys]])
    passes = np.array([[outcome.passes[key] for key in keys]])
    nats = np.array([[outcome.generations[key].statistics.relaxed_cost for key in keys]])
    draws = Draws.of_rows(np.arange(len(keys)), len(keys), config.sweep.bootstrap, config.seed)
    return {
        "kind": kind,
        "rule": rule,
        "rows": len(keys),
        "tokens_per_pass": spread(tokens.sum() / passes.sum(), draws.ratios(tokens, passes)),
        "nats_per_token": spread(nats.sum() / tokens.sum(), draws.ratios(nats, tokens)),
    }
