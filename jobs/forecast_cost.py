"""What will a run cost, before anyone rents a GPU? `make plan`.

    python -m jobs.forecast_cost --config conf/plan.yaml

Section `plan` says what is to be written and on what. Nothing is loaded or run: sizes come from the
model's config, machines from data sheets, what drafts bring from a profile that was measured. A
simulation of the fan-out adds what waits: starts, waves, slow machines, faults.

Writes `plan/plan.json` and `plan/plan.svg`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from jobs import cli
from jobs.forecast_chart import render
from jobs.forecast_conclusion import conclusion
from jobs.forecast_table import lines
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.fetched import local_copy
from pipeline.forecast.accelerators import accelerator_named
from pipeline.forecast.best import Row
from pipeline.forecast.check import checks
from pipeline.forecast.cost import Fleet
from pipeline.forecast.fan_out import FanOut, fan_out
from pipeline.forecast.job import Arm, Job, arms_of, by_batch, sensitivity, where_it_stops
from pipeline.forecast.laser_example import PUBLISHED_DAYS, PUBLISHED_RATE, figures
from pipeline.forecast.model_size import BYTES, ModelSize, read_model_size
from pipeline.forecast.named_models import CONFIGS, named_size
from pipeline.forecast.profiles import curves_of
from pipeline.locations import is_remote
from pipeline.store import Store


def run(config: RunConfig, store: Store) -> None:
    """Write `plan/plan.json` and `plan/plan.svg`; print a table."""
    settings = {"plan": config.plan, "seed": config.seed, "model": config.language_model.path}
    plan = store.plan("plan", settings | {"block_rows": config.generation.block_rows})
    result = forecast(config)

    def fill(folder: Path) -> None:
        (folder / "plan.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
        (folder / "plan.svg").write_text(render(result), encoding="utf-8")

    plan.write_files(fill, len(result["arms"]))
    for line in lines(result):
        print(line)


def forecast(config: RunConfig) -> dict[str, Any]:
    """Everything that is forecast of a run, as plain numbers.

    Raises:
        ConfigError: a name is unknown, or not even one row fits the device.
        DataError: the profile's file cannot be used.
        ModelError: the model's config cannot be.
    """
    settings, job = config.plan, job_of(config)
    curves = curves_of(settings.profile)
    arms = arms_of(job, curves)
    if not arms:
        fit = job.room.fit(1)
        raise ConfigError(
            f"plan.accelerator {job.device.name} has {fit.usable / 1e9:.1f} GB to use, but the "
            f"weights take {fit.weights / 1e9:.1f} GB, one row "
            f"{(fit.cache + fit.logits) / 1e9:.1f} GB; name a larger device or "
            "a smaller model (several devices for one model are not forecast)"
        )
    rule, curve = next(iter(curves.items()))  # strict where there is one
    own = next((arm for arm in arms if arm.name == rule), arms[-1])
    base = own.cost.device_hours if own.cost.money is None else own.cost.money
    what_if = sensitivity(job, curve, settings.change)
    for record in what_if:
        cost = record["device_hours"] if own.cost.money is None else record["money"]
        record["cost_change"] = None if cost is None else cost / base - 1.0
    simulated = {arm.name: fan_out(job, arm, arms[1], _spread(config)) for arm in arms[1:]}
    result = {
        "settings": settings.model_dump(mode="json"),
        "model": settings.model or config.language_model.path,
        "parameters": job.model.parameters,
        "active_parameters": job.model.active,
        "cache_bytes_per_token": job.model.cache_per_token * BYTES[job.dtype],
        "device": {"name": job.device.name, "source": job.device.source,
                   "read_share": job.device.read_share, "compute_share": job.device.compute_share,
                   "step_seconds": job.device.step_seconds, "draft_seconds": job.host.draft,
                   "draft_row_seconds": job.host.draft_row},
        "most_rows": job.room.most_rows(),
        "profile": {name: one.said for name, one in curves.items()},
        "arms": [_record(job, arm) for arm in arms],
        "simulated": simulated,
        "unit": "device hours" if own.cost.money is None else "money",
        "by_batch": by_batch(job, curve),
        "stops_paying_from_batch": where_it_stops(job, curve),
        "sensitivity_of": own.name,
        "sensitivity": what_if,
        "check": [asdict(one) | {"error": one.error} for one in checks()],
        "laser": {"published_days": PUBLISHED_DAYS, "published_rate": PUBLISHED_RATE,
                  "figures": [asdict(one) | {"rate": one.rate} for one in figures()]},
        "totals": _totals(arms, simulated),
    }  # fmt: skip
    return result | {"conclusion": conclusion(result)}


def job_of(config: RunConfig) -> Job:
    """The job that section `plan` describes.

    Raises:
        ConfigError: a name is unknown, or the device does not compute in the dtype.
        ModelError: the model's config cannot be read.
    """
    settings = config.plan
    device = accelerator_named(settings.accelerator)
    device.peak(settings.dtype)
    return Job(
        entities=settings.entities,
        row=Row(settings.prompt_tokens, settings.new_tokens, settings.shared_prompt_tokens),
        model=model_size(config),
        dtype=settings.dtype,
        device=device,
        fleet=Fleet(settings.devices, settings.price),
        # Slots are as long as the longest row that is let in; taken as average plus two deviations.
        length=settings.prompt_tokens
        + round(settings.new_tokens * (1.0 + 2.0 * settings.length_deviation)),
        batch_sizes=sorted(settings.batch_sizes),
    )


def model_size(config: RunConfig) -> ModelSize:
    """By name, by a folder's config, or by what the hub's cache on this machine holds.

    Raises:
        ConfigError: no config of the model is on this machine.
        ModelError: it cannot be read.
    """
    name = config.plan.model or config.language_model.path
    if name in CONFIGS:
        return named_size(name)
    if is_remote(name):
        return read_model_size(local_copy(name))
    if config.plan.model is None and config.language_model.gguf_file is not None:
        return _converted_size(config)
    if Path(name).exists():
        return read_model_size(Path(name))
    cached = try_to_load_from_cache(name, "config.json") if name.count("/") == 1 else None
    if isinstance(cached, str):
        return read_model_size(Path(cached))
    raise ConfigError(
        f"no config.json of {name} is on this machine; set plan.model to a folder that holds one, "
        f"or to one of {', '.join(CONFIGS)}"
    )


def _converted_size(config: RunConfig) -> ModelSize:
    """Of the folder that a GGUF file has been converted to."""
    from pipeline.language_model import loads_at_once, model_folder  # torch takes seconds to import

    if loads_at_once(config.language_model):
        return read_model_size(model_folder(config.language_model))
    raise ConfigError(
        f"{config.language_model.path} holds a GGUF file that has not been converted on this "
        "machine, which a first run does; set plan.model to a folder that holds a config.json, or "
        f"to one of {', '.join(CONFIGS)}"
    )


def _spread(config: RunConfig) -> FanOut:
    settings = config.plan
    return FanOut(
        waves=settings.waves,
        first_share=settings.first_share,
        length_deviation=settings.length_deviation,
        block_rows=config.generation.block_rows,
        seeds=settings.seeds,
        seed=config.seed,
        **settings.faults.model_dump(),
    )


def _record(job: Job, arm: Arm) -> dict[str, Any]:
    fit = job.room.fit(arm.point.rows, arm.point.drafts_per_row)
    return {
        "arm": arm.name,
        **asdict(arm.point),
        "tokens_per_second": arm.point.tokens_per_second,
        **asdict(arm.cost),
        "gain": arm.gain,
        "memory": asdict(fit) | {"free": fit.free},
    }


def _totals(arms: Sequence[Arm], simulated: Mapping[str, Any]) -> dict[str, Any]:
    """A line for a scheduler."""
    return {
        arm.name: {
            "rows": arm.point.rows,
            "drafts_per_row": round(arm.point.drafts_per_row, 2),
            "device_hours": round(arm.cost.device_hours, 1),
            "days": round(arm.cost.days, 2),
            "money": None if arm.cost.money is None else round(arm.cost.money, 2),
            "gain": round(arm.gain, 3),
            "simulated_hours": simulated.get(arm.name, {}).get("hours"),
        }
        for arm in arms
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
