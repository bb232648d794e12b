"""The ways to recommend that `make bench-generative` holds against each other.

All have the same recommender, beams, constraint and shared keys and values of histories; SpecGR
drafts as many items a round as it has beams, and 50 at least. SpecGR++ has the recommender that its
training makes of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jobs.generative_measurement import Ready
from jobs.generative_summary import BASE
from jobs.train_recommender import DATASET, MODEL, Inputs
from pipeline.config import RunConfig
from pipeline.generative.devices import device_named
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.methods import METHODS, Parts
from pipeline.generative.recommender import load_recommender
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative_config import RecommendationSettings
from pipeline.store import Store

SFT, ALIGNED_S, ALIGNED_R = (
    f"drafters/{loss}/aligned_drafter" for loss in ("sft", "atspeed_s", "atspeed_r")
)
CONTENT, ENCODER = (f"retrievers/{tower}/retriever" for tower in ("content", "encoder"))


@dataclass(frozen=True)
class Arm:
    """One way."""

    method: str  # of `pipeline.generative.methods`
    changes: Mapping[str, Any] = field(default_factory=dict)  # of `recommendation`
    reads: str = ""  # dataset that stands in for the run's own drafter or retriever
    same_as: str = ""  # arm whose lists are to be its own, to the last item


ARMS = {
    "beam": Arm("beam"),
    "exhaustive": Arm("exhaustive", same_as=BASE),
    "small model": Arm("atspeed_s", reads=SFT, same_as=BASE),
    "AtSpeed-S": Arm("atspeed_s", reads=ALIGNED_S, same_as=BASE),
    "head drafts": Arm("head_draft", same_as=BASE),
    "head + exhaustive": Arm("head_and_exhaustive", same_as=BASE),
    "retriever drafts": Arm("retriever_draft", reads=CONTENT, same_as=BASE),
    "sampled beam": Arm("sampled_beam"),
    "sampled drafts": Arm("sampled_drafts", reads=ALIGNED_S, same_as="sampled beam"),
    "AtSpeed-R": Arm("atspeed_r", reads=ALIGNED_R),
    "NEZHA": Arm("nezha"),
    "SpecGR": Arm("specgr", reads=CONTENT),
    "SpecGR, cold only": Arm("specgr", {"specgr": {"cold_only": True}}, reads=CONTENT),
    "SpecGR++": Arm("specgr_plus", reads=ENCODER),
}
FREE = {
    "beam, free": Arm("beam", {"constrained": False}),
    "NEZHA, free": Arm("nezha", {"constrained": False}),
}


class Workshop:
    """Makes arms ready: all of a run's models on one device."""

    def __init__(self, config: RunConfig, store: Store, inputs: Inputs) -> None:
        """Inputs are those that the models were trained on."""
        device = device_named(config.recommendation.device)
        self._config, self._files, self._inputs = config, store.files, inputs
        self.model = load_recommender(self._files.local(DATASET) / MODEL, device)
        self.items = ItemTrie(np.arange(len(inputs.codes)), inputs.codes, inputs.is_warm)

    def ready(self, arm: Arm, width: int) -> Ready:
        """An arm with `width` beams and lists of as many items."""
        settings = self.settings(arm, width)
        model = self.model
        parts = Parts(
            model,
            self.items,
            trie_tensors(self.items, model.num_codes, model.device, settings.constrained),
            self._inputs.codes,
            settings,
            lambda name: self._files.local(name if name == DATASET else arm.reads),
        )
        return Ready(METHODS[arm.method].begin(parts), model, settings.constrained)

    def settings(self, arm: Arm, width: int) -> RecommendationSettings:
        """Of an arm; twice as many beams are drafted as are kept, and 40 at least."""
        own = self._config.recommendation
        plain: dict[str, Any] = own.model_dump()
        plain |= {"method": arm.method, "beams": width, "top_k": width}
        plain |= {"draft_beams": max(own.draft_beams, 2 * width)}
        plain |= {"draft_nodes": max(own.draft_nodes, 6 * width)}
        plain["specgr"] |= {"beams": width, "drafted": max(own.specgr.drafted, width)}
        for key, value in arm.changes.items():
            plain[key] = plain[key] | value if isinstance(value, dict) else value
        return RecommendationSettings.model_validate(plain)
