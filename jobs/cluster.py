"""The only `ray.init`: resources, and workers that import this checkout and nothing else."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from jobs.cli import ROOT
from jobs.interruption import handlers_kept
from pipeline.config import ClusterSettings
from pipeline.errors import ConfigError

log = logging.getLogger("jobs.cluster")


@dataclass(frozen=True)
class Workers:
    """How many model-holding actors a job may start, and what each gets."""

    actors: int
    gpus_each: int
    threads_each: int


def start_ray(settings: ClusterSettings) -> None:
    """Start or join Ray, unless this process has; it ends with the process.

    Ray's workers import from the folder the driver was started in, so a stray `features.py` there
    would replace our package: the driver moves to the project's root first.
    """
    os.chdir(ROOT)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        return
    local = settings.address is None
    log.info("starting Ray on this machine" if local else f"joining Ray at {settings.address}")
    with handlers_kept():
        ray.init(
            address=settings.address or "local",  # RAY_ADDRESS must not decide where a run goes
            include_dashboard=False if local else None,
            object_store_memory=settings.object_store_mb * 2**20 if local else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            runtime_env=None if local else {"working_dir": str(ROOT), "excludes": ["/artifacts/"]},
        )


def size_workers(settings: ClusterSettings, device: str, resources: Mapping[str, float]) -> Workers:
    """One actor per GPU; without GPUs one actor with all cores; `cluster.actors` overrules.

    `device` is that of the model the actors hold; `resources` are Ray's.

    Raises:
        ConfigError: a GPU is asked for and Ray has none, or more actors than it has GPUs or cores.
    """
    cores = int(resources.get("CPU", 1))
    gpus = int(resources.get("GPU", 0)) if device != "cpu" else 0
    if device == "cuda" and not gpus:
        raise ConfigError("device is cuda, but Ray has no GPU; set it to auto or cpu")
    actors = settings.actors or gpus or 1
    if actors > (gpus or cores):
        have = f"{gpus} GPUs" if gpus else f"{cores} cores"
        raise ConfigError(f"cluster.actors is {actors}, but Ray has {have}; lower it")
    return Workers(actors, min(gpus, 1), max(1, cores // actors))
