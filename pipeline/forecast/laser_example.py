"""LASER's reason to exist, as a test of the model: 10 million users x 250 tokens on V100s.

The paper (arXiv 2408.05676) counts some 565 GPU days for Qwen-7B-Chat. That is 51.2 tokens per
second of a GPU, and no setting is given with it. One assumption of this model gives it: one row at
a time, where a step is nothing but the reading of all weights at 0.8 of the data sheet's bandwidth.
No prompt, no overhead of a step. What other assumptions give stands beside it.
"""

from dataclasses import dataclass, replace

from pipeline.forecast.accelerators import accelerator_named
from pipeline.forecast.best import Row
from pipeline.forecast.cost import Fleet
from pipeline.forecast.job import PLAIN, PLAIN_ALONE, Job, arms_of
from pipeline.forecast.named_models import named_size

PUBLISHED_DAYS = 565.0
USERS, NEW_TOKENS = 10_000_000, 250
PUBLISHED_RATE = USERS * NEW_TOKENS / (PUBLISHED_DAYS * 86400.0)  # tokens per second of a GPU

_PROMPT = 300  # tokens; the paper says nothing of prompts
# transformers' own overhead of a layer, launched one kernel at a time: Lookahead's README has
# Llama2-13B at 20.5 tokens/s on a V100-32G, 48.8 ms a token, of which this model's reading takes
# 35.7. The other 13.1 ms are of 40 layers.
_EAGER_LAYER = 13.1e-3 / 40
_LAYERS = 32


@dataclass(frozen=True)
class Figure:
    """GPU days under some assumptions."""

    assumptions: str
    days: float

    @property
    def rate(self) -> float:
        """Tokens per second of a GPU."""
        return USERS * NEW_TOKENS / (self.days * 86400.0)


def figures() -> list[Figure]:
    """The assumption that gives the published figure first, then what others give."""
    job = _job(0)
    bare = replace(job, device=job.device.without_overhead())
    ideal = replace(bare, device=replace(bare.device, read_share=1.0))
    eager = replace(job, device=replace(job.device, step_seconds=_LAYERS * _EAGER_LAYER))
    prompted = _job(_PROMPT)
    return [
        Figure("one row at a time, weights read at 0.8 of the bandwidth, nothing else",
               _days(bare, PLAIN_ALONE)),
        Figure("the same at all of the bandwidth", _days(ideal, PLAIN_ALONE)),
        Figure("with 2 ms of overhead a step, this model's default", _days(job, PLAIN_ALONE)),
        Figure(f"with that and prompts of {_PROMPT} tokens", _days(prompted, PLAIN_ALONE)),
        Figure("with transformers' overhead of 0.33 ms a layer instead", _days(eager, PLAIN_ALONE)),
        Figure(f"prompts of {_PROMPT} tokens, the best batch that fits", _days(prompted, PLAIN)),
    ]  # fmt: skip


def _job(prompt: int) -> Job:
    return Job(
        entities=USERS,
        row=Row(prompt, NEW_TOKENS),
        model=named_size("qwen-7b"),
        dtype="float16",
        device=accelerator_named("v100-32"),
        fleet=Fleet(1),
        length=prompt + NEW_TOKENS,
        batch_sizes=[1, 2, 4, 8, 16, 24, 32, 48, 64],
    )


def _days(job: Job, name: str) -> float:
    return next(arm for arm in arms_of(job, {}) if arm.name == name).cost.device_days
