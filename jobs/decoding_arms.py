"""The arms of decoding that measurements compare: each takes rows, and gives texts and times.

Every run of an arm pays for its own prefill. What an arm learns (which drafts are accepted, what a
step costs) it keeps from run to run, as a long job would.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from jobs.generation_actor import make_drafter, make_processors, make_rule
from pipeline.config import RunConfig
from pipeline.decoding_config import DraftSettings
from pipeline.divergence import Divergence, first_divergences
from pipeline.engine.budget import FREE, CostTable
from pipeline.engine.draft_model import DraftModelDrafter
from pipeline.engine.engine import Engine
from pipeline.engine.quality import QualityBudget
from pipeline.engine.rules import Relaxed, Rule, Strict, TopKFloor
from pipeline.engine.statistics import EngineStatistics
from pipeline.engine.stops import Stops
from pipeline.engine.types import Drafter, Generation, Request
from pipeline.errors import DataError
from pipeline.language_model import ChatTokenizer, stop_ids_of
from pipeline.reference_decoding import transformers_generate
from retrieval_pools.pool_folder import open_pools
from retrieval_pools.published import PublishedDrafter

TRANSFORMERS = "transformers.generate"
PROMPT_LOOKUP = "prompt_lookup"
PLAIN, RESD, PUBLISHED, STRICT, RELAXED = "plain", "resd", "published", "strict", "relaxed"
BUDGET = "budget"
DRAFT_MODEL = "draft_model"

_LOOP = 8  # a row that repeats an n-gram of this length loops
_LOOKUP_TOKENS = 10  # that prompt lookup drafts, as in its author's examples
_PUNCTUATION = (",", ".", " ", "\n", "\uff0c")  # LASER's code never looks them up alone


@dataclass(frozen=True)
class Outcome:
    """One arm on one set of rows."""

    seconds: float
    texts: Mapping[str, np.ndarray]  # request key -> output ids
    passes: Mapping[str, int]  # request key -> forward passes that the row took part in
    generations: Mapping[str, Generation]  # of engine arms
    statistics: EngineStatistics  # zeros for other arms

    @property
    def num_tokens(self) -> int:
        """New tokens of all rows."""
        return sum(map(len, self.texts.values()))

    @property
    def num_passes(self) -> int:
        """Forward passes, summed over rows."""
        return sum(self.passes.values())

    @property
    def looping(self) -> frozenset[str]:
        """Keys of the rows whose text runs in circles."""
        return frozenset(key for key, text in self.texts.items() if loops(text))


Arm = Callable[[Sequence[Request]], Outcome]


def loops(text: np.ndarray) -> bool:
    """Whether an n-gram of `_LOOP` tokens occurs twice."""
    grams = [tuple(text[start : start + _LOOP]) for start in range(len(text) - _LOOP + 1)]
    return len(set(grams)) < len(grams)


def rows_unlike(own: Sequence[Outcome], plain: Sequence[Outcome]) -> int:
    """Rows whose text is another than plain decoding's; one of several outcomes counts in each."""
    return sum(len(keys_unlike([one], [other])) for one, other in zip(own, plain, strict=True))


def keys_unlike(own: Sequence[Outcome], plain: Sequence[Outcome]) -> frozenset[str]:
    """Keys of the rows whose text is another than plain decoding's in any of several outcomes."""
    return frozenset(
        key
        for outcome, other in zip(own, plain, strict=True)
        for key, text in outcome.texts.items()
        if not np.array_equal(text, other.texts[key])
    )


def leaves_plain(
    outcome: Outcome,
    plain: Outcome,
    requests: Sequence[Request],
    reference: PreTrainedModel,
    config: RunConfig,
) -> list[Divergence]:
    """Where greedy texts of an arm leave those of plain decoding, and by which gap of logits.

    `reference` is a model that no engine has taken over.
    """
    processors = make_processors(config.generation, stop_ids_of(reference))
    compared = [request for request in requests if request.key in outcome.texts]
    found = first_divergences(reference, compared, plain.texts, outcome.texts, processors)
    return [replace(one, gap=abs(one.gap)) for one in found]


def transformers_arm(
    model: PreTrainedModel, config: RunConfig, tokenizer: ChatTokenizer, batch_rows: int
) -> Arm:
    """`generate` over left-padded batches."""
    processors = make_processors(config.generation, stop_ids_of(model))
    options = _stop_options(config, tokenizer)

    def run(requests: Sequence[Request]) -> Outcome:
        began = time.perf_counter()
        texts = transformers_generate(model, requests, batch_rows, processors, **options)
        seconds = time.perf_counter() - began
        passes = {key: len(text) for key, text in texts.items()}
        return Outcome(seconds, texts, passes, {}, EngineStatistics())

    return run


def prompt_lookup_arm(model: PreTrainedModel, config: RunConfig, tokenizer: ChatTokenizer) -> Arm:
    """`generate` with drafts from the row's own text; it takes one row at a time."""
    processors = make_processors(config.generation, stop_ids_of(model))
    options = _stop_options(config, tokenizer) | {"prompt_lookup_num_tokens": _LOOKUP_TOKENS}

    def run(requests: Sequence[Request]) -> Outcome:
        texts: dict[str, np.ndarray] = {}
        passes: dict[str, int] = {}
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        handle = model.register_forward_pre_hook(count)
        began = time.perf_counter()
        for request in requests:
            before = calls
            texts |= transformers_generate(model, [request], 1, processors, **options)
            passes[request.key] = calls - before
        seconds = time.perf_counter() - began
        handle.remove()
        return Outcome(seconds, texts, passes, {}, EngineStatistics())

    return run


def _stop_options(config: RunConfig, tokenizer: ChatTokenizer) -> dict[str, object]:
    strings = config.generation.stop_strings
    return {"stop_strings": strings, "tokenizer": tokenizer.tokenizer} if strings else {}


def engine_arm(engine: Engine, drafter: Drafter, rule: Rule, costs: CostTable | None = None) -> Arm:
    """This engine; with `costs` for the draft budget to reckon with, the engine's unless given.

    What the engine's own costs are now belongs to this arm, and is refined in its runs only.

    Raises (when run):
        DataError: the engine refuses a row.
    """
    learned = engine.costs

    def run(requests: Sequence[Request]) -> Outcome:
        engine.costs = learned
        engine.use(drafter, rule, costs)
        if isinstance(drafter, DraftModelDrafter):
            drafter.forget()  # it pays for its own prefill too
        engine.statistics = EngineStatistics()
        began = time.perf_counter()
        generations = {done.key: done for done in engine.generate(requests)}
        seconds = time.perf_counter() - began
        _require_all(generations)
        return Outcome(
            seconds,
            {key: done.token_ids for key, done in generations.items()},
            {key: done.statistics.forward_passes for key, done in generations.items()},
            generations,
            engine.statistics,
        )

    return run


def _require_all(generations: Mapping[str, Generation]) -> None:
    for done in generations.values():
        if done.error:
            raise DataError(f"row {done.key} cannot be measured: {done.error}")


def pool_drafters(
    config: RunConfig, engine: Engine, pools: Path, tokenizer: ChatTokenizer
) -> dict[str, Drafter]:
    """Who drafts from pools, by arm; `engine` may be any with the configured model."""
    from_pools = drafting_from_pools(config)
    frozen = open_pools(pools, tokenizer.fingerprint)
    stop_words = _single_tokens(tokenizer)
    return {
        RESD: PublishedDrafter(frozen, "global", stop_words),
        PUBLISHED: PublishedDrafter(frozen, "group", stop_words),
    } | {
        name: make_drafter(from_pools, engine, name, pools, tokenizer.fingerprint)
        for name in (PLAIN, STRICT, RELAXED, BUDGET)
    }


def drafting_from_pools(config: RunConfig) -> RunConfig:
    """The config with pools as drafters, whoever drafts in the run."""
    return config.model_copy(update={"drafts": DraftSettings(sources=config.drafts.sources)})


def _single_tokens(tokenizer: ChatTokenizer) -> list[int]:
    """Ids of the punctuation that is one token."""
    encoded = [tokenizer.encode_exactly(mark).tolist() for mark in _PUNCTUATION]
    return [ids[0] for ids in encoded if len(ids) == 1]


def own_rules(config: RunConfig, stops: Stops) -> dict[str, Rule]:
    """The rules that measurements hold against each other, by arm; a budget learns, so anew."""
    return {
        STRICT: Strict(),
        RELAXED: make_rule(RELAXED, config.generation, stops),
        BUDGET: Relaxed(QualityBudget(config.generation.relaxed.nats_per_token), stops),
    }


def engine_arms(
    engine: Engine, config: RunConfig, drafters: Mapping[str, Drafter]
) -> dict[str, Arm]:
    """One arm of `engine` for each of the `drafters`, by name.

    ReSD and LASER as published verify all they draft, so to their budget nodes cost nothing; and
    in LASER's code a token that ends a row is relaxed like any other.
    """
    rules = own_rules(config, engine.stops)
    rules[PUBLISHED] = Relaxed(TopKFloor(2, 0.1), Stops([]), prefer="longest")
    measured, arms = engine.costs, {}
    for name, drafter in drafters.items():
        # A draft model reckons with the table it was given, so that one goes on being refined.
        engine.costs = measured if name == DRAFT_MODEL else measured.copy()
        free = FREE if name in (RESD, PUBLISHED) else None
        arms[name] = engine_arm(engine, drafter, rules.get(name, Strict()), free)
    return arms
