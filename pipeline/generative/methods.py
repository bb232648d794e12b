"""Ways to recommend, by the name that `recommendation.method` gives them; each is one entry here.

A method is a drafter and a rule. Whatever it needs besides the recommender it reads from datasets
of the run, which it names, so that lists are made anew when these change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pipeline.errors import ConfigError
from pipeline.generative.beam_engine import BeamEngine, Found
from pipeline.generative.common_noise import CommonNoise
from pipeline.generative.drafters import Drafter, ExhaustiveDraft, NoDraft, Requests
from pipeline.generative.head_beams import HeadBeams
from pipeline.generative.head_draft import HeadDraft
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.placeholder_head import PlaceholderHead, load_placeholder_head
from pipeline.generative.recommender import Recommender, load_recommender
from pipeline.generative.retriever import ContentTower, EncoderTower, Retriever, load_retriever
from pipeline.generative.retriever_draft import RetrieverDraft
from pipeline.generative.retriever_leaves import leaves_of
from pipeline.generative.sampling import Sampling
from pipeline.generative.small_model_draft import SmallModelDraft
from pipeline.generative.threshold_engine import ENOUGH, LEVELS, ThresholdEngine
from pipeline.generative.trie_tensors import TrieTensors
from pipeline.generative.union_draft import UnionDraft
from pipeline.generative.verification import Rule, StrictTopK
from pipeline.generative_config import RecommendationSettings
from pipeline.schemas import LIST_SOURCES


class Answer(NamedTuple):
    """What a method found for a batch of users."""

    found: Found
    rounds: torch.Tensor  # (users,) int64
    # (users, k) int64, place in LIST_SOURCES of everything found; None: all are beams.
    sources: torch.Tensor | None = None
    # Of every user why the search ended; None: when all ids were complete.
    exit_reasons: list[str] | None = None


Search = Callable[[Requests], Answer]
_DRAFTER, _RETRIEVER = "aligned_drafter", "retriever"
_EXITS = {ENOUGH: "enough", LEVELS: "levels"}


@dataclass(frozen=True)
class Parts:
    """What a method may be made of."""

    model: Recommender
    items: ItemTrie  # that may be recommended; items are rows of `codes`
    trie: TrieTensors  # the same on the model's device
    codes: np.ndarray  # (items, levels) int32, of all items that have an id
    settings: RecommendationSettings
    folder_of: Callable[[str], Path]  # of a dataset of the run that the method names


class Method(NamedTuple):
    """One way."""

    begin: Callable[[Parts], Search]
    datasets: tuple[str, ...] = ()  # besides `recommender` and `semantic_ids`


def verified(parts: Parts, drafter: Drafter, rule: Rule) -> Search:
    """Beams drafted by one and chosen by the other; every round is a call that verifies."""
    engine = BeamEngine(parts.model, parts.trie, drafter, rule, parts.settings.beams)

    def search(requests: Requests) -> Answer:
        found = engine.search(requests)
        return Answer(found, parts.trie.levels - found.accepted)  # the others cost a round each

    return search


def searched_by_head(parts: Parts) -> Search:
    """Beams of the draft head alone; without the constraint, what is no item is left out."""
    beams = HeadBeams(parts.model, _head(parts), parts.trie, parts.settings.beams)

    def search(requests: Requests) -> Answer:
        found = beams.search(requests)
        return Answer(found, torch.ones_like(found.calls))

    return search


def accepted_by_threshold(parts: Parts, model: Recommender, retriever: Retriever) -> Search:
    """Items that the retriever drafts and `model` accepts; the list is filled up with others."""
    own = parts.settings
    width = own.beams if own.specgr.cold_only else own.top_k
    leaves = leaves_of(parts.items, model.device)
    engine = ThresholdEngine(model, parts.trie, leaves, retriever, own.specgr, width)
    filled = LIST_SOURCES.index("beam" if own.specgr.cold_only else "filled")

    def search(requests: Requests) -> Answer:
        listed = engine.search(requests)
        scores = listed.scores * model.levels  # as if they were sums
        found = Found(
            listed.codes, listed.nodes, scores, listed.calls, listed.scored, listed.accepted
        )
        sources = torch.where(listed.is_accepted, LIST_SOURCES.index("accepted"), filled)
        reasons = [_EXITS[reason] for reason in listed.exit.tolist()]
        return Answer(found, listed.rounds, sources, reasons)

    return search


def _specgr(parts: Parts) -> Search:
    retriever = _retriever(parts, ContentTower, "content")
    return accepted_by_threshold(parts, parts.model, retriever)


def _specgr_plus(parts: Parts) -> Search:
    retriever = _retriever(parts, EncoderTower, "encoder")
    folder = parts.folder_of(_RETRIEVER) / "recommender"
    return accepted_by_threshold(parts, load_recommender(folder, parts.model.device), retriever)


def _retriever(parts: Parts, wanted: type, name: str) -> Retriever:
    """The run's retriever; each tower goes with one recommender.

    Raises:
        ConfigError: it is of the other kind.
    """
    retriever = load_retriever(parts.folder_of(_RETRIEVER), parts.model.device)
    if not isinstance(retriever.tower, wanted):
        raise ConfigError(
            f"recommendation.method {parts.settings.method} needs a retriever of retriever.tower "
            f"{name}; set both and run `laser retriever` again"
        )
    return retriever


def _exhaustive(parts: Parts) -> Drafter:
    return ExhaustiveDraft(parts.settings.draft_nodes)


def _head(parts: Parts) -> PlaceholderHead:
    return load_placeholder_head(parts.folder_of("recommender") / "head", parts.model.device)


def _head_draft(parts: Parts) -> Drafter:
    return HeadDraft(_head(parts), parts.settings.draft_beams)


def _retriever_draft(parts: Parts) -> Drafter:
    retriever = _retriever(parts, ContentTower, "content")
    leaves = leaves_of(parts.items, parts.model.device)
    return RetrieverDraft(retriever, leaves, parts.settings.specgr.drafted)


def _small_model(parts: Parts, rule: Rule, kept: int | None = None) -> Search:
    model = load_recommender(parts.folder_of(_DRAFTER) / "drafter", parts.model.device)
    draft = SmallModelDraft(model, parts.settings.draft_beams, rule=rule, kept=kept)
    return verified(parts, draft, rule)


def _sampled(parts: Parts, drafter: Drafter) -> Search:
    return verified(parts, drafter, CommonNoise(parts.settings.temperature))


def _sampled_drafts(parts: Parts) -> Search:
    own = parts.settings
    return _small_model(parts, CommonNoise(own.temperature), own.beams)


def _sampled_head_draft(parts: Parts) -> Search:
    own, rule = parts.settings, CommonNoise(parts.settings.temperature)
    return verified(
        parts, HeadDraft(_head(parts), own.draft_beams, rule=rule, kept=own.beams), rule
    )


METHODS: dict[str, Method] = {
    # The model's own beam search, a level a call.
    "beam": Method(lambda parts: verified(parts, NoDraft(), StrictTopK())),
    # The same lists in fewer calls: whole levels of the trie are drafted where they are small.
    "exhaustive": Method(lambda parts: verified(parts, _exhaustive(parts), StrictTopK())),
    # The same, drafted by a small model that was trained to foretell the beams (AtSpeed-S).
    "atspeed_s": Method(lambda parts: _small_model(parts, StrictTopK()), (_DRAFTER,)),
    # The same, drafted by NEZHA's head: no second model, and no list changes.
    "head_draft": Method(lambda parts: verified(parts, _head_draft(parts), StrictTopK())),
    "head_and_exhaustive": Method(
        lambda parts: verified(
            parts, UnionDraft([_head_draft(parts), _exhaustive(parts)]), StrictTopK()
        )
    ),
    # The same, drafted as whole items by the retriever that reads the recommender's own states.
    "retriever_draft": Method(
        lambda parts: verified(parts, _retriever_draft(parts), StrictTopK()), (_RETRIEVER,)
    ),
    # Beams drawn by their probabilities, a level a call.
    "sampled_beam": Method(lambda parts: _sampled(parts, NoDraft())),
    # The same lists in fewer calls: whole levels of the trie are drafted where they are small.
    "sampled_exhaustive": Method(lambda parts: _sampled(parts, _exhaustive(parts))),
    # The same lists: drafted by the noise that beams are drawn by too.
    "sampled_drafts": Method(_sampled_drafts, (_DRAFTER,)),
    "sampled_head_draft": Method(_sampled_head_draft),
    # As published, for comparison (AtSpeed-R): with more drafted than kept its lists are not those
    # of sampling. `sampled_drafts` is the exact one.
    "atspeed_r": Method(
        lambda parts: _small_model(parts, Sampling(parts.settings.temperature)), (_DRAFTER,)
    ),
    # NEZHA: one call of the model, all beams by its head.
    "nezha": Method(searched_by_head),
    # Items drafted whole, new ones too, and accepted if likely enough (SpecGR, SpecGR++).
    "specgr": Method(_specgr, (_RETRIEVER,)),
    "specgr_plus": Method(_specgr_plus, (_RETRIEVER,)),
}
