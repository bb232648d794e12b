"""How long stages will take, by how long they took: linear in what drives each of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from features.ctr.controls import TEMPLATES, dataset_of
from features.provenance import wave_datasets
from jobs.stage_order import MEASURES, WRITES
from pipeline.config import RunConfig
from pipeline.errors import UserError
from pipeline.model_identity import model_fingerprint
from pipeline.runs import is_refresh, open_run, runs_in
from pipeline.store import Manifest, Store


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
            "train_recommender": self.interactions,
            "align_drafter": self.interactions,
            "train_retriever": self.interactions,
        }
        return drivers.get(stage, self.entities)


class Estimate(NamedTuple):
    """Seconds of a stage, and the run that they were learnt from."""

    seconds: float
    source: str


# What stages took on two quiet cores on 30 November 2026, and of how much.
_SHIPPED = (
    (
        Size(7693, 200, 200 * 96, 16, 7693 * 10),
        {
            "build_catalog": 0.2,
            "train_embeddings": 0.5,
            "group_entities": 0.1,
            "generate_knowledge": 94.0,
            "compare_decoding": 90.0,
            "encode_features": 8.0,
            "measure_quality": 0.5,
            "check_ctr": 43.0,
            "write_report": 0.5,
        },
        "the demo",
    ),
    (
        Size(100_000, 2625, 0, 0, 0),
        {"assign_semantic_ids": 4.4, "train_recommender": 336.0, "recommend_items": 5.2},
        "make recommend",
    ),
)


def estimates(config: RunConfig, size: Size) -> dict[str, Estimate]:
    """Of every stage: by this run if it made it, else the newest other run, else the demo."""
    learnt = {
        stage: (seconds / measured.of(stage), f"{what} on two cores")
        for measured, by_stage, what in _SHIPPED
        for stage, seconds in by_stage.items()
    }
    runs = _runs(config)
    written_by = {store.root: _model_of(store) for store in runs}
    ours = _fingerprint(config) if any(written_by.values()) else ""
    for store in runs:
        rates = _rates(store, bool(ours) and written_by[store.root] == ours)
        learnt |= {stage: (rate, f"run {store.root.name}") for stage, rate in rates}
    return {
        stage: Estimate(rate * size.of(stage), source) for stage, (rate, source) in learnt.items()
    }


def _runs(config: RunConfig) -> list[Store]:
    """Runs with texts or lists, the oldest first, this one last."""
    names = [name for name in runs_in(config.artifacts) if name != config.run]
    made = [
        (manifest.created, store)
        for store in (open_run(config.artifacts, name) for name in names)
        if (manifest := store.manifest("knowledge") or store.manifest("recommender"))
    ]
    others = [store for _, store in sorted(made, key=lambda pair: pair[0])]
    return [*others, open_run(config.artifacts, config.run)]


def _rates(store: Store, is_by_model: bool) -> list[tuple[str, float]]:
    """Seconds of each stage of a run per unit of what drives it."""
    size, seconds = _size_of(store), _seconds_of(store)
    if not is_by_model:  # another model's speed tells nothing
        seconds = {stage: spent for stage, spent in seconds.items() if stage not in _BY_MODEL}
    return [(stage, spent / size.of(stage)) for stage, spent in seconds.items() if size.of(stage)]


_TELLING = 0.1  # share of a dataset below which the seconds are those of starting up
_BY_MODEL = ("generate_knowledge", "compare_decoding")


def _seconds_of(store: Store) -> dict[str, float]:
    """What stages took, and would have taken at one go where a last try wrote a part only.

    A stage of which no dataset, or too little of one, was written by its last try is left out.
    """
    names = {stage: [dataset] for stage, dataset in (WRITES | MEASURES).items()} | {
        "generate_knowledge": [*_waves_of(store), "knowledge"],
        "check_ctr": [*map(dataset_of, TEMPLATES), "fits", "ctr"],
    }
    found = {}
    for stage, of_stage in names.items():
        made = [manifest for name in of_stage if (manifest := store.manifest(name))]
        shares = [_share_of_last_try(manifest) for manifest in made]
        if store.manifest(of_stage[-1]) and min(shares) >= _TELLING:
            seconds = [manifest.seconds for manifest in made]
            found[stage] = sum(one / share for one, share in zip(seconds, shares, strict=True))
    return found


def _share_of_last_try(manifest: Manifest) -> float:
    """How much of a dataset was written in the seconds that its manifest tells."""
    facts = manifest.facts.get("steps", manifest.facts)
    written = facts.get("rows_written", manifest.num_rows)
    return min(written / manifest.num_rows, 1.0) if manifest.num_rows else 1.0


def _waves_of(store: Store) -> list[str]:
    return wave_datasets(store, "knowledge") if store.manifest("knowledge") else []


def _size_of(store: Store) -> Size:
    """Of a refresh, what it wrote itself counts; what it carried over took no time."""
    waves = _waves_of(store)
    own = waves[1:] if waves and is_refresh(store) else waves
    written = sum(_rows(store, name) for name in own)
    interactions = _rows(store, "interactions")
    generation = _settings(store, "waves/0/knowledge", "generation")
    ctr = _settings(store, "fits", "ctr")
    return Size(
        interactions,
        _rows(store, "users") + _rows(store, "items"),
        written * generation.get("max_new_tokens", 0),
        _rows(store, "comparison"),
        interactions * len(ctr.get("models", [])) * ctr.get("seeds", 0),
    )


def _rows(store: Store, name: str) -> int:
    manifest = store.manifest(name)
    return manifest.num_rows if manifest else 0


def _settings(store: Store, name: str, section: str) -> Mapping[str, Any]:
    manifest = store.manifest(name)
    return manifest.settings.get(section, {}) if manifest else {}


def _model_of(store: Store) -> str:
    """Fingerprint of the model that wrote a run's texts, "" if it has none."""
    manifest = store.manifest("waves/0/knowledge")
    return manifest.settings.get("model", "") if manifest else ""


def _fingerprint(config: RunConfig) -> str:
    """That of the configured model, which takes reading all of it; "" if it is not there."""
    try:
        return model_fingerprint(config.language_model)
    except UserError:  # a dry run tells of a missing model elsewhere
        return ""
