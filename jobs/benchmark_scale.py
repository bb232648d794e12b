"""What does a token, an edge, an entity cost as the catalog grows? `make bench-scale`.

    python -m jobs.benchmark_scale --config conf/scale.yaml

Makes catalogs of growing size up, and measures on them: pools of many groups, built and stored as
jobs.build_pools does it; lookups in one pool; LightGCN's graph, propagation and epoch; k-means;
prompts and groups by attributes; generation by a tiny model, for its memory. A stage is flat if a
unit of the largest size costs at most twice a unit of the smallest. Pools are read back, and every
text must be in its group's; the global pool is bounded by `pools.max_bytes`. Measures anew whenever
it is run.

The last line on stdout is one JSON object: costs and ratios, and which targets they miss.
"""

import json
import logging
import os
import platform
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from jobs import cli
from jobs.benchmark_summary import Target, last_line
from jobs.scale_knowledge import knowledge
from jobs.scale_pools import LOOKUP_NODES, LOOKUP_ROWS, lookups, pools
from jobs.scale_stages import Cost, kmeans, least, lightgcn, prompts
from pipeline.config import RunConfig
from pipeline.store import Store

log = logging.getLogger("jobs.benchmark_scale")

_READ = ("scale", "pools", "embeddings", "prompts", "seed")  # sections of the config
_BOUNDED_TOKENS = 1_000_000  # of a pool; its lookups have a bound
FLAT = 2.0  # largest to smallest size, per unit
TARGETS = (
    Target("pools_microseconds_per_token", 1.5, at_least=False),
    Target("pools_ratio", FLAT, at_least=False),
    Target("lookups_milliseconds", 1.0, at_least=False),
    Target("lookups_ratio", FLAT, at_least=False),
    Target("lightgcn_propagation_ratio", FLAT, at_least=False),
    Target("lightgcn_epoch_ratio", FLAT, at_least=False),
    Target("kmeans_ratio", FLAT, at_least=False),
    Target("prompts_ratio", FLAT, at_least=False),
    Target("attribute_groups_ratio", FLAT, at_least=False),
    Target("knowledge_ratio", FLAT, at_least=False),
    Target("knowledge_actor_memory_ratio", 1.1, at_least=False),
    Target("knowledge_driver_kilobytes_per_row", 5.0, at_least=False),
)


def run(config: RunConfig, store: Store) -> None:
    """Write `scale/scale.json`; print a table and a line of JSON.

    Raises:
        DataError: texts are missing from the pools.
    """
    plan = store.plan("scale", {name: getattr(config, name) for name in _READ})
    costs: dict[str, list[Cost]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix=".scale-", dir=store.root) as scratch:
        for measured in _measure(config, Path(scratch)):
            for cost in measured:
                log.info("%s of %d: %.3f us", cost.stage, cost.size, cost.microseconds)
                costs[cost.stage].append(cost)
    totals = _totals(costs)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "settings": config.scale.model_dump(mode="json"),
        "costs": [
            asdict(cost) | {"microseconds_per_unit": cost.microseconds}
            for own in costs.values()
            for cost in own
        ],
        "totals": totals,
    }

    def fill(folder: Path) -> None:
        (folder / "scale.json").write_text(json.dumps(result, indent=2))

    plan.write_files(fill, len(result["costs"]))
    for line in _lines(costs, totals):
        print(line)
    print(json.dumps(last_line(totals, TARGETS, digits=4)))


def _measure(config: RunConfig, scratch: Path) -> Iterator[list[Cost]]:
    """All stages at all sizes, small sizes first: memory once used is not always given back."""
    scale, seed, dim = config.scale, config.seed, config.embeddings.dim
    stages: dict[str, tuple[list[int], Callable[[int], list[Cost]]]] = {
        "pools": (scale.pool_groups, lambda size: pools(size, config, scratch)),
        "lookups": (scale.lookup_tokens, lambda size: lookups(size, config, scratch)),
        "lightgcn": (scale.edges, lambda size: lightgcn(size, config.embeddings, seed)),
        "kmeans": (scale.entities, lambda size: kmeans(size, scale.clusters, dim, seed)),
        "prompts": (scale.prompt_users, lambda size: prompts(size, config.prompts, seed)),
        "knowledge": (scale.knowledge_rows, lambda size: knowledge(size, config, scratch)),
    }
    for stage in scale.stages:
        sizes, measure = stages[stage]
        for size in sorted(sizes):
            yield least(partial(measure, size))


def _totals(costs: Mapping[str, Sequence[Cost]]) -> dict[str, float | None]:
    """A ratio for every stage, None for what was not measured; what has targets at its worst."""
    totals: dict[str, float | None] = {target.name: None for target in TARGETS}
    for stage, own in costs.items():
        totals[f"{stage.replace(' ', '_')}_ratio"] = own[-1].microseconds / own[0].microseconds
    if "pools" in costs:
        totals["pools_microseconds_per_token"] = max(c.microseconds for c in costs["pools"])
    if "lookups" in costs:
        bounded = [c for c in costs["lookups"] if c.size <= _BOUNDED_TOKENS] or costs["lookups"]
        totals["lookups_milliseconds"] = max(cost.facts["milliseconds"] for cost in bounded)
    if "knowledge" in costs:
        first, last = costs["knowledge"][0], costs["knowledge"][-1]
        grown = last.facts["driver_mib"] - first.facts["driver_mib"]
        totals |= {
            "knowledge_actor_memory_ratio": last.facts["actor_mib"] / first.facts["actor_mib"],
            "knowledge_driver_kilobytes_per_row": grown * 1024 / max(last.size - first.size, 1),
        }
    return totals


def _lines(
    costs: Mapping[str, Sequence[Cost]], totals: Mapping[str, float | None]
) -> Iterator[str]:
    yield (
        f"{'stage':<22} {'size':>11} {'seconds':>8} {'core s':>8} {'us/unit':>8} {'of':<7}"
        f" {'peak MiB':>9} {'grown':>7} {'bytes/unit':>10}"
    )
    for own in costs.values():
        for cost in own:
            left = "-" if cost.bytes_per_unit is None else f"{cost.bytes_per_unit:.2f}"
            yield (
                f"{cost.stage:<22} {cost.size:>11} {cost.seconds:>8.2f} {cost.core_seconds:>8.2f}"
                f" {cost.microseconds:>8.3f} {cost.unit:<7} {cost.peak_mib:>9.0f}"
                f" {cost.grown_mib:>7.0f} {left:>10}"
            )
        ratio = own[-1].microseconds / own[0].microseconds
        yield f"  largest to smallest size, per unit: {ratio:.2f}, {_verdict(ratio)}"
    yield "Time per unit is that of cores, so that other work on the machine counts little."
    yield "Pools: from rows of knowledge to a folder of pools, the stored pools per token of text."
    for cost in costs.get("pools", ()):
        if cost.facts["in_global"] < cost.facts["documents"]:
            shares = "{in_global} of {documents} texts".format(**cost.facts)
            yield f"  {cost.size} tokens: the global pool has room for {shares}"
    for cost in costs.get("knowledge", ()):
        yield (
            f"Knowledge, {cost.size} rows: at most {cost.facts['driver_mib']:.0f} MiB in the "
            f"driver ({cost.facts['driver_drift_mib']:+.0f} while rows were written), "
            f"{cost.facts['actor_mib']:.0f} in an actor, {cost.facts['store_mib']:.0f} in the "
            "object store"
        )
    yield f"Lookups: {LOOKUP_ROWS} rows x {LOOKUP_NODES} nodes; the pool's tokens grow."
    yield f"Milliseconds: on the clock, in pools of up to {_BOUNDED_TOKENS} tokens."
    for target in TARGETS:
        value = totals[target.name]
        number = "-" if value is None else f"{value:.2f}"
        verdict = {True: "met", False: "missed", None: "not measured"}[target.is_met(value)]
        yield f"{target.name:<38} {number:>7}  <= {target.bound:<5g} {verdict}"


def _verdict(ratio: float) -> str:
    return "flat" if ratio <= FLAT else "not flat"


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
