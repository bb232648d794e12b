"""How long stages will take, by how long they took: linear in what drives each of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.config import RunConfig
from pipeline.errors import UserError
from pipeline.language_model import model_fingerprint
from pipeline.runs import open_run, runs_in
from pipeline.store import Store


class Size(NamedTuple):
    """What drives the time of stages."""

    interactions: float
    entities: float
    tokens: float  # that all texts together may have
    compared: float  # rows of the comparison of decoding arms
    fitted: float  # CTR rows by models and seeds

    def of(self, stage: str) -> float:
        """The figure that drives a stage."""
        drivers = {
            "build_catalog": self.interactions,
            "train_embeddings": self.interactions,
            "generate_knowledge": self.tokens,
            "compare_decoding": self.compared,
            "check_ctr": self.fitted,
        }
        return drivers.get(stage, self.entities)


class Estimate(NamedTuple):
    """Seconds of a stage, and the run that they were learnt from."""

    seconds: float
    source: str


# What `make run` took on two cores on 30 November 2026, and how large it is.
_DEMO = Size(7693, 200, 200 * 96, 16, 7693 * 10)
_DEMO_SECONDS = {
    "build_catalog": 1.0,
    "train_embeddings": 6.0,
    "group_entities": 2.0,
    "generate_knowledge": 90.0,
    "compare_decoding": 45.0,
    "encode_features": 12.0,
    "measure_quality": 2.0,
    "check_ctr": 36.0,
    "write_report": 1.0,
}


def estimates(config: RunConfig, size: Size) -> dict[str, Estimate]:
    """Of every stage: by this run if it made it, else the newest other run, else the demo."""
    learnt = {
        stage: (seconds / _DEMO.of(stage), "the demo on two cores")
        for stage, seconds in _DEMO_SECONDS.items()
    }
    for store in _runs(config):
        learnt |= {stage: (rate, f"run {store.root.name}") for stage, rate in _rates(store, config)}
    return {
        stage: Estimate(rate * size.of(stage), source) for stage, (rate, source) in learnt.items()
    }


def _runs(config: RunConfig) -> list[Store]:
    """Runs with texts, the oldest first, this one last."""
    names = [name for name in runs_in(config.artifacts) if name != config.run]
    made = [
        (manifest.created, store)
        for store in (open_run(config.artifacts, name) for name in names)
        if (manifest := store.manifest("knowledge"))
    ]
    others = [store for _, store in sorted(made, key=lambda pair: pair[0])]
    return [*others, open_run(config.artifacts, config.run)]


def _rates(store: Store, config: RunConfig) -> list[tuple[str, float]]:
    """Seconds of each stage of a run per unit of what drives it."""
    size, seconds = _size_of(store), _seconds_of(store)
    if not _is_by_model(store, config):  # another model's speed tells nothing
        seconds = {stage: spent for stage, spent in seconds.items() if stage not in _BY_MODEL}
    return [(stage, spent / size.of(stage)) for stage, spent in seconds.items() if size.of(stage)]


_BY_MODEL = ("generate_knowledge", "compare_decoding")
_DATASETS = {
    "build_catalog": ["interactions"],
    "train_embeddings": ["embeddings"],
    "group_entities": ["groups"],
    "compare_decoding": ["comparison"],
    "encode_features": ["features"],
    "measure_quality": ["quality"],
    "write_report": ["report"],
}


def _seconds_of(store: Store) -> dict[str, float]:
    """What stages took from planning to the manifest; after a kill that is the last try only."""
    names = _DATASETS | {
        "generate_knowledge": [*_waves_of(store), "knowledge"],
        "check_ctr": ["controls/raw_text/features", "controls/history/features", "fits", "ctr"],
    }
    needed = {stage: of_stage[-1] for stage, of_stage in names.items()}
    return {
        stage: sum(made.seconds for name in of_stage if (made := store.manifest(name)))
        for stage, of_stage in names.items()
        if store.manifest(needed[stage])
    }


def _waves_of(store: Store) -> list[str]:
    knowledge = store.manifest("knowledge")
    return [name for name in knowledge.inputs if name.startswith("waves/")] if knowledge else []


def _size_of(store: Store) -> Size:
    rows = {name: _rows(store, name) for name in ("interactions", "knowledge", "comparison")}
    generation = _settings(store, "waves/0/knowledge", "generation")
    ctr = _settings(store, "fits", "ctr")
    fits = len(ctr.get("models", [])) * ctr.get("seeds", 0)
    tokens = rows["knowledge"] * generation.get("max_new_tokens", 0)
    compared = rows["comparison"]
    return Size(
        rows["interactions"], rows["knowledge"], tokens, compared, rows["interactions"] * fits
    )


def _rows(store: Store, name: str) -> int:
    manifest = store.manifest(name)
    return manifest.num_rows if manifest else 0


def _settings(store: Store, name: str, section: str) -> Mapping[str, Any]:
    manifest = store.manifest(name)
    return manifest.settings.get(section, {}) if manifest else {}


def _is_by_model(store: Store, config: RunConfig) -> bool:
    manifest = store.manifest("waves/0/knowledge")
    if manifest is None:
        return False
    try:
        return manifest.settings.get("model") == model_fingerprint(config.language_model)
    except UserError:  # a dry run tells of a missing model elsewhere
        return False
