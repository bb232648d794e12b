"""The section of a config about what a run would cost: `make plan`."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings import Choices, Count, Positive, Settings, Share

_CHANGE = Annotated[float, Field(gt=0.0, lt=1.0)]


class FaultSettings(Settings):
    """What goes wrong in the simulated cluster."""

    slow_share: Share = 0.05  # of machines
    slow_factor: Annotated[float, Field(ge=1.0)] = 1.5  # time of theirs over that of others
    hours_between: Positive | None = 500.0  # of one device; None: no faults
    start_seconds: Annotated[float, Field(ge=0.0)] = 180.0  # to load a model, at first
    restart_seconds: Annotated[float, Field(ge=0.0)] = 300.0  # and after a fault


class PlanSettings(Settings):
    """The job that is priced, and where."""

    entities: Count = 1_000_000  # users and items to write about
    prompt_tokens: Annotated[int, Field(ge=0)] = 300  # of an average row
    # Of these, the beginning that all prompts share, which is computed once.
    shared_prompt_tokens: Annotated[int, Field(ge=0)] = 0
    new_tokens: Count = 250  # of an average text
    length_deviation: Annotated[float, Field(ge=0.0, le=2.0)] = 0.25  # standard, over the mean
    # A name of `pipeline.forecast.named_models`, or a folder with a config.json; None: that of
    # `language_model`.
    model: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"  # of the weights and the KV cache
    accelerator: str = "h100"  # a name of `pipeline.forecast.accelerators`
    devices: Count = 8  # that work side by side, each with the whole model
    price: Positive | None = None  # of a device for an hour, in any currency
    # Tried; the fastest that fits the memory is taken.
    batch_sizes: Choices[Count] = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    # What drafts bring: a name of `pipeline.forecast.profiles`, or a path of another run's
    # profile.json (of `make plan-profile`), benchmark.json, comparison.json or report.json.
    profile: str = "movies-135m"
    waves: Count = 3  # after the first, whose drafts come from the ones before
    first_share: Share = 0.01  # of the entities, written without drafts
    change: Choices[_CHANGE] = [0.2]  # of acceptance, tokens and price, up and down
    seeds: Count = 20  # simulations; more make their spread surer
    faults: FaultSettings = FaultSettings()
