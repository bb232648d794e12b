"""The worker of jobs.generate_knowledge: one model and one engine for as long as a wave lasts."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config import GenerationSettings, RunConfig
from pipeline.engine.engine import Engine
from pipeline.engine.types import Drafter, NoDraft
from pipeline.engine.verify import Relaxed, Rule, Strict
from pipeline.knowledge import collect, requests_of
from pipeline.language_model import load_model, load_tokenizer, stop_ids_of
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.pool import PoolSet


class GenerationActor:
    """Built once in a Ray worker, then called with one block of TASKS after another."""

    def __init__(
        self, config: RunConfig, rule: str, pools: Path | None, threads: int, board: Any
    ) -> None:
        import torch

        torch.set_num_threads(threads)  # Ray would give an actor of one CPU a single thread
        self._config = config
        self._tokenizer = load_tokenizer(config.language_model)
        self._board = board
        self._engine = make_engine(config)
        self._engine.use(
            make_drafter(config, pools, self._tokenizer.fingerprint),
            make_rule(rule, config.generation, self._engine.stop_ids),
        )

    def __call__(self, tasks: pa.Table) -> pa.Table:
        """One row of KNOWLEDGE for every task, in order."""
        longest = self._config.prompts.max_tokens
        requests = requests_of(tasks, self._config.generation.max_new_tokens, longest)
        generations = []
        for generation in self._engine.generate(requests):
            generations.append(generation)
            passes = generation.statistics.forward_passes
            self._board.add.remote(1, len(generation.token_ids), passes)
        return collect(tasks, generations, self._tokenizer, longest)


def make_engine(config: RunConfig) -> Engine:
    """Load the configured model into an engine."""
    model = load_model(config.language_model)
    return Engine(model, config.engine, stop_ids_of(model), config.generation.repetition_penalty)


def make_rule(name: str, settings: GenerationSettings, stop_ids: frozenset[int]) -> Rule:
    """`plain` and `strict` verify alike; plain has nothing to verify."""
    if name == "relaxed":
        return Relaxed(settings.relaxed.top_k, settings.relaxed.floor, stop_ids)
    return Strict()


def make_drafter(config: RunConfig, pools: Path | None, tokenizer: str) -> Drafter:
    """Drafts from the pools in a folder; without pools there are none: plain decoding."""
    if pools is None:
        return NoDraft()
    return PoolDrafter(PoolSet.open(pools, tokenizer), config.pools.depth)
