"""The worker of jobs.benchmark_scale: pools of made-up texts, built and stored for some groups.

It lives outside the job, which is `__main__` when it runs and cannot be imported by a worker.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jobs.peak_memory import forget_peak, peak_mib, resident_mib
from pipeline.config import PoolSettings, ScaleSettings
from retrieval_pools.document import Document
from retrieval_pools.pool import PoolSet, build_pools
from retrieval_pools.synthetic import SyntheticTexts

TOKENIZER = "synthetic"


@dataclass(frozen=True)
class Built:
    """What one task has done."""

    process: int
    documents: int  # as read back from the folder
    tokens: int
    stored: int  # bytes of the folder
    making: float  # core seconds, of the texts
    building: float  # core seconds
    storing: float  # core seconds
    peak: float  # MiB resident
    grown: float  # of the peak, above what was resident before


def build_slice(
    groups: range, folder: Path, scale: ScaleSettings, pools: PoolSettings, seed: int
) -> Built:
    """Make the texts of some groups, build their pools, store them in `folder`, look at them."""
    forget_peak()
    before = resident_mib()
    clock = [time.process_time()]
    texts = SyntheticTexts(seed, scale.text_tokens)
    documents = {f"group-{n}": texts.of_group(n, scale.texts_per_group) for n in groups}
    clock.append(time.process_time())
    built = pools_of(documents, pools)
    clock.append(time.process_time())
    folder.mkdir(parents=True)
    built.save(folder, TOKENIZER)
    clock.append(time.process_time())
    making, building, storing = np.diff(clock).tolist()
    stored = PoolSet.open(folder, TOKENIZER)
    peak = peak_mib()
    return Built(
        os.getpid(),
        stored.num_documents,
        stored.num_tokens,
        sum(file.stat().st_size for file in folder.iterdir()),
        making,
        building,
        storing,
        peak,
        peak - before,
    )


def pools_of(texts: Mapping[str, np.ndarray], settings: PoolSettings) -> PoolSet:
    """Pools of groups whose texts are the rows of an array; every second text was relaxed."""
    documents = {
        group: [Document(row, is_relaxed=number % 2 == 1) for number, row in enumerate(rows)]
        for group, rows in texts.items()
    }
    return build_pools(documents, settings.depth, settings.max_bytes)
