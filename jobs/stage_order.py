"""Which stage is made from which, and what each writes: known before any of them is imported."""

from features.formats import listed
from jobs.commands.stages import COMMANDS
from jobs.recommend import stages_of as lists_of
from jobs.run_all import STAGES
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.store import Store

# What each stage is made from, directly.
NEEDS: dict[str, tuple[str, ...]] = {
    "build_catalog": (),
    "train_embeddings": ("build_catalog",),
    "group_entities": ("train_embeddings",),
    "generate_knowledge": ("group_entities",),
    "build_pools": ("group_entities",),
    "compare_decoding": ("generate_knowledge",),
    "encode_features": ("generate_knowledge",),
    "measure_quality": ("encode_features",),
    "check_ctr": ("encode_features",),
    "write_report": ("compare_decoding", "measure_quality", "check_ctr"),
    "log_run": ("write_report",),
    "export_features": ("encode_features",),
    "export_drafts": ("generate_knowledge",),
    "assign_semantic_ids": ("train_embeddings", "encode_features"),
    "train_recommender": ("assign_semantic_ids",),
    "align_drafter": ("train_recommender",),
    "train_retriever": ("train_recommender",),
    "recommend_items": ("train_recommender", "align_drafter", "train_retriever"),
}
# What each stage writes last; it is made once that is there.
WRITES = {
    "build_catalog": "interactions",
    "train_embeddings": "embeddings",
    "group_entities": "groups",
    "generate_knowledge": "knowledge",
    "compare_decoding": "comparison",
    "encode_features": "features",
    "measure_quality": "quality",
    "check_ctr": "ctr",
    "write_report": "report",
    "assign_semantic_ids": "semantic_ids",
    "train_recommender": "recommender",
    "align_drafter": "aligned_drafter",
    "train_retriever": "retriever",
    "recommend_items": "recommendations",
}
# What each measurement writes, anew whenever it is asked for.
MEASURES = {
    "benchmark_decoding": "benchmark",
    "benchmark_refresh": "refresh_benchmark",
    "benchmark_fan_out": "fan_out",
    "benchmark_generative": "generative_benchmark",
    "benchmark_scale": "scale",
    "measure_drafts": "draft_profile",
    "sweep_pools": "sweep",
}
_MAY_BE_MISSING = {"compare_decoding", "measure_quality", "check_ctr"}  # a report does without


_LISTS = ("assign_semantic_ids", "train_recommender", "align_drafter", "train_retriever")


def require_before(stage: str, config: RunConfig, store: Store) -> None:
    """Refuse a stage before its work, if others have not been made that it is made from.

    Raises:
        DataError: all of these are named, in order, and what makes them all.
    """
    missing = missing_before(stage, config, store)
    if not missing:
        return
    commands = {command.module: f"`laser {command.name}`" for command in COMMANDS}
    datasets = listed([WRITES[one] for one in missing])
    remedy = f"run {listed([commands[one] for one in missing])} first"
    if len(missing) > 1:
        whole = "recommend" if stage in _LISTS else "run"
        remedy += f", in this order; `laser {whole}` does all of that, and what comes after"
    raise DataError(f"{store.files.address} has no {datasets} yet; {remedy}")


def missing_before(stage: str, config: RunConfig, store: Store) -> list[str]:
    """Stages that one is made from, directly or not, and that have not been made; in order."""
    needed = set(NEEDS.get(stage, ()))
    for one in reversed(NEEDS):  # what is made from others stands below them
        needed |= set(NEEDS[one]) if one in needed else set()
    needed -= _MAY_BE_MISSING
    if not needed:
        return []
    order = lists_of(config) if stage in _LISTS else STAGES
    return [one for one in order if one in needed and store.manifest(WRITES[one]) is None]
