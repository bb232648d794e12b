"""From plain decoding to ours, step by step: what each of them brings.

The first steps draft a fixed number of tokens and verify them all, as speculative decoding does
without a draft budget: as a chain, from more and more texts, then as a tree. Then the budget says
how many drafts pay, and at last the rule is relaxed, if the run relaxes it. Where a model drafts
there is less to take apart. Sampled texts have no arm: their waterfall ends at the strict rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from features.measures import ratio
from jobs.decoding_arms import PLAIN, RELAXED, STRICT, Arm, engine_arm
from jobs.wave_names import has_draft_model
from pipeline.config import RunConfig
from pipeline.decoding_config import RelaxedSettings
from pipeline.engine.budget import FREE
from pipeline.engine.engine import Engine
from pipeline.engine.rules import Relaxed, Strict, TopKFloor
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.fixed_draft import FixedDraft
from retrieval_pools.pool_folder import open_pools

_SIZE = 8  # tokens that a row drafts without a budget; n-gram drafts are about as long elsewhere

_TEXTS = {  # source -> step, and what it drafts from
    "group": ("group pool", "the texts of the row's group"),
    "own": ("own text", "the row's own prompt and output"),
    "global": ("global pool", "the texts of all groups"),
    "previous": ("earlier text", "what the earlier run says of the entity"),
}


@dataclass(frozen=True)
class Step:
    """One bar of the waterfall."""

    step: str
    adds: str
    arm: str  # that measures it
    sources: tuple[str, ...] = ()  # of an arm that the comparison has not anyway
    is_chain: bool = False
    is_budgeted: bool = False
    is_relaxed: bool = False

    @property
    def is_extra(self) -> bool:
        """Whether the comparison has no such arm."""
        return bool(self.sources)


def steps_of(config: RunConfig, has_earlier: bool) -> list[Step]:
    """All steps in order; `has_earlier` tells whether any row has an earlier text."""
    plain = Step("plain", "The model writes one token per forward pass.", PLAIN)
    if has_draft_model(config):
        adds = "A smaller model drafts, as far as that pays for its time."
        return [plain, Step("draft model", adds, STRICT), *_relaxations(config, [])]
    known = [name for name in _TEXTS if name in config.drafts.sources]
    known = [name for name in known if name != "previous" or has_earlier]
    chains = [_chain(known[: number + 1], config) for number in range(len(known))]
    adds = f"The {_size(config)} tokens are a tree, with several guesses for the next token."
    tree = [Step("+ tree", adds, "tree", tuple(known))] if known else []
    instead = f", instead of {_size(config)} always" if known else ""
    adds = (
        f"Of up to {config.engine.draft_nodes} drafts a row, as many are verified as pay for the "
        f"time that they take{instead}."
    )
    budget = Step("+ draft budget", adds, STRICT)
    return [plain, *chains, *tree, budget, *_relaxations(config, known)]


def _chain(sources: Sequence[str], config: RunConfig) -> Step:
    """One chain, from one source more than the step before."""
    name, texts = _TEXTS[sources[-1]]
    first = f"Each step drafts {_size(config)} tokens, one after the other, from {texts}."
    is_first = len(sources) == 1
    return Step(
        name if is_first else f"+ {name}",
        first if is_first else f"Drafts come from {texts}, too.",
        f"chain from {', '.join(sources)}",
        tuple(sources),
        is_chain=True,
    )


def _size(config: RunConfig) -> int:
    """Tokens that a row drafts in a step without a budget."""
    return min(_SIZE, config.engine.draft_nodes)


def _relaxations(config: RunConfig, sources: Sequence[str]) -> list[Step]:
    """The relaxed rule, of a run that relaxes; a quality budget comes after a rule without one."""
    settings = config.generation.relaxed
    if config.generation.rule != RELAXED:
        return []
    if settings.criterion != "budget" or not sources:
        return [_relaxed(settings)]
    first = _relaxed(settings.model_copy(update={"criterion": "top_k_floor"}))
    extra = Step(
        *(first.step, first.adds, "relaxed without a budget"),
        tuple(sources),
        is_budgeted=True,
        is_relaxed=True,
    )
    budget = _relaxed(settings)
    return [
        extra,
        replace(budget, adds=f"Instead of that rule: {budget.adds[0].lower()}{budget.adds[1:]}"),
    ]


def _relaxed(settings: RelaxedSettings) -> Step:
    """The relaxed rule as it is set."""
    k, stays = settings.top_k, "A drafted token stays also if it is"
    step, adds = {
        "top_k_floor": (
            f"+ relaxed (k {k}, p {settings.floor:g})",
            f"{stays} one of the {k} most probable and has a probability of {settings.floor:g} "
            "or more.",
        ),
        "top_k_delta": (
            f"+ relaxed (k {k}, delta {settings.delta:g})",
            f"{stays} one of the {k} most probable, and less probable than the first by "
            f"{settings.delta:g} or less.",
        ),
        "typical": (
            f"+ relaxed (typical, {settings.epsilon:g})",
            f"{stays} probable enough for how certain the model is.",
        ),
        "budget": (
            f"+ quality budget ({settings.nats_per_token:g} nats)",
            f"{stays} less probable, while that costs {settings.nats_per_token:g} nats per token "
            "on average or less.",
        ),
    }[settings.criterion]
    return Step(step, adds, RELAXED)


def extra_arms(
    config: RunConfig, engine: Engine, pools: Path, tokenizer: str, steps: Sequence[Step]
) -> dict[str, Arm]:
    """Arms of `engine` for the steps that the comparison has none for.

    `engine.costs` must be as they were measured, and are again when all arms are made.
    """
    extra = [step for step in steps if step.is_extra]
    frozen = open_pools(pools, tokenizer) if extra else None
    measured, arms, settings = engine.costs, {}, config.generation.relaxed
    for step in extra:
        drafter = PoolDrafter(frozen, config.pools.depth, step.sources)
        criterion = TopKFloor(settings.top_k, settings.floor)
        rule = Relaxed(criterion, engine.stops, settings.prefer) if step.is_relaxed else Strict()
        engine.costs = measured.copy()
        arms[step.arm] = engine_arm(
            engine,
            drafter if step.is_budgeted else FixedDraft(drafter, _size(config), step.is_chain),
            rule,
            None if step.is_budgeted else FREE,
        )
    engine.costs = measured
    return arms


def waterfall(
    steps: Sequence[Step], measured: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The steps with their speeds; `measured` has each arm's, of all kinds together.

    Where plain decoding wrote nothing there is no ratio to it.
    """
    plain = measured[PLAIN]["tokens_per_second"]
    return [
        {
            "step": step.step,
            "adds": step.adds,
            "tokens_per_second": measured[step.arm]["tokens_per_second"],
            "ratio_to_plain": ratio(measured[step.arm]["tokens_per_second"], plain),
            "tokens_per_forward": measured[step.arm]["tokens_per_forward"],
        }
        for step in steps
    ]
