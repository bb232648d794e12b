"""How fast is every way of decoding, at every batch size? `make bench`.

    python -m jobs.benchmark_decoding --config conf/bench.yaml

Builds what is missing: the catalog, embeddings, groups and all waves but the last, whose texts are
the pools. The rows of the last wave, which no pool holds, are measured in blocks: on each block
all arms take turns, every time in another order; the arms of fixed drafts on the first one only.
Batch sizes come one after the other, each with an engine of its own. Every arm pays for its own
prefill. Measures anew whenever it is run.

The last line on stdout is one JSON object: the ratios, and which targets they miss.
"""

import json
import logging
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from jobs import cli
from jobs.benchmark_rows import block_of, prepare, requests_by_kind
from jobs.benchmark_summary import ALL, TARGETS, Prompts, last_line, summarise, totals
from jobs.benchmark_table import lines
from jobs.decoding_arms import (
    DRAFT_MODEL,
    PLAIN,
    PROMPT_LOOKUP,
    PUBLISHED,
    RESD,
    STRICT,
    TRANSFORMERS,
    Arm,
    Outcome,
    engine_arms,
    leaves_plain,
    pool_drafters,
    prompt_lookup_arm,
    transformers_arm,
)
from jobs.generation_actor import make_drafter, make_engine
from jobs.step_limit import ModelSize, measure_machine, size_of
from jobs.wave_names import has_draft_model
from jobs.waves import Identity, identify
from pipeline.config import RunConfig
from pipeline.engine.draft_model import DraftModelDrafter
from pipeline.engine.types import Drafter, Request
from pipeline.errors import ConfigError
from pipeline.language_model import load_model
from pipeline.store import Store
from retrieval_pools.pool_folder import open_pools

log = logging.getLogger("jobs.benchmark_decoding")

_WARM_UP_TOKENS = 4


@dataclass
class Measured:
    """What the batch sizes left behind."""

    outcomes: dict[tuple[int, str, str], list[Outcome]]
    expected: dict[int, float]  # batch size -> speed-up that a draft model promised
    size: ModelSize | None = None


def run(config: RunConfig, store: Store) -> None:
    """Write `benchmark/benchmark.json`; print a table and a line of JSON."""
    _require_room(config)
    identity = identify(config)
    pools = prepare(config, store, identity)
    requests = requests_by_kind(config, store, identity)
    settings = {name: getattr(config, name) for name in ("benchmark", "engine", "generation")}
    settings |= {"drafts": config.drafts, "model": identity.model}
    plan = store.plan("benchmark", settings, inputs=["groups", pools.name])
    folder = store.files.local(pools.name)
    reference = load_model(config.language_model)
    measured = _measure(config, requests, folder, identity, reference)
    benchmark = _report(config, requests, measured, reference)
    benchmark["num_documents"] = open_pools(folder, identity.tokenizer.fingerprint).num_documents

    def fill(target: Path) -> None:
        (target / "benchmark.json").write_text(json.dumps(benchmark, indent=2))

    plan.write_files(fill, len(benchmark["arms"]))
    for line in lines(benchmark):
        print(line)
    print(json.dumps(last_line(benchmark["totals"], TARGETS)))


def _require_room(config: RunConfig) -> None:
    need = config.prompts.max_tokens + config.benchmark.max_new_tokens + config.engine.draft_nodes
    if need > config.engine.max_length:
        raise ConfigError(
            f"engine.max_length is {config.engine.max_length}, but prompts.max_tokens + "
            f"benchmark.max_new_tokens + engine.draft_nodes = {need}; raise it to {need}"
        )


def _measure(
    config: RunConfig,
    requests: Mapping[str, Sequence[Request]],
    pools: Path,
    identity: Identity,
    reference: PreTrainedModel,
) -> Measured:
    """All batch sizes; the drafters of the first go on with what they have learned."""
    measured, drafters = Measured(defaultdict(list), {}), {}
    for number, batch in enumerate(config.benchmark.batch_sizes, 1):
        log.info("batch size %d (%d of %d)", batch, number, len(config.benchmark.batch_sizes))
        if min(map(len, requests.values())) < batch:
            log.warning("the last wave has too few rows of a kind for batch size %d", batch)
        settings = config.engine.model_copy(update={"batch_rows": batch})
        sized = config.model_copy(update={"engine": settings})
        _measure_batch(sized, requests, pools, identity, reference, drafters, measured)
    return measured


def _measure_batch(
    config: RunConfig,
    requests: Mapping[str, Sequence[Request]],
    pools: Path,
    identity: Identity,
    reference: PreTrainedModel,
    drafters: dict[str, Drafter],
    measured: Measured,
) -> None:
    """One batch size; its engine and draft model leave the memory at the end."""
    tokenizer, batch = identity.tokenizer, config.engine.batch_rows
    engine = make_engine(config, tokenizer)
    if not drafters:
        drafters |= pool_drafters(config, engine, pools, tokenizer)
    own = dict(drafters)
    if has_draft_model(config):
        own[DRAFT_MODEL] = make_drafter(config, engine, STRICT, None, tokenizer.fingerprint)
    arms = {TRANSFORMERS: transformers_arm(reference, config, tokenizer, batch)}
    if batch == 1:
        arms[PROMPT_LOOKUP] = prompt_lookup_arm(reference, config, tokenizer)
    arms |= engine_arms(engine, config, own)
    for kind, name, outcome in _in_turns(config, batch, arms, requests):
        measured.outcomes[batch, name, kind].append(outcome)
    measured.size = size_of(reference, engine.runner.cache.keys)
    model = own.get(DRAFT_MODEL)
    if isinstance(model, DraftModelDrafter):
        measured.expected[batch] = model.expected_speedup()


def _in_turns(
    config: RunConfig,
    batch: int,
    arms: Mapping[str, Arm],
    requests: Mapping[str, Sequence[Request]],
) -> Iterator[tuple[str, str, Outcome]]:
    """Kind, arm and outcome, block by block."""
    names, order = list(arms), np.random.default_rng([config.seed, batch])
    for name in names:
        rows = next(iter(requests.values()))[:batch]
        arms[name]([replace(row, max_new_tokens=_WARM_UP_TOKENS) for row in rows[:2]])
    for block in range(config.benchmark.blocks):
        for kind in requests:
            # Two batches at least: a job refills its batch, one that only drains is not like it.
            rows = block_of(requests[kind], block, max(config.benchmark.rows, 2 * batch))
            for name in order.permutation(names).tolist():
                if block and name in (RESD, PUBLISHED):
                    continue  # fixed drafts take most of the time, and their ratio is plain to see
                began = time.perf_counter()
                outcome = arms[name](rows)
                log.info(
                    "batch %d, block %d of %d, %d %ss: %s %.1f tokens/s, %.1f s",
                    batch,
                    block + 1,
                    config.benchmark.blocks,
                    len(rows),
                    kind,
                    name,
                    outcome.num_tokens / outcome.seconds,
                    time.perf_counter() - began,
                )
                yield kind, name, outcome


def _report(
    config: RunConfig,
    requests: Mapping[str, Sequence[Request]],
    measured: Measured,
    reference: PreTrainedModel,
) -> dict[str, Any]:
    assert measured.size is not None, "BenchmarkSettings asks for a batch size"
    prompts: Prompts = {
        request.key: len(request.prompt_ids) for rows in requests.values() for request in rows
    }
    machine = measure_machine(reference.device, reference.dtype)
    records = summarise(measured.outcomes, prompts, measured.size, machine)
    speedups = {
        record["batch"]: record["ratio_to_plain"]
        for record in records
        if record["arm"] == DRAFT_MODEL and record["kind"] == ALL
    }
    return {
        "model": config.language_model.path.rstrip("/").rpartition("/")[2],
        "machine": f"{platform.machine()} {reference.device}, {torch.get_num_threads()} threads",
        "settings": config.benchmark.model_dump(mode="json"),
        "limits": asdict(machine) | asdict(measured.size),
        "arms": records,
        "draft_model": [
            {"batch": batch, "expected_speedup": expected, "measured_speedup": speedups[batch]}
            for batch, expected in measured.expected.items()
        ],
        "divergences": _divergences(config, requests, measured, reference),
        "totals": totals(records),
        "targets": {target.name: asdict(target) for target in TARGETS},
    }


def _divergences(
    config: RunConfig,
    requests: Mapping[str, Sequence[Request]],
    measured: Measured,
    reference: PreTrainedModel,
) -> list[dict[str, Any]]:
    """Where greedy texts leave plain ones; only rounding may do that to `generate`'s, and in 16
    bits to strict ones.
    """
    return [
        {"batch": batch, "arm": arm} | asdict(divergence)
        for (batch, arm, kind), own in measured.outcomes.items()
        if arm in (STRICT, TRANSFORMERS)
        for outcome, plain in zip(own, measured.outcomes[batch, PLAIN, kind], strict=True)
        for divergence in leaves_plain(outcome, plain, requests[kind], reference, config)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
