"""The only `ray.init`: resources, and workers that import this checkout and nothing else."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobs.cli import ROOT
from pipeline.config import ClusterSettings


@dataclass(frozen=True)
class Workers:
    """How many model-holding actors a job may start, and what each gets."""

    actors: int
    gpus_each: int
    threads_each: int


@contextmanager
def ray_session(settings: ClusterSettings) -> Iterator[Workers]:
    """A Ray session for a job; joins the one that is already open in this process, if any.

    Ray's workers import from the folder the driver was started in, so a stray `features.py` there
    would replace our package: the driver moves to the project's root first.
    """
    os.chdir(ROOT)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield _workers(settings)
        return
    local = settings.address is None
    ray.init(
        address=settings.address,
        include_dashboard=False if local else None,
        object_store_memory=settings.object_store_mb * 2**20 if local else None,
        logging_level=logging.ERROR,
        log_to_driver=False,
        runtime_env=None if local else {"working_dir": str(ROOT), "excludes": ["/artifacts/"]},
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # notices only; failures raise
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield _workers(settings)
    finally:
        ray.shutdown()


def _workers(settings: ClusterSettings) -> Workers:
    """One actor per GPU; without GPUs one actor with all cores of the machine."""
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0))
    actors = settings.actors or max(1, gpus)
    cores = os.cpu_count() or 1
    return Workers(actors, 1 if gpus else 0, max(1, cores // actors))
