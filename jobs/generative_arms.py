"""The ways to recommend that `make bench-generative` measures, all with the same model and beams."""

from typing import Any, NamedTuple


class Arm(NamedTuple):
    """One way."""

    name: str
    method: str  # of `pipeline.generative.methods`
    changes: dict[str, Any] = {}  # of `recommendation`
    datasets: dict[str, str] = {}  # read instead of the run's own
    model: str = "recommender"  # dataset of the model
    is_strict: bool = False  # its lists are to be those of beam search
