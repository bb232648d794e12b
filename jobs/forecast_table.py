"""The forecast as lines for a terminal, for who has to decide as well as for who wants to check."""

from collections.abc import Iterator, Mapping
from typing import Any

from features import formats

_HEAD = (
    f"{'way':<26} {'batch':>5} {'drafts':>6} {'tokens/s':>9} {'gain':>6} {'GPU hours':>10}"
    f" {'days':>8} {'money':>12} {'memory':>14}"
)


def lines(forecast: Mapping[str, Any]) -> Iterator[str]:
    """What, how much, what waits, what if, how far it can be trusted, and all in a sentence."""
    yield from _what(forecast)
    yield ""
    yield _HEAD
    for arm in forecast["arms"]:
        yield _arm(arm)
    yield "Drafts: tokens drafted for a row's step. Days: on the clock, if no device ever waits."
    yield ""
    yield from _batches(forecast)
    yield ""
    yield from _simulated(forecast)
    yield ""
    yield from _stops(forecast)
    yield ""
    yield from _sensitivity(forecast)
    yield ""
    yield from _trust(forecast)
    yield ""
    yield forecast["conclusion"]


def _what(forecast: Mapping[str, Any]) -> Iterator[str]:
    own, device = forecast["settings"], forecast["device"]
    yield (
        f"{formats.count(own['entities'])} texts of {own['new_tokens']} tokens after prompts of "
        f"{own['prompt_tokens']}, by {forecast['model']} "
        f"({_billions(forecast['parameters'])} parameters"
        + (
            f", {_billions(forecast['active_parameters'])} at work in a token"
            if forecast["active_parameters"] < 0.8 * forecast["parameters"]
            else ""
        )
        + f") in {own['dtype']}, on {own['devices']} x {device['name']}"
    )
    yield (
        f"{device['source']}; assumed: {device['read_share']:.0%} of its bandwidth and "
        f"{device['compute_share']:.0%} of its FLOP/s are reached, a step has "
        f"{1000 * device['step_seconds']:g} ms besides, one that drafts "
        f"{1000 * device['draft_seconds']:.2g} ms and {1e6 * device['draft_row_seconds']:.0f} us "
        "for each row"
    )
    yield f"memory of a device: the weights and at most {forecast['most_rows']:,} rows"
    yield "what drafts bring: " + "; ".join(dict.fromkeys(forecast["profile"].values()))


def _arm(arm: Mapping[str, Any]) -> str:
    memory = arm["memory"]
    taken = memory["usable"] - memory["free"]
    return (
        f"{arm['arm']:<26} {arm['rows']:>5} {arm['drafts_per_row']:>6.2f}"
        f" {formats.count(arm['tokens_per_second']):>9} {arm['gain']:>5.2f}x"
        f" {_amount(arm['device_hours']):>10} {_amount(arm['days']):>8} {_amount(arm['money']):>12}"
        f" {taken / 1e9:>5.1f} of {memory['usable'] / 1e9:>3.0f} GB"
    )


def _batches(forecast: Mapping[str, Any]) -> Iterator[str]:
    yield f"Tokens per second of a device by batch ({forecast['sensitivity_of']}):"
    always = f"always {forecast['by_batch'][0]['fixed_drafts']:.2g} drafts"
    yield (
        f"  {'batch':>5} {'plain':>9} {'drafted':>9} {'gain':>6} {'drafts':>6}"
        f" {always:>17} {'memory left':>12}"
    )
    for row in forecast["by_batch"]:
        yield (
            f"  {row['rows']:>5} {formats.count(row['plain']):>9}"
            f" {formats.count(row['drafted']):>9} {row['drafted'] / row['plain']:>5.2f}x"
            f" {row['drafts_per_row']:>6.2f} {row['fixed'] / row['plain']:>16.2f}x"
            f" {row['free_bytes'] / 1e9:>9.1f} GB"
        )


def _simulated(forecast: Mapping[str, Any]) -> Iterator[str]:
    own, count = forecast["settings"], forecast["settings"]["devices"]
    faults = own["faults"]
    often = f"every {faults['hours_between']:g} h" if faults["hours_between"] else "never"
    yield (
        f"With waves, starts and faults ({own['seeds']} simulated runs; {faults['slow_share']:.0%} "
        f"of machines {faults['slow_factor']:g} times as slow, a device dies {often}):"
    )
    for name, one in forecast["simulated"].items():
        paid = one["hours"] * count
        money = "" if own["price"] is None else f", {_amount(paid * own['price'])} of money"
        yield (
            f"  {name:<24} {one['hours']:,.1f} h on the clock (5 to 95 %: {one['hours_p5']:,.1f} "
            f"to {one['hours_p95']:,.1f}), {_amount(paid)} paid GPU hours{money}, devices at work "
            f"{one['utilisation']:.0%}"
        )


def _stops(forecast: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Where drafts ({forecast['sensitivity_of']}) stop paying (a gain below 5 %), memory left "
        "aside, by tokens that a row has in the cache:"
    )
    for context, batch in forecast["stops_paying_from_batch"].items():
        said = "they pay at 1,024 rows still" if batch is None else f"from batch {batch} on"
        yield f"  {context:>6} tokens: {said}"


def _sensitivity(forecast: Mapping[str, Any]) -> Iterator[str]:
    yield f"If one thing is otherwise ({forecast['sensitivity_of']}, {forecast['unit']}):"
    for record in forecast["sensitivity"]:
        change = record["cost_change"]
        said = "does not fit" if change is None else f"{change:+.1%}"
        yield f"  {record['what']:<14} {record['factor'] - 1.0:+.0%}: {said}"


def _trust(forecast: Mapping[str, Any]) -> Iterator[str]:
    yield "Held against what was measured on two cores (tokens per second):"
    for one in forecast["check"]:
        yield (
            f"  batch {one['batch']:>2} {one['arm']:<8} predicted {one['predicted']:>6.1f}, "
            f"measured {one['measured']:>6.1f}: {one['error']:+.1%}"
        )
    laser = forecast["laser"]
    yield (
        f"Held against LASER's example, 10 M users x 250 tokens by Qwen-7B on V100s: "
        f"{laser['published_days']:g} GPU days, so {laser['published_rate']:.1f} tokens/s of each"
    )
    for figure in laser["figures"]:
        yield (
            f"  {figure['days']:>6.0f} days, {figure['rate']:>7.1f} tokens/s: "
            + (figure["assumptions"])
        )


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


def _amount(value: float | None) -> str:
    """Three digits, or whole numbers."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
