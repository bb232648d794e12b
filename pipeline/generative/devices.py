"""Where models of generative recommendation are trained, and run unless a config says where."""

import torch


def best_device() -> torch.device:
    """A GPU if there is one. The same seed gives the same bits on a CPU only."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_named(name: str) -> torch.device:
    """The device of a config: auto, cpu or cuda."""
    return best_device() if name == "auto" else torch.device(name)
