"""What verification rules earn, against what the text gives up for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from features import charts, formats
from jobs.plot_frame import (
    BOTTOM,
    LEFT,
    PLURALS,
    RIGHT,
    TONES,
    TOP,
    figure,
    grid,
    legend,
    point,
    section,
    svg,
    table,
    text,
    tokens_of,
)

Rules = Sequence[Mapping[str, Any]]


def rules_section(rules: Rules) -> Markup:
    """A chart for every kind and a table; nothing where no rule was tried."""
    if not rules:
        return Markup("")
    kinds = list(dict.fromkeys(rule["kind"] for rule in rules))
    drawn = [
        figure(
            f"{PLURALS[kind]}: tokens per pass against nats per token",
            trade_off_chart(f"Rules: {PLURALS[kind]}", [r for r in rules if r["kind"] == kind]),
        )
        for kind in kinds
    ]
    rows = [
        (
            f"{rule['kind']}, {rule['rule']}",
            tokens_of(rule),
            formats.decimal(rule["nats_per_token"]["mean"], 4),
        )
        for rule in rules
    ]
    head = ("rule, one row at a time", "tokens per pass", "nats per token given up")
    return section("Rules", drawn) + table(head, rows)


def trade_off_chart(title: str, rules: Rules) -> Markup:
    """A point per rule: speed, with its interval, over what it costs; a line per family."""
    dearest = max(rule["nats_per_token"]["mean"] for rule in rules) or 1.0
    high = max(rule["tokens_per_pass"]["high"] for rule in rules)

    def down(tokens: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * tokens / high

    def across(rule: Mapping[str, Any]) -> float:
        return LEFT + 14 + (RIGHT - LEFT - 28) * rule["nats_per_token"]["mean"] / dearest

    parts = [grid(down(tick), f"{tick:g}") for tick in charts.ticks(0.0, high, 4)]
    parts += [
        text("middle", across({"nats_per_token": {"mean": tick}}), BOTTOM + 16, f"{tick:g}")
        for tick in charts.ticks(0.0, dearest, 4)
    ]
    parts.append(text("middle", (LEFT + RIGHT) / 2, BOTTOM + 34, "nats per token given up"))
    families = list(dict.fromkeys(map(_family, rules)))
    for number, family in enumerate(families):
        tone, own = TONES[number % len(TONES)], [r for r in rules if _family(r) == family]
        own.sort(key=across)
        corners = " ".join(
            f"{across(rule):.1f},{down(rule['tokens_per_pass']['mean']):.1f}" for rule in own
        )
        parts.append(Markup('<polyline class="{}" points="{}"/>').format(tone, corners))
        parts += [
            point(_said(rule), across(rule), down, rule["tokens_per_pass"], tone) for rule in own
        ]
        parts.append(legend(number, family, tone))
    return svg(title, parts, len(families))


def _family(rule: Mapping[str, Any]) -> str:
    """Rules that differ in one number: `k=2, p=0.1` is of `k=2`."""
    return rule["rule"].partition(",")[0].partition(" of ")[0]


def _said(rule: Mapping[str, Any]) -> str:
    nats = formats.decimal(rule["nats_per_token"]["mean"], 4)
    return f"{rule['rule']}: {tokens_of(rule)} tokens per pass, {nats} nats per token"
