"""What pools cost at one size, to build and to look up; see jobs.benchmark_scale."""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.build_pools import pool_knowledge
from jobs.scale_stages import Cost, cost_of, watched
from jobs.scale_tables import knowledge_table
from pipeline.config import PoolSettings, RunConfig, ScaleSettings
from pipeline.engine.row import Row
from pipeline.engine.stops import Stops
from pipeline.engine.types import Request
from pipeline.errors import DataError
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.pool import PoolSet
from retrieval_pools.pool_folder import open_pools, save_pools
from retrieval_pools.suffix_array import SEPARATOR
from retrieval_pools.synthetic import SyntheticTexts

LOOKUP_ROWS, LOOKUP_NODES = 64, 32
_LOOKUP_STEPS = 40  # proposals, each after one more token
_PROMPT_SHARE = 0.25  # of a text; the rest is what the row has written so far
_TOKENIZER = "synthetic"


def pools(groups: int, config: RunConfig, scratch: Path) -> list[Cost]:
    """From KNOWLEDGE to pools of so many groups in a folder, as jobs.build_pools does it."""
    texts = SyntheticTexts(config.seed, config.scale.text_tokens)
    knowledge = _knowledge(texts, groups, config.scale.texts_per_group)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        with watched() as building:
            built, _ = pool_knowledge(knowledge, config.pools)
            save_pools(built, Path(folder), _TOKENIZER)
        stored = open_pools(Path(folder), _TOKENIZER)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    tokens = require_all(stored, groups, config.scale)
    cost = cost_of("pools", "token", tokens, tokens, building, size / tokens)
    in_global = int(np.count_nonzero(stored.tokens[stored.global_suffixes] == SEPARATOR))
    cost.facts.update(groups=groups, documents=stored.num_documents, in_global=in_global)
    return [cost]


def lookups(tokens: int, config: RunConfig, scratch: Path) -> list[Cost]:
    """Draft from one group's pool of so many tokens."""
    texts = SyntheticTexts(config.seed, config.scale.text_tokens)
    knowledge = _knowledge(texts, 1, tokens // config.scale.text_tokens)
    built, _ = pool_knowledge(knowledge, config.pools)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        save_pools(built, Path(folder), _TOKENIZER)
        pools = open_pools(Path(folder), _TOKENIZER)
        with watched() as looking:
            times = _times(pools, texts, config.pools)
    cost = cost_of("lookups", "row", built.num_tokens, LOOKUP_ROWS * len(times), looking)
    median, slowest = statistics.median(times) * 1e3, max(times) * 1e3
    cost.facts.update(milliseconds=median, slowest=slowest)
    return [cost]


def require_all(pools: PoolSet, groups: int, scale: ScaleSettings) -> int:
    """Tokens in the pools of all groups, none of which may be missing; the global one is bounded.

    Raises:
        DataError: texts are missing.
    """
    wanted = groups * scale.texts_per_group
    if (pools.num_documents, pools.num_tokens) != (wanted, wanted * scale.text_tokens):
        raise DataError(
            f"{wanted} texts of {scale.text_tokens} tokens were made, the pools hold "
            f"{pools.num_documents} with {pools.num_tokens} tokens; raise pools.max_bytes, or "
            "lower scale.texts_per_group"
        )
    return pools.num_tokens


def _knowledge(texts: SyntheticTexts, groups: int, count: int) -> pa.Table:
    """KNOWLEDGE of `count` texts in every group."""
    made = np.concatenate([texts.of_group(group, count) for group in range(groups)])
    return knowledge_table(made, count)


def _times(pools: PoolSet, texts: SyntheticTexts, settings: PoolSettings) -> list[float]:
    """Seconds of proposals for texts that the pool does not hold, one token further each."""
    drafter = PoolDrafter(pools, settings.depth)
    (group,) = pools.groups
    fresh = texts.of_group(0, LOOKUP_ROWS, part=1)
    length = fresh.shape[1]
    prompt = max(1, int(length * _PROMPT_SHARE))
    rows = [
        Row(Request(f"row-{number}", text[:prompt], length, group), slot=0)
        for number, text in enumerate(fresh)
    ]
    never, times = Stops([]), []
    for step in range(min(_LOOKUP_STEPS, length - prompt)):
        for row, text in zip(rows, fresh, strict=True):
            row.append(int(text[prompt + step]), never)
        began = time.perf_counter()
        drafter.propose(rows, LOOKUP_NODES)
        times.append(time.perf_counter() - began)
    return times
