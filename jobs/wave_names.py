"""The waves of a run by number: what their datasets are called, and which of them there are.

Apart from `jobs.waves`, since who only looks at a run should not wait for models to be imported.
"""

from pipeline.config import RunConfig

_REFRESHED = 1  # the wave of a refresh that is written


def knowledge_name(wave: int) -> str:
    """Dataset of one wave's knowledge."""
    return f"waves/{wave}/knowledge"


def pools_name(wave: int) -> str:
    """Dataset of the pools that a wave drafts from."""
    return f"waves/{wave}/pools"


def last_wave(config: RunConfig) -> int:
    """Number of the wave that ends the run."""
    return _REFRESHED if config.refresh.previous else config.generation.waves


def has_draft_model(config: RunConfig) -> bool:
    """Whether a model drafts, not the pools."""
    return config.drafts.source == "model"


def wave_has_pools(config: RunConfig, wave: int) -> bool:
    """Whether a wave drafts from the texts of those before it."""
    return wave > 0 and not has_draft_model(config)
