"""The worker of jobs.generate_knowledge: one model and one engine for as long as a wave lasts."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config import GenerationSettings, RelaxedSettings, RunConfig
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.quality import QualityBudget
from pipeline.engine.rules import (
    Criterion,
    Relaxed,
    Rule,
    Strict,
    TopKDelta,
    TopKFloor,
    Typical,
)
from pipeline.engine.sampling import Sampled, Sampling
from pipeline.engine.stops import Stops
from pipeline.engine.types import Drafter, NoDraft
from pipeline.knowledge import collect, requests_of
from pipeline.language_model import ChatTokenizer, load_model, load_tokenizer, stop_ids_of
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
        self._engine = make_engine(config, self._tokenizer)
        self._engine.use(
            make_drafter(config, pools, self._tokenizer.fingerprint),
            make_rule(rule, config.generation, self._engine.stops),
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


def make_engine(config: RunConfig, tokenizer: ChatTokenizer) -> Engine:
    """Load the configured model into an engine."""
    model = load_model(config.language_model)
    settings, stop_ids = config.generation, stop_ids_of(model)
    stops = Stops(stop_ids, settings.stop_strings, tokenizer.decode_exactly)
    return Engine(model, config.engine, stops, make_processors(settings, stop_ids))


def make_processors(settings: GenerationSettings, stop_ids: frozenset[int]) -> Processors:
    """What every rule and every baseline does to the logits."""
    return Processors(
        stop_ids, settings.repetition_penalty, settings.no_repeat_ngram, settings.min_new_tokens
    )


def make_rule(name: str, settings: GenerationSettings, stops: Stops) -> Rule:
    """`plain` and `strict` verify alike; plain has nothing to verify."""
    if name == "relaxed":
        return Relaxed(make_criterion(settings.relaxed), stops, settings.relaxed.prefer)
    if name == "sampled":
        sampling = settings.sampling
        return Sampled(Sampling(sampling.temperature, sampling.top_k, sampling.top_p))
    return Strict()


def make_criterion(settings: RelaxedSettings) -> Criterion:
    """What the relaxed rule accepts."""
    match settings.criterion:
        case "top_k_floor":
            return TopKFloor(settings.top_k, settings.floor)
        case "top_k_delta":
            return TopKDelta(settings.top_k, settings.delta)
        case "typical":
            return Typical(settings.epsilon, settings.alpha)
        case "budget":
            return QualityBudget(settings.nats_per_token)


def make_drafter(config: RunConfig, pools: Path | None, tokenizer: str) -> Drafter:
    """Drafts from the pools in a folder; without pools there are none: plain decoding."""
    if pools is None:
        return NoDraft()
    return PoolDrafter(PoolSet.open(pools, tokenizer), config.pools.depth)
