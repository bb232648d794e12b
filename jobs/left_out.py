"""What a complete run rightly leaves out, and why."""

from jobs.wave_names import knowledge_name, last_wave
from pipeline.config import RunConfig
from pipeline.store import Store


def why_no_comparison(config: RunConfig, store: Store) -> str:
    """Why a complete run has no `comparison`; "" if it has one."""
    if not config.comparison.rows_per_kind:
        return "comparison.rows_per_kind is 0"
    last = store.manifest(knowledge_name(last_wave(config)))
    is_empty = last is not None and not last.num_rows  # a refresh found nothing to write
    return "the last wave had no text to write" if is_empty else ""


def why_no_check(config: RunConfig) -> str:
    """Why a run rightly has no check, "" if it has one."""
    if config.catalog.positive_rating is not None:
        return ""
    return "without ratings (catalog.positive_rating: null) no interaction is a dislike"
