"""The forecast in one sentence, for who signs the bill: how long, how much, which batch, and
whether drafts pay.

Hours are those of the simulation, in which machines wait, as they are on a bill.
"""

from collections.abc import Mapping
from typing import Any

from features.formats import counted, duration, percent
from pipeline.forecast.best import WORTH
from pipeline.forecast.job import PLAIN

_MOST_HOURS = 48  # that are told as hours; more are days
_WORTH = 1.0 - 1.0 / WORTH  # of plain decoding's time


def conclusion(forecast: Mapping[str, Any]) -> str:
    """Of the first way that drafts, strictly where there is one; of plain decoding if none pays."""
    hours = {name: one["hours"] for name, one in forecast["simulated"].items()}
    own = forecast["sensitivity_of"]
    plain = hours[PLAIN]
    saved = {name: 1.0 - spent / plain if plain else 0.0 for name, spent in hours.items()}
    pays = saved[own] >= _WORTH
    chosen = own if pays else PLAIN
    settings, arms = forecast["settings"], {arm["arm"]: arm for arm in forecast["arms"]}
    texts = counted(settings["entities"], "texts")
    return (
        f"in short: writing {texts} with {forecast['model']} takes "
        f"{_clock(hours[chosen])} on {settings['devices']} x {forecast['device']['name']} at batch "
        f"{arms[chosen]['rows']} {f'with drafts ({own})' if pays else 'without drafts'}, "
        f"{_bill(hours[chosen], settings)}; {_worth(saved, own)}"
    )


def _bill(hours: float, settings: Mapping[str, Any]) -> str:
    """What is paid for, waits included."""
    paid = hours * settings["devices"]
    told = f"which is {paid:,.0f} GPU hours"
    if settings["price"] is None:
        return told
    return f"{told} and costs {paid * settings['price']:,.0f} at {settings['price']:g} an hour"


def _worth(saved: Mapping[str, float], own: str) -> str:
    """Whether drafts pay, and looser ones more."""
    if own == PLAIN:
        return "drafts do not fit the memory"
    if saved[own] >= _WORTH:
        told = f"drafts pay: they save {percent(saved[own])} of the time"
    elif saved[own] >= 0:
        told = f"drafts ({own}) do not pay here: they would save {percent(saved[own])} of the time"
    else:  # waves have to wait for each other
        told = f"drafts ({own}) do not pay here: it would take {percent(-saved[own])} longer"
    best = max(saved, key=lambda name: saved[name])
    if saved[best] >= _WORTH and saved[best] - saved[own] >= _WORTH:
        told += f", others ({best}), which change texts a little, {percent(saved[best])}"
    return told


def _clock(hours: float) -> str:
    return duration(hours * 3600) if hours < _MOST_HOURS else f"{hours / 24:,.1f} days"
