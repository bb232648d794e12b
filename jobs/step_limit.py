"""The least time a step can take on this machine, whatever decodes.

A forward pass reads every weight once and multiplies it with every token; whichever takes longer
at the measured rates is the limit, and the keys and values of the rows' contexts come on top.
Overlapping reads with arithmetic could hide the latter, so the limit is that of today's kernels.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

_REPEATS = 5
_READ_BYTES = 2**28  # beyond any cache
_GEMM_SIDE = {"cpu": 1536, "cuda": 8192}


@dataclass(frozen=True)
class Machine:
    """What was measured: the best of a few tries."""

    bytes_per_second: float  # read from memory
    flops_per_second: float  # of a square matrix product in the model's dtype


@dataclass(frozen=True)
class ModelSize:
    """What a forward pass has to read and to multiply."""

    body_weights: int  # multiplied with every token
    head_weights: int  # multiplied with every token that decides what comes next
    bytes_per_weight: int
    cache_bytes_per_token: int


@dataclass(frozen=True)
class StepShape:
    """A mean step."""

    tokens: float  # packed
    decisions: float  # of them, those whose logits are wanted
    context: float  # tokens whose keys and values are read, summed over rows


def least_seconds(step: StepShape, model: ModelSize, machine: Machine) -> float:
    """Limit of one forward pass, in seconds."""
    weights = (model.body_weights + model.head_weights) * model.bytes_per_weight
    flops = 2.0 * (model.body_weights * step.tokens + model.head_weights * step.decisions)
    reading = weights / machine.bytes_per_second
    computing = flops / machine.flops_per_second
    cache = step.context * model.cache_bytes_per_token / machine.bytes_per_second
    return max(reading, computing) + cache


def measure_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """Time reading a large array and multiplying two square matrices. Takes a second or two."""
    array = torch.ones(_READ_BYTES // dtype.itemsize, dtype=dtype, device=device)
    side = _GEMM_SIDE.get(device.type, _GEMM_SIDE["cpu"])
    left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    return Machine(
        _READ_BYTES / _best_seconds(array.amax, device),
        2.0 * side**3 / _best_seconds(lambda: left @ right, device),
    )


def _best_seconds(work: Callable[[], torch.Tensor], device: torch.device) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - began)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def size_of(model: PreTrainedModel, keys: torch.Tensor) -> ModelSize:
    """Count the matrices of an untouched model; of the input embedding single rows are read.

    `keys` (layers, rows, length, heads, dim) is half of the KV cache.
    All experts of a mixture are counted, though a small step reads few of them.
    """
    head: Any = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    outside = {id(parameter) for layer in (head, embedding) for parameter in layer.parameters()}
    body = sum(
        parameter.numel()
        for parameter in model.parameters()
        if parameter.dim() > 1 and id(parameter) not in outside
    )
    head_weights = sum(parameter.numel() for parameter in head.parameters() if parameter.dim() > 1)
    cache_bytes = 2 * keys[:, 0, 0].numel() * keys.element_size()
    return ModelSize(body, head_weights, model.dtype.itemsize, cache_bytes)
