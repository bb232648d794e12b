"""How much memory a piece of work takes, as Linux counts it for this process."""

from pathlib import Path

_PROCESS = Path("/proc/self")


def forget_peak() -> None:
    """Let the peak start again from what is resident now."""
    (_PROCESS / "clear_refs").write_text("5")


def resident_mib() -> float:
    """MiB resident now."""
    return _status("VmRSS")


def peak_mib() -> float:
    """Most MiB resident since `forget_peak`."""
    return _status("VmHWM")


def _status(field: str) -> float:
    lines = (_PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024
