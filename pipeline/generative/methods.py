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

from pipeline.generative.beam_engine import BeamEngine, Found
from pipeline.generative.drafters import Drafter, ExhaustiveDraft, NoDraft, Requests
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.recommender import Recommender
from pipeline.generative.trie_tensors import TrieTensors
from pipeline.generative.verification import Rule, StrictTopK
from pipeline.generative_config import RecommendationSettings


class Answer(NamedTuple):
    """What a method found for a batch of users."""

    found: Found
    rounds: torch.Tensor  # (users,) int64
    # (users, k) int64, place in LIST_SOURCES of everything found; None: all are beams.
    sources: torch.Tensor | None = None
    # Of every user why the search ended; None: when all ids were complete.
    exit_reasons: list[str] | None = None


Search = Callable[[Requests], Answer]


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


METHODS: dict[str, Method] = {
    # The model's own beam search, a level a call.
    "beam": Method(lambda parts: verified(parts, NoDraft(), StrictTopK())),
    # The same lists in fewer calls: whole levels of the trie are drafted where they are small.
    "exhaustive": Method(
        lambda parts: verified(parts, ExhaustiveDraft(parts.settings.draft_nodes), StrictTopK())
    ),
}
