"""What one size of each stage costs; see jobs.benchmark_scale."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from features.frameworks import shipped_templates
from jobs.peak_memory import forget_peak, peak_mib, resident_mib
from jobs.scale_tables import catalog_tables
from pipeline.config import EmbeddingSettings, PromptSettings
from pipeline.prompts import build_prompts
from retrieval_pools.grouping import cluster, group_by_attributes
from retrieval_pools.lightgcn import Trainer
from retrieval_pools.synthetic import synthetic_interactions, synthetic_vectors

_EDGES_PER_USER, _GROUP_SIZE = 20, 8
_ENOUGH_SECONDS, _MOST_TRIES = 2.0, 5


@dataclass(frozen=True)
class Cost:
    """What a stage took at one size."""

    stage: str
    unit: str  # what the time is divided by
    size: int  # what grows
    units: int
    core_seconds: float  # of all threads
    seconds: float  # on the clock, waiting for the disk and for other work on the machine included
    peak_mib: float  # resident
    grown_mib: float  # of the peak, above what was resident before
    bytes_per_unit: float | None = None  # of what it leaves behind
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def microseconds(self) -> float:
        """Of one core, per unit."""
        return self.core_seconds / self.units * 1e6


class Watch:
    """Time and memory of a block of code."""

    core_seconds = seconds = peak = grown = 0.0


@contextmanager
def watched() -> Iterator[Watch]:
    """Fill in the watch when the block ends."""
    watch = Watch()
    forget_peak()
    before, worked, began = resident_mib(), time.process_time(), time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - began
    watch.core_seconds = time.process_time() - worked
    watch.peak = peak_mib()
    watch.grown = watch.peak - before


def least(measure: Callable[[], list[Cost]]) -> list[Cost]:
    """The quickest of several tries, fewer of what takes long: small sizes are noisy."""
    began = time.perf_counter()
    tries = [measure()]
    while len(tries) < _MOST_TRIES and time.perf_counter() - began < _ENOUGH_SECONDS:
        tries.append(measure())
    return [min(costs, key=lambda cost: cost.core_seconds) for costs in zip(*tries, strict=True)]


def lightgcn(edges: int, settings: EmbeddingSettings, seed: int) -> list[Cost]:
    """Set up, propagate once, train one epoch; on one thread at every size."""
    made = synthetic_interactions(edges, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with watched() as preparing:
            trainer = Trainer(made.edges, made.num_users, made.num_items, settings, seed)
        with watched() as propagating:
            trainer.vectors()
        with watched() as training:
            trainer.epoch()
    finally:
        torch.set_num_threads(threads)
    return [
        cost_of("lightgcn graph", "edge", edges, edges, preparing),
        cost_of("lightgcn propagation", "edge", edges, edges, propagating),
        cost_of("lightgcn epoch", "edge", edges, edges, training),
    ]


def kmeans(entities: int, num_groups: int, dim: int, seed: int) -> list[Cost]:
    """Group so many vectors; the number of groups is the same at every size."""
    vectors = synthetic_vectors(entities, dim, num_groups, seed)
    with watched() as grouping:
        clusters = cluster(vectors, num_groups, seed)
    cost = cost_of("kmeans", "entity", entities, entities, grouping)
    cost.facts["groups"] = len(clusters.centroids)
    return [cost]


def prompts(users: int, settings: PromptSettings, seed: int) -> list[Cost]:
    """Ask about so many users; then put them into groups by an attribute."""
    made = synthetic_interactions(users * _EDGES_PER_USER, seed)
    tables, templates = catalog_tables(made), shipped_templates("kar")
    with watched() as asking:
        asked = build_prompts("user", *tables, settings, templates)
    attributes = [dict(pairs) for pairs in tables[0]["attributes"].to_pylist()]
    with watched() as grouping:
        group_by_attributes(attributes, list(attributes[0]), _GROUP_SIZE)
    size = made.num_users
    return [
        cost_of("prompts", "user", size, len(asked), asking),
        cost_of("attribute groups", "user", size, size, grouping),
    ]


def cost_of(
    stage: str, unit: str, size: int, units: int, watch: Watch, left: float | None = None
) -> Cost:
    """What was watched, as the cost of a stage; `left` bytes per unit remain."""
    return Cost(
        stage, unit, size, units, watch.core_seconds, watch.seconds, watch.peak, watch.grown, left
    )
