"""What a step costs is measured once for each model shape on each kind of machine.

Plain numbers in JSON; a file that cannot be read is measured again.
"""

import json
import logging
import os
import platform
from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

import pipeline.engine
from pipeline.config import EngineSettings
from pipeline.engine.budget import CostTable
from pipeline.store import fingerprint

log = logging.getLogger(__name__)

FOLDER = Path(".cache/costs")
_ARRAYS = ("contexts", "rows", "per_row", "seconds")


def cost_file(model: PreTrainedModel, settings: EngineSettings) -> Path:
    """Where the costs of this model, on this machine, at these sizes are kept."""
    return cost_file_of(model.config, model.device, torch.get_num_threads(), settings)


def cost_file_of(
    config: PreTrainedConfig, device: torch.device, threads: int, settings: EngineSettings
) -> Path:
    """As `cost_file`, of a model that need not be loaded."""
    machine = [processor(device), threads, torch.__version__]
    sizes = [settings.batch_rows, settings.max_length]
    shape = [config.to_json_string(), str(config.dtype)]
    return FOLDER / f"{fingerprint([*shape, machine, sizes, engine_code()])}.json"


def read_costs(path: Path) -> CostTable | None:
    """The costs in a file, or None if there is no such file, or none that can be used."""
    try:
        stored = json.loads(path.read_text())
        table = CostTable(*(np.array(stored[name], np.float64) for name in _ARRAYS))
        _require_usable(table)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is damaged (%s); step costs are measured again", path, error)
        return None
    return table


def _require_usable(table: CostTable) -> None:
    axes = (table.contexts, table.rows, table.per_row)
    if any(axis.ndim != 1 for axis in axes):
        raise ValueError("axes are not lists")
    if table.seconds.shape != tuple(map(len, axes)):
        raise ValueError("shapes differ")
    is_ascending = all((np.diff(axis) > 0.0).all() for axis in axes)
    if not is_ascending or not np.isfinite(table.seconds).all() or table.seconds.min() <= 0.0:
        raise ValueError("axes that do not ascend, or costs that are not positive")


def write_costs(path: Path, costs: CostTable) -> None:
    """Keep measured costs, whole or not at all; a folder that cannot be written costs a warning."""
    arrays = {name: getattr(costs, name).tolist() for name in _ARRAYS}
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(arrays))
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        log.warning("step costs are not kept for the next start: %s", error)


@cache
def engine_code() -> str:
    """What the engine's files say: other kernels have other costs."""
    folder = Path(pipeline.engine.__file__).parent
    return fingerprint([path.read_text() for path in sorted(folder.glob("*.py"))])


def processor(device: torch.device) -> str:
    """The kind of GPU or CPU behind a device, by the name that its maker gave it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.machine())
