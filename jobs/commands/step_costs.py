"""Whether a run would first measure what a step of its model costs on this machine."""

import os

from jobs.cluster import size_workers
from pipeline.config import RunConfig
from pipeline.cost_cache import cost_file_of
from pipeline.language_model import device_of, load_config, loads_at_once


def are_costs_known(config: RunConfig) -> bool:
    """Whether the costs are kept from an earlier run, by the model's configuration alone."""
    settings = config.language_model
    # Of other machines nothing is known here, nor of a file that is yet to be converted.
    if config.cluster.address is not None or not loads_at_once(settings):
        return False
    device = device_of(settings)
    machine = {"CPU": float(os.cpu_count() or 1), "GPU": float(device.type == "cuda")}
    threads = size_workers(config.cluster, "knowledge", device.type, [machine]).threads_each
    return cost_file_of(load_config(settings), device, threads, config.engine).is_file()
