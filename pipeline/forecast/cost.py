"""GPU-hours, days and money of a job, from what one row takes."""

import math
from dataclasses import dataclass, replace

from pipeline.forecast.best import Point

_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Cost:
    """What a job takes when no device ever waits; `pipeline.forecast.simulate` has what waits."""

    device_hours: float
    days: float  # on the clock
    money: float | None

    @property
    def device_days(self) -> float:
        """Days of one device."""
        return self.device_hours * _HOUR / _DAY


@dataclass(frozen=True)
class Fleet:
    """Devices that each hold the model, and what an hour of one costs."""

    devices: int
    price: float | None = None  # per device and hour

    def cost(self, entities: int, row_seconds: float) -> Cost:
        """Of so many rows that take so long each."""
        hours = entities * row_seconds / _HOUR
        money = None if self.price is None else hours * self.price
        days = math.ceil(entities / self.devices) * row_seconds / _DAY
        return Cost(hours, days, money)

    def with_price(self, factor: float) -> "Fleet":
        """The same devices at another price."""
        return self if self.price is None else replace(self, price=self.price * factor)


def cost_at(point: Point, entities: int, fleet: Fleet) -> Cost:
    """Cost of a job that works at `point`."""
    return fleet.cost(entities, point.row_seconds)
