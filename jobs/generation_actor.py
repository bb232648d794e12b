"""The worker of jobs.generate_knowledge: one model and one engine for as long as the job lasts."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from transformers import PreTrainedModel

from jobs.isolation import Isolation
from jobs.progress import board_of
from jobs.shared_engine import SharedEngine
from pipeline.config import RunConfig
from pipeline.cost_cache import cost_file, read_costs, write_costs
from pipeline.decoding_config import (
    GenerationSettings,
    LanguageModelSettings,
    RelaxedSettings,
    SamplingSettings,
)
from pipeline.engine.draft_model import DraftModelDrafter
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
from pipeline.engine.statistics import EngineStatistics
from pipeline.engine.stops import Stops
from pipeline.engine.types import Drafter, NoDraft
from pipeline.errors import ModelError
from pipeline.knowledge import collect, requests_of
from pipeline.language_model import ChatTokenizer, load_model, load_tokenizer, stop_ids_of
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.pool_folder import open_pools

log = logging.getLogger("jobs.generation_actor")


class GenerationActor:
    """Built once in a Ray worker; begun for every wave, and called with several blocks at once."""

    def __init__(self, config: RunConfig, threads: int) -> None:
        import torch

        self._config = config
        self._tokenizer = load_tokenizer(config.language_model)
        # Ray would give an actor of one CPU a single thread.
        self._thread = ThreadPoolExecutor(1, "engine", torch.set_num_threads, (threads,))
        self._engine: Engine | None = None

    def begin(self, rule: str, pools: Callable[[], Path] | None, board: str) -> None:
        """Make ready for a wave.

        `pools` finds or fetches their folder here; `board` is the name of a `ProgressBoard`.
        """
        self._board = board_of(board)
        tell = self._board.enter.remote
        folder = pools() if pools else None
        rows = self._thread.submit(self._ready, rule, folder, tell).result()
        self._rows = SharedEngine(rows, self._thread, pulse=self._tell_steps)
        self._told = self._engine_statistics()
        tell("writing the first rows")

    def _ready(self, rule: str, pools: Path | None, tell: Callable[[str], Any]) -> Isolation:
        """The engine, ready for rows; drafts start anew where a step has raised."""
        config, tokenizer = self._config, self._tokenizer
        engine = self._engine = self._engine or make_engine(config, tokenizer, tell)

        def renew() -> None:
            engine.use(NoDraft(), Strict())  # who drafted so far goes first: both may not fit
            engine.use(
                make_drafter(config, engine, rule, pools, tokenizer.fingerprint),
                make_rule(rule, config.generation, engine.stops),
            )

        renew()
        return Isolation(engine, renew)

    async def __call__(self, tasks: pa.Table) -> pa.Table:
        """One row of KNOWLEDGE for every row of PROMPTED, in order."""
        longest = self._config.prompts.max_tokens
        limits = self._config.generation.max_new_tokens, longest
        requests = requests_of(tasks, self._tokenizer, *limits)
        generations = await self._rows.finish(requests)
        # Awaited: who has the last block of a wave shall find all of its steps on the board.
        await self._tell_steps()
        return collect(tasks, generations, self._tokenizer, longest)

    def _tell_steps(self) -> Any:
        """Report what the engine has done since the last time; what comes is there when it is."""
        now = self._engine_statistics()
        before, self._told = self._told, now
        return self._board.step.remote(now.plus(before, -1))

    def _engine_statistics(self) -> EngineStatistics:
        """What the engine has done so far, as it is now."""
        return replace(self._engine.statistics) if self._engine else EngineStatistics()


def make_engine(
    config: RunConfig, tokenizer: ChatTokenizer, tell: Callable[[str], Any] = log.info
) -> Engine:
    """Load the configured model into an engine, and `tell` what is being done."""
    tell("loading the language model")
    model = load_model(config.language_model)
    settings, stop_ids = config.generation, stop_ids_of(model)
    stops = Stops(stop_ids, settings.stop_strings, tokenizer.decode_exactly)
    file = cost_file(model, config.engine)
    costs = read_costs(file)
    if costs is None:  # measured anew for other code too, and so compiled
        tell(
            "compiling kernels and measuring step costs (once per model, batch, length and machine)"
        )
    engine = Engine(model, config.engine, stops, make_processors(settings, stop_ids), costs, tell)
    if costs is None:
        write_costs(file, engine.costs)
    return engine


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
        return Sampled(make_sampling(settings.sampling))
    return Strict()


def make_sampling(settings: SamplingSettings) -> Sampling:
    """What sampled text is drawn from."""
    return Sampling(settings.temperature, settings.top_k, settings.top_p)


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


def make_drafter(
    config: RunConfig, engine: Engine, rule: str, pools: Path | None, tokenizer: str
) -> Drafter:
    """Who drafts for `engine` under a rule; `tokenizer` is the fingerprint of the engine's model.

    A draft model if one is configured, else the pools in a folder; without pools, and under
    `plain`, nobody.

    Raises:
        ModelError: the draft model's tokenizer or vocabulary is another, or it cannot be run.
    """
    if rule == "plain":
        return NoDraft()
    if config.drafts.source == "model":
        return _make_draft_model(config, engine, rule, tokenizer)
    if pools is None:
        return NoDraft()
    return PoolDrafter(open_pools(pools, tokenizer), config.pools.depth, config.drafts.sources)


def _make_draft_model(
    config: RunConfig, engine: Engine, rule: str, tokenizer: str
) -> DraftModelDrafter:
    """Drafts are drawn where the text is, with the same settings; else they are greedy."""
    require_same_tokenizer(config, tokenizer)
    model = _draft_model(draft_model_of(config))  # pyright: ignore[reportArgumentType] (is frozen)
    file = cost_file(model, config.engine)
    costs = read_costs(file)
    drafter = DraftModelDrafter(
        model,
        engine.runner.vocabulary,
        config.drafts.tokens,
        config.engine,
        make_processors(config.generation, engine.stops.ids),
        engine.costs,
        make_sampling(config.generation.sampling) if rule == "sampled" else None,
        costs,
    )
    if costs is None:
        write_costs(file, drafter.costs)
    return drafter


@lru_cache(1)
def _draft_model(settings: LanguageModelSettings) -> PreTrainedModel:
    """Loaded once in a process, whatever wave it drafts in."""
    return load_model(settings)


def require_same_tokenizer(config: RunConfig, tokenizer: str) -> None:
    """Make sure that the draft model's tokens mean what the target's do.

    Raises:
        ModelError: its tokenizer has another fingerprint than `tokenizer`.
    """
    settings = draft_model_of(config)
    if load_tokenizer(settings).fingerprint != tokenizer:
        raise ModelError(
            f"the tokenizer of drafts.model.path {settings.path!r} differs from that of "
            f"language_model.path {config.language_model.path!r} (vocabulary or chat template); "
            "choose a draft model of the same family"
        )


def draft_model_of(config: RunConfig) -> LanguageModelSettings:
    """The configured draft model."""
    assert config.drafts.model is not None, "DraftSettings asks for one where the source is model"
    return config.drafts.model
