"""The only `ray.init`: resources, and workers that import this checkout and nothing else."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jobs.cli import IS_CHECKOUT, ROOT
from jobs.interruption import handlers_kept
from pipeline.config import ClusterSettings, StageSettings
from pipeline.errors import ConfigError

log = logging.getLogger("jobs.cluster")

# What workers elsewhere import; raw data would be too much to send.
_CODE = {"working_dir": str(ROOT), "excludes": ["/artifacts/", "/data/"]}
_PATIENCE = 10.0  # s
_SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray for what `ray job submit` starts


@dataclass(frozen=True)
class Workers:
    """How many model-holding actors a job may start, and what each gets."""

    actors: int
    gpus_each: int
    threads_each: int


def start_ray(settings: ClusterSettings) -> None:
    """Start or join Ray, unless this process has; it ends with the process.

    Ray's workers import from the folder the driver was started in, so a stray `features.py` there
    would replace our package: the driver moves to the project's root first. A job that
    `ray job submit` has started is on a cluster already, and so is its code.

    Raises:
        ConfigError: nothing answers at `cluster.address`, or it refuses to.
    """
    os.chdir(ROOT)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        return
    is_submitted = _SUBMITTED in os.environ
    address = settings.address or ("auto" if is_submitted else None)
    local = address is None
    sends_code = IS_CHECKOUT and not local and not is_submitted  # a wheel is installed there too
    log.info("starting Ray on this machine" if local else f"joining Ray at {address}")
    with handlers_kept(), _joining(settings.address):
        ray.init(
            address=address or "local",  # RAY_ADDRESS must not decide where a run goes
            include_dashboard=False if local else None,
            object_store_memory=settings.object_store_mb * 2**20 if local else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            runtime_env=dict(_CODE) if sends_code else None,
        )


@contextmanager
def _joining(address: str | None) -> Iterator[None]:
    try:
        _require_answer(address)
        yield
    except (OSError, ValueError, RuntimeError) as error:
        if address is None:
            raise
        raise ConfigError(
            f"cluster.address: Ray at {address} cannot be joined ({error}); is it up, of the same "
            "version of Ray and Python, and do both sides have the same RAY_AUTH_MODE and token?"
        ) from error


def _require_answer(address: str | None) -> None:
    """Ray itself tries a silent host:port for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


def node_resources() -> list[Mapping[str, float]]:
    """What each machine of the running Ray has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def size_workers(
    settings: ClusterSettings, stage: str, device: str, nodes: Sequence[Mapping[str, float]]
) -> Workers:
    """One actor per GPU; without GPUs one per machine, or as many as `cores` leave room for.

    `stage` is the section of `cluster` that may say otherwise. Where it names no `cores`, all get
    the same number, the most that leaves room for all of them. `device` is that of the model the
    actors hold; `nodes` are the machines' resources.

    Raises:
        ConfigError: a GPU is asked for and Ray has none, or more than it has GPUs or cores.
    """
    wanted: StageSettings = getattr(settings, stage)
    cores = [int(node.get("CPU", 0)) for node in nodes]
    gpus = [int(node.get("GPU", 0)) if device != "cpu" else 0 for node in nodes]
    if device == "cuda" and not any(gpus):
        raise ConfigError("device is cuda, but Ray has no GPU; set it to auto or cpu")

    def room(threads: int) -> int:
        by_cores = [count // threads for count in cores]
        return sum(map(min, by_cores, gpus)) if any(gpus) else sum(by_cores)

    if wanted.actors or any(gpus) or not wanted.cores:
        actors = wanted.actors or sum(gpus) or len([count for count in cores if count]) or 1
    else:
        actors = max(room(wanted.cores), 1)
    choices = [wanted.cores] if wanted.cores else range(1, max(cores) + 1)
    threads = max((count for count in choices if room(count) >= actors), default=0)
    if not threads:
        have = f"{sum(cores)} cores" + (f" and {sum(gpus)} GPUs" if any(gpus) else "")
        each = f" of {wanted.cores} cores" if wanted.cores else ""
        raise ConfigError(
            f"cluster.{stage} asks for {actors} actors{each}, but Ray has {have}; lower it"
        )
    return Workers(actors, 1 if any(gpus) else 0, threads)
