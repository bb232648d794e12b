"""What machines can do by their data sheets, and what share of it decoding is taken to reach.

FLOP/s are dense (without sparsity), of tensor cores where there are any. The shares reached are
assumptions, not measurements: no number of ours is from a GPU. Only the CPU's are measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.errors import ConfigError

GB = 1e9
_T = 1e12


@dataclass(frozen=True)
class Accelerator:
    """A device, and what is assumed of it."""

    name: str
    memory: float  # bytes
    bandwidth: float  # bytes/s
    flops: Mapping[str, float]  # dtype -> FLOP/s
    source: str
    read_share: float = 0.8  # of the bandwidth that reading weights and caches reaches
    compute_share: float = 0.6  # of the FLOP/s that products reach
    step_seconds: float = 2e-3  # of a step that are neither: launching kernels, sampling
    usable_memory: float = 0.92  # the rest is the driver's, and lost between allocations
    is_host: bool = False  # bookkeeping and drafting wait for the cores that compute

    def peak(self, dtype: str) -> float:
        """FLOP/s in a dtype.

        Raises:
            ConfigError: the device does not compute in it.
        """
        if dtype not in self.flops:
            raise ConfigError(
                f"{self.name} does not compute in {dtype}; it does in {', '.join(self.flops)}"
            )
        return self.flops[dtype]

    def without_overhead(self) -> "Accelerator":
        """The same device, were a step nothing but reading and computing."""
        return replace(self, step_seconds=0.0)


def _gpu(name: str, gigabytes: float, bandwidth: float, half: float, single: float, source: str,
         *, bfloat16: bool = True) -> Accelerator:  # fmt: skip
    flops = {"float16": half * _T, "float32": single * _T}
    if bfloat16:
        flops["bfloat16"] = half * _T
    return Accelerator(name, gigabytes * GB, bandwidth * GB, flops, source)


ACCELERATORS: Mapping[str, Accelerator] = {
    device.name: device
    for device in (
        _gpu("v100-16", 16, 900, 125, 15.7, "NVIDIA V100 data sheet, SXM2", bfloat16=False),
        _gpu("v100-32", 32, 900, 125, 15.7, "NVIDIA V100 data sheet, SXM2", bfloat16=False),
        _gpu("a100-40", 40, 1555, 312, 19.5, "NVIDIA A100 data sheet, SXM 40 GB"),
        _gpu("a100-80", 80, 2039, 312, 19.5, "NVIDIA A100 data sheet, SXM 80 GB"),
        _gpu("h100", 80, 3350, 989, 67, "NVIDIA H100 data sheet, SXM"),
        _gpu("h200", 141, 4800, 989, 67, "NVIDIA H200 data sheet, SXM"),
        _gpu("l4", 24, 300, 121, 30.3, "NVIDIA L4 data sheet"),
        _gpu("l40s", 48, 864, 362, 91.6, "NVIDIA L40S data sheet"),
        # Rates by `make bench` (benchmark.json, limits); shares by its steps of SmolLM2-135M.
        Accelerator(
            "cpu-2-cores",
            16 * GB,
            65.4 * GB,
            {"float32": 0.1987 * _T},
            "measured by make bench: two cores of an AMD EPYC, float32",
            read_share=0.46,
            compute_share=0.87,
            step_seconds=0.0,  # of the host, see `pipeline.forecast.step_time.HostTime`
            is_host=True,
        ),
    )
}


def accelerator_named(name: str) -> Accelerator:
    """A device of the table.

    Raises:
        ConfigError: there is no such name.
    """
    if name not in ACCELERATORS:
        raise ConfigError(f"no accelerator is named {name}; there are {', '.join(ACCELERATORS)}")
    return ACCELERATORS[name]
