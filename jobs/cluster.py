"""The only `ray.init`: resources, and workers that import this checkout and nothing else."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from jobs.cli import ROOT
from pipeline.config import ClusterSettings


@contextmanager
def ray_session(settings: ClusterSettings) -> Iterator[None]:
    """A Ray session for the time of a job; joins the one that is already open, if any.

    Ray's workers import from the folder the driver was started in, so a stray `features.py` there
    would replace our package: the driver moves to the project's root first.
    """
    os.chdir(ROOT)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    local = settings.address is None
    ray.init(
        address=settings.address,
        include_dashboard=False if local else None,
        object_store_memory=settings.object_store_mb * 2**20 if local else None,
        logging_level=logging.WARNING,
        log_to_driver=False,
        runtime_env=None if local else {"working_dir": str(ROOT), "excludes": ["/artifacts/"]},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield
    finally:
        ray.shutdown()
