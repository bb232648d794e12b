"""torch's own threads for compiled code of ours.

numba brings an OpenMP runtime of its own. Two pools of threads on the same cores wait for work by
spinning in each other's way, which makes a forward pass many times slower. So our code is run by
the runtime that torch has loaded, through the entry point that compilers use for a parallel region.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from llvmlite import binding
from numba import types

# Known to compiled code by name; defined only where the runtime was found.
thread_number: Any = types.ExternalFunction("omp_get_thread_num", types.int32())
num_threads: Any = types.ExternalFunction("omp_get_num_threads", types.int32())


@cache
def _runtime() -> ctypes.CDLL | None:
    """The OpenMP runtime of torch, its functions made known to compiled code."""
    package = Path(torch.__file__).parent
    folders = (package / "lib", package.parent / "torch.libs")
    for path in (path for folder in folders for path in sorted(folder.glob("lib*omp*"))):
        library = ctypes.CDLL(str(path))  # already loaded: this gives its handle
        if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num"):
            for name in ("omp_get_thread_num", "omp_get_num_threads"):
                address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                binding.add_symbol(name, address)
            return library
    return None


def is_available() -> bool:
    """Whether torch brought a runtime that can be called."""
    return _runtime() is not None


def run(function: int, job: Sequence[int]) -> None:
    """Call the compiled function at an address on all threads that torch uses.

    It gets a pointer to the integers of `job`, and asks `thread_number` and `num_threads` which
    share of the work is its own.
    """
    runtime = _runtime()
    assert runtime is not None, "ask is_available first"
    arguments = (ctypes.c_int64 * len(job))(*job)
    runtime.GOMP_parallel(ctypes.c_void_p(function), arguments, torch.get_num_threads(), 0)
