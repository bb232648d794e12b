"""What all sections of a config have in common."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Positive = Annotated[float, Field(gt=0.0)]
Choice = TypeVar("Choice")


def without_repeats(values: list[Choice]) -> list[Choice]:
    """A setting that lists values, each once."""
    if len(set(values)) < len(values):
        raise ValueError("a value stands twice")
    return values


Choices = Annotated[list[Choice], Field(min_length=1), AfterValidator(without_repeats)]


def _count_or_auto(value: Any) -> Any:
    """One message for both, where a union would give one for each."""
    if value != "auto" and (type(value) is not int or value < 1):
        raise ValueError("Input should be a whole number from 1 on, or auto")
    return value


CountOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]


class Settings(BaseModel):
    """Base of all sections: frozen; unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
