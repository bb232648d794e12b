"""What all sections of a config have in common."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Choice = TypeVar("Choice")


def without_repeats(values: list[Choice]) -> list[Choice]:
    """A setting that lists values, each once."""
    if len(set(values)) < len(values):
        raise ValueError("a value stands twice")
    return values


Choices = Annotated[list[Choice], Field(min_length=1), AfterValidator(without_repeats)]


class Settings(BaseModel):
    """Base of all sections: frozen; unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
