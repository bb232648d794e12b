"""Where the time of the engines' steps went, wave by wave."""

from typing import Any

from features.measures import ratio
from features.provenance import wave_datasets
from pipeline.engine.statistics import PARTS
from pipeline.store import Store


def step_times(store: Store) -> dict[str, Any] | None:
    """Seconds of each part of a step, summed over the engines of a wave; None if none is known.

    Of a wave that was interrupted only the last job's steps are known: those of `rows_timed` of its
    `rows`. A worker that died took those since its last answer with it.
    """
    waves = []
    for name in wave_datasets(store, "knowledge"):
        manifest = store.require(name)
        steps = manifest.facts.get("steps")
        if steps and steps["steps"]:
            waves.append(
                {
                    "wave": int(name.split("/")[1]),
                    "steps": steps["steps"],
                    "rows_per_step": ratio(steps["rows"], steps["steps"]),
                    "seconds_by_part": {part: steps[part] for part in PARTS},
                    "rows": manifest.num_rows,
                    "rows_timed": steps["rows_written"],
                }
            )
    return {"by_wave": waves} if waves else None
