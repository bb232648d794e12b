"""How fast is it, and what does it write? The arms of decoding on the same rows, in one process.

    python -m jobs.compare_decoding --config conf/demo.yaml

The rows are a sample of the last wave, whose pools do not hold their own texts. Arms:
`transformers.generate` (left-padded batches, rows sorted by length), and this engine by plain
decoding, strict and relaxed. Every arm warms up on one short row first, pays for its own prefill,
and arms take turns by kind and repeat, each repeat in another order.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import json
import logging
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from transformers import PreTrainedModel

from jobs import cli
from jobs.build_pools import build_wave
from jobs.generate_knowledge import Identity, wave_tasks
from jobs.generation_actor import make_drafter, make_engine, make_processors, make_rule
from pipeline.config import RunConfig
from pipeline.engine.engine import Engine, EngineStatistics
from pipeline.engine.types import Generation, Request
from pipeline.knowledge import requests_of
from pipeline.language_model import (
    ChatTokenizer,
    load_model,
    load_tokenizer,
    model_fingerprint,
    stop_ids_of,
)
from pipeline.reference_decoding import transformers_generate
from pipeline.store import Store

log = logging.getLogger("jobs.compare_decoding")

BASELINE = "transformers.generate"
ARMS = (BASELINE, "plain", "strict", "relaxed")
PARTS = ("draft", "forward", "verify", "bookkeeping")  # of an engine's step
_LOOP = 8  # a row that repeats an n-gram of this length loops


@dataclass(frozen=True)
class Outcome:
    """One arm on one set of rows."""

    seconds: float
    passes: int  # forward passes that rows took part in, summed over rows
    texts: dict[str, np.ndarray]  # request key -> output ids
    generations: dict[str, Generation]
    parts: dict[str, float]  # seconds of draft, forward, verify and bookkeeping


def run(config: RunConfig, store: Store) -> None:
    """Write `comparison/comparison.json`."""
    identity = Identity(
        load_tokenizer(config.language_model), model_fingerprint(config.language_model)
    )
    settings = {
        "comparison": config.comparison,
        "engine": config.engine,
        "generation": config.generation,
        "model": identity.model,
    }
    pools = build_wave(config, store, config.generation.waves, identity.tokenizer.fingerprint)
    plan = store.plan("comparison", settings, inputs=["knowledge", pools.name])
    if plan.is_done:
        log.info("comparison: up to date")
        return
    tasks = _sample(config, store, identity)
    if not tasks.num_rows:
        log.info("comparison: no rows, since the last wave or comparison.rows_per_kind is empty")
        return
    outcomes = _measure(config, tasks, store.path(pools.name), identity.tokenizer)
    comparison = _summary(config, store, tasks, outcomes, identity.tokenizer)
    for arm in comparison["arms"]:
        log.info(
            "%-22s %-5s %6.1f tokens/s, %.2f tokens per forward pass, %d of %d rows loop",
            *(arm[name] for name in ("arm", "kind", "tokens_per_second", "tokens_per_forward")),
            arm["looping_rows"],
            arm["rows"],
        )

    def fill(folder: Path) -> None:
        (folder / "comparison.json").write_text(json.dumps(comparison, indent=2))

    plan.write_files(fill, tasks.num_rows)


def _sample(config: RunConfig, store: Store, identity: Identity) -> pa.Table:
    """Evenly spaced rows of the last wave, the same number of each kind."""
    tasks = wave_tasks(config, store, config.generation.waves, identity, "")
    chosen = []
    for kind in config.generation.kinds:
        rows = np.flatnonzero(pc.equal(tasks["kind"], kind).to_numpy(zero_copy_only=False))
        count = min(config.comparison.rows_per_kind, len(rows))
        chosen.append(rows[np.linspace(0, len(rows) - 1, count).astype(int)] if count else rows[:0])
    return tasks.take(np.concatenate(chosen).astype(np.int64))


def _measure(
    config: RunConfig, tasks: pa.Table, pools: Path, tokenizer: ChatTokenizer
) -> dict[tuple[str, str], list[Outcome]]:
    """Every arm on every kind, in turns: (arm, kind) -> outcomes of the repeats."""
    reference = load_model(config.language_model)
    engine = make_engine(config, tokenizer)
    arms: dict[str, Callable[[list[Request]], Outcome]] = {
        BASELINE: lambda requests: _transformers(reference, requests, config, tokenizer)
    }
    for name in ARMS[1:]:
        arms[name] = lambda requests, name=name: _engine(
            engine, requests, config, name, None if name == "plain" else pools, tokenizer
        )
    outcomes: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for repeat in range(config.comparison.repeats):
        for kind in config.generation.kinds:
            requests = requests_of(
                tasks.filter(pc.equal(tasks["kind"], kind)),
                config.generation.max_new_tokens,
                config.prompts.max_tokens,
            )
            requests = [request for request in requests if len(request.prompt_ids)]
            for name in np.roll(ARMS, repeat).tolist():
                arm = arms[name]
                arm([replace(requests[0], max_new_tokens=4)])
                outcomes[name, kind].append(arm(requests))
                log.info("%s, %ss: %.1f s", name, kind, outcomes[name, kind][-1].seconds)
    return outcomes


def _engine(
    engine: Engine,
    requests: list[Request],
    config: RunConfig,
    rule: str,
    pools: Path | None,
    tokenizer: ChatTokenizer,
) -> Outcome:
    drafter = make_drafter(config, pools, tokenizer.fingerprint)
    engine.use(drafter, make_rule(rule, config.generation, engine.stops))
    engine.statistics = EngineStatistics()
    began = time.perf_counter()
    generations = {done.key: done for done in engine.generate(requests)}
    seconds = time.perf_counter() - began
    passes = sum(done.statistics.forward_passes for done in generations.values())
    texts = {key: done.token_ids for key, done in generations.items()}
    statistics = asdict(engine.statistics)
    return Outcome(seconds, passes, texts, generations, {name: statistics[name] for name in PARTS})


def _transformers(
    model: PreTrainedModel, requests: list[Request], config: RunConfig, tokenizer: ChatTokenizer
) -> Outcome:
    processors = make_processors(config.generation, stop_ids_of(model))
    options = {}
    if config.generation.stop_strings:
        options = {"stop_strings": config.generation.stop_strings, "tokenizer": tokenizer.tokenizer}
    began = time.perf_counter()
    texts = transformers_generate(
        model, requests, config.engine.batch_rows, processors, **options
    )
    seconds = time.perf_counter() - began
    return Outcome(seconds, sum(map(len, texts.values())), texts, {}, {})


def _summary(
    config: RunConfig,
    store: Store,
    tasks: pa.Table,
    outcomes: dict[tuple[str, str], list[Outcome]],
    tokenizer: ChatTokenizer,
) -> dict[str, Any]:
    kinds = config.generation.kinds
    arms = [
        _arm(arm, kind, [outcome for k in parts for outcome in outcomes[arm, k]])
        for kind, parts in [*((kind, [kind]) for kind in kinds), ("all", kinds)]
        for arm in ARMS
    ]
    return {
        "model": config.language_model.path.rstrip("/").rpartition("/")[2],
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "rows": tasks.num_rows,
        "max_new_tokens": config.generation.max_new_tokens,
        "batch_rows": config.engine.batch_rows,
        "arms": arms,
        "texts": _texts(config, store, tasks, outcomes, tokenizer),
    }


def _arm(arm: str, kind: str, outcomes: list[Outcome]) -> dict[str, Any]:
    texts = [text for outcome in outcomes for text in outcome.texts.values()]
    seconds = sum(outcome.seconds for outcome in outcomes)
    tokens = sum(map(len, texts))
    return {
        "arm": arm,
        "kind": kind,
        "rows": len(texts),
        "seconds": seconds,
        "new_tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "tokens_per_forward": tokens / max(sum(outcome.passes for outcome in outcomes), 1),
        "looping_rows": sum(_loops(text) for text in texts),
        "seconds_by_part": {
            part: sum(outcome.parts.get(part, 0.0) for outcome in outcomes) for part in PARTS
        },
    }


def _loops(text: np.ndarray) -> bool:
    """Whether an n-gram of `_LOOP` tokens occurs twice."""
    grams = [tuple(text[start : start + _LOOP]) for start in range(len(text) - _LOOP + 1)]
    return len(set(grams)) < len(grams)


def _texts(
    config: RunConfig,
    store: Store,
    tasks: pa.Table,
    outcomes: dict[tuple[str, str], list[Outcome]],
    tokenizer: ChatTokenizer,
    per_kind: int = 3,
) -> list[dict[str, Any]]:
    """A few rows, plain and relaxed side by side."""
    items = store.read("items")
    titles = dict(zip(items["item_id"].to_pylist(), items["title"].to_pylist(), strict=True))
    rows = []
    for kind in config.generation.kinds:
        plain, relaxed = outcomes["plain", kind][0], outcomes["relaxed", kind][0]
        of_kind = tasks.filter(pc.equal(tasks["kind"], kind)).to_pylist()
        for key, task in list(enumerate(of_kind))[:per_kind]:
            if str(key) not in plain.texts:
                continue
            statistics = relaxed.generations[str(key)].statistics
            entity_id = task["entity_id"]
            rows.append(
                {
                    "kind": kind,
                    "entity_id": entity_id,
                    "title": titles[entity_id] if kind == "item" else f"user {entity_id}",
                    "prompt": tokenizer.decode(np.array(task["prompt_ids"])),
                    "plain": tokenizer.decode(plain.texts[str(key)]),
                    "relaxed": tokenizer.decode(relaxed.texts[str(key)]),
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
