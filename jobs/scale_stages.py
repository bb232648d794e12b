"""What one size of each stage costs; see jobs.benchmark_scale."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from jobs.peak_memory import forget_peak, peak_mib, resident_mib
from jobs.pool_task import TOKENIZER, pools_of
from jobs.scale_tables import catalog_tables
from pipeline.config import EmbeddingSettings, PoolSettings, PromptSettings, RunConfig
from pipeline.engine.types import Request
from pipeline.prompts import build_prompts
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.grouping import cluster, group_by_attributes
from retrieval_pools.lightgcn import Trainer
from retrieval_pools.pool import PoolSet
from retrieval_pools.synthetic import SyntheticTexts, synthetic_interactions, synthetic_vectors

LOOKUP_ROWS, LOOKUP_NODES = 64, 32
_LOOKUP_STEPS = 40  # proposals, each after one more token
_PROMPT_SHARE = 0.25  # of a text; the rest is what the row has written so far
_GROUP = "group-0"
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
    tries, began = [measure()], time.perf_counter()
    while len(tries) < _MOST_TRIES and time.perf_counter() - began < _ENOUGH_SECONDS:
        tries.append(measure())
    return [min(costs, key=lambda cost: cost.core_seconds) for costs in zip(*tries, strict=True)]


def one_pool(tokens: int, config: RunConfig, scratch: Path) -> list[Cost]:
    """Build one group's pool of so many tokens, then draft from it."""
    texts = SyntheticTexts(config.seed, config.scale.text_tokens)
    documents = {_GROUP: texts.of_group(0, tokens // config.scale.text_tokens)}
    with watched() as building:
        pools = pools_of(documents, config.pools)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        pools.save(Path(folder), TOKENIZER)
        with watched() as looking:
            times = _lookups(PoolSet.open(Path(folder), TOKENIZER), texts, config.pools)
    size, median = pools.num_tokens, statistics.median(times)
    lookups = Cost(
        *("lookups", "row", size, LOOKUP_ROWS * len(times)),
        *(median * len(times), looking.seconds, looking.peak, looking.grown),
        facts={"milliseconds": median * 1e3, "slowest": max(times) * 1e3},
    )
    return [_cost("one pool", "token", size, size, building, pools.bytes_per_token), lookups]


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
        _cost("lightgcn graph", "edge", edges, edges, preparing),
        _cost("lightgcn propagation", "edge", edges, edges, propagating),
        _cost("lightgcn epoch", "edge", edges, edges, training),
    ]


def kmeans(entities: int, num_groups: int, dim: int, seed: int) -> list[Cost]:
    """Group so many vectors; the number of groups is the same at every size."""
    vectors = synthetic_vectors(entities, dim, num_groups, seed)
    with watched() as grouping:
        clusters = cluster(vectors, num_groups, seed)
    cost = _cost("kmeans", "entity", entities, entities, grouping)
    cost.facts["groups"] = len(clusters.centroids)
    return [cost]


def prompts(users: int, settings: PromptSettings, seed: int) -> list[Cost]:
    """Ask about so many users; then put them into groups by an attribute."""
    made = synthetic_interactions(users * _EDGES_PER_USER, seed)
    tables = catalog_tables(made)
    with watched() as asking:
        asked = build_prompts("user", *tables, settings)
    attributes = [dict(pairs) for pairs in tables[0]["attributes"].to_pylist()]
    with watched() as grouping:
        group_by_attributes(attributes, list(attributes[0]), _GROUP_SIZE)
    size = made.num_users
    return [
        _cost("prompts", "user", size, len(asked), asking),
        _cost("attribute groups", "user", size, size, grouping),
    ]


def _cost(
    stage: str, unit: str, size: int, units: int, watch: Watch, left: float | None = None
) -> Cost:
    return Cost(
        stage, unit, size, units, watch.core_seconds, watch.seconds, watch.peak, watch.grown, left
    )


@dataclass
class _Row:
    """A row in flight, as far as a drafter sees it."""

    request: Request
    tokens: np.ndarray


def _lookups(pools: PoolSet, texts: SyntheticTexts, settings: PoolSettings) -> list[float]:
    """Core seconds of proposals for texts that the pool does not hold, one token further each."""
    drafter = PoolDrafter(pools, settings.depth)
    fresh = texts.of_group(0, LOOKUP_ROWS, part=1)
    length = fresh.shape[1]
    prompt = max(1, int(length * _PROMPT_SHARE))
    rows = [
        _Row(Request(f"row-{number}", text[:prompt], length, _GROUP), text[:prompt])
        for number, text in enumerate(fresh)
    ]
    times = []
    for step in range(_LOOKUP_STEPS):
        for row, text in zip(rows, fresh, strict=True):
            row.tokens = text[: min(prompt + 1 + step, length)]
        began = time.process_time()
        drafter.propose(rows, LOOKUP_NODES)
        times.append(time.process_time() - began)
    return times
