"""Errors after which a worker process is of no more use, whatever it is asked for."""

import torch

_FATAL = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
_FATAL_WORDS = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS", "allocate memory", "out of memory")


def is_fatal(error: Exception) -> bool:
    """Whether a process in which this was raised cannot be trusted with another row."""
    if isinstance(error, RuntimeError) and any(word in str(error) for word in _FATAL_WORDS):
        return True
    return isinstance(error, _FATAL)
