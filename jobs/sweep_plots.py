"""The sweep as one HTML page that loads nothing: lines over what is varied, and gains."""

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
from jobs.trade_off_plot import rules_section

_LINES = {  # experiment -> title, name of the horizontal axis
    "groups": ("Number of groups", "collaborative groups"),
    "texts": ("Size of a pool", "texts per pool, at most"),
    "depth": ("Depth of drafts", "levels"),
    "nodes": ("Drafted nodes", "nodes per step, at most"),
}
_GAINS = {
    "scope": "Groups, random groups and one pool",
    "sources": "Sources, against all three",
    "first texts": "Which texts come first, against random ones",
}
_STYLE = """
:root { --page: #fff; --ink: #1d2329; --muted: #5c6670; --line: #dfe3e6; --c0: #2f6db0;
  --c1: #d08a2e; --c2: #3f8f6b; --c3: #a4577f; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #15181b; --ink: #e6e9ec; --muted: #9aa5af; --line: #30363c; --c0: #6aa5e3;
    --c1: #e0a65a; --c2: #6cbf97; --c3: #d58bb2; } }
body { margin: 0 auto; max-width: 1080px; padding: 24px; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; } h2 { font-size: 19px; margin: 32px 0 4px; } h3 { font-size: 14px; }
p { max-width: 76ch; color: var(--muted); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 8px 40px; }
.chart { width: 100%; max-width: 460px; height: auto; overflow: visible;
  font: 12px/1 system-ui, sans-serif; }
.chart text { fill: var(--muted); } .chart .grid { stroke: var(--line); }
.chart .zero { stroke: var(--muted); } .chart .bound { stroke-width: 2; }
.chart polyline { fill: none; stroke-width: 2; } .chart circle { stroke: none; }
.c0 { fill: var(--c0); stroke: var(--c0); } .c1 { fill: var(--c1); stroke: var(--c1); }
.c2 { fill: var(--c2); stroke: var(--c2); } .c3 { fill: var(--c3); stroke: var(--c3); }
.chart .legend { stroke: none; }
table { border-collapse: collapse; width: 100%; font-size: 13px; margin-top: 12px; }
td, th { padding: 3px 10px 3px 0; border-bottom: 1px solid var(--line); text-align: right; }
td.name, th.name { text-align: left; } summary { cursor: pointer; }
"""

Rows = Sequence[Mapping[str, Any]]


def render(sweep: Mapping[str, Any]) -> str:
    """The page of `sweep.json`."""
    arms: Rows = sweep["arms"]
    kinds = list(dict.fromkeys(arm["kind"] for arm in arms))
    parts = [_lead(sweep)]
    for experiment, title in _GAINS.items():
        drawn = [_gains(arms, experiment, kind) for kind in kinds]
        parts.append(section(title, [*drawn, _references(arms, experiment)]))
    for experiment, (title, x_name) in _LINES.items():
        parts.append(
            section(title, [_lines(arms, experiment, kind, title, x_name) for kind in kinds])
        )
    parts += [rules_section(sweep["rules"]), _table(arms)]
    return str(
        Markup(
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            "<title>Sweep of pools: {}</title><style>{}</style></head><body>{}</body></html>\n"
        ).format(sweep["run"], Markup(_STYLE), Markup("\n").join(parts))
    )


def _lead(sweep: Mapping[str, Any]) -> Markup:
    return Markup(
        "<h1>Where groups help</h1><p>Run {}, {}. Strict decoding of held-out texts, replayed "
        "against pools of {} earlier texts; tokens per forward pass with all drafts verified. Bars "
        "and brackets are 90 % intervals of a bootstrap over rows and seeds; gains are compared "
        "row by row, so their intervals are narrower than those of the numbers themselves.</p>"
    ).format(sweep["run"], sweep["model"], formats.count(sweep["past_texts"]))


def _gains(arms: Rows, experiment: str, kind: str) -> Markup:
    """Gains of the arms over what each is held against, in percent."""
    intervals = [
        charts.Interval(
            arm["series"],
            100 * arm["gain"]["mean"],
            100 * arm["gain"]["low"],
            100 * arm["gain"]["high"],
            "c0",
            f"{arm['series']}: {tokens_of(arm)} per pass, {_gain(arm)} over {arm['against']}",
        )
        for arm in arms
        if (arm["experiment"], arm["kind"]) == (experiment, kind)
        and arm["series"] != arm["against"]
    ]
    title = f"{_GAINS[experiment]}: {PLURALS[kind]}"
    description = "Percent more tokens per pass, with its 90 % interval."
    return figure(
        f"{PLURALS[kind]}: percent more tokens per pass",
        charts.interval_chart(title, description, intervals),
    )


def _references(arms: Rows, experiment: str) -> Markup:
    """What each arm is held against, in words."""
    pairs = {
        arm["series"]: arm["against"]
        for arm in arms
        if arm["experiment"] == experiment and arm["series"] != arm["against"]
    }
    words = "; ".join(f"{series}: over {against}" for series, against in pairs.items())
    return Markup("<p>{}.</p>").format(words)


def _lines(arms: Rows, experiment: str, kind: str, title: str, x_name: str) -> Markup:
    own = [arm for arm in arms if (arm["experiment"], arm["kind"]) == (experiment, kind)]
    drawn = line_chart(f"{title}: {PLURALS[kind]}", own, x_name)
    return figure(f"{PLURALS[kind]}: tokens per pass", drawn)


def line_chart(title: str, arms: Rows, x_name: str) -> Markup:
    """A line for every series over evenly spaced values, each point with its interval."""
    values = list(dict.fromkeys(arm["value"] for arm in arms))
    names = list(dict.fromkeys(arm["series"] for arm in arms))
    low = min(arm["tokens_per_pass"]["low"] for arm in arms)
    high = max(arm["tokens_per_pass"]["high"] for arm in arms)
    margin = 0.06 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def down(tokens: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (tokens - low) / (high - low)

    def across(value: str) -> float:
        return LEFT + 14 + (RIGHT - LEFT - 28) * values.index(value) / max(len(values) - 1, 1)

    parts = [grid(down(tick), f"{tick:g}") for tick in charts.ticks(low, high, 4)]
    parts += [text("middle", across(value), BOTTOM + 16, value) for value in values]
    parts.append(text("middle", (LEFT + RIGHT) / 2, BOTTOM + 34, x_name))
    for number, name in enumerate(names):
        tone, own = TONES[number % len(TONES)], [arm for arm in arms if arm["series"] == name]
        nudge = 4.0 * (number - (len(names) - 1) / 2)  # or intervals would hide each other
        places = [(across(arm["value"]) + nudge, arm) for arm in own]
        corners = " ".join(
            f"{x:.1f},{down(arm['tokens_per_pass']['mean']):.1f}" for x, arm in places
        )
        parts.append(Markup('<polyline class="{}" points="{}"/>').format(tone, corners))
        parts += [point(_said(arm), x, down, arm["tokens_per_pass"], tone) for x, arm in places]
        parts.append(legend(number, name, tone))
    return svg(title, parts, len(names))


def _said(arm: Mapping[str, Any]) -> str:
    return f"{arm['series']}, {arm['value']}: {tokens_of(arm)} tokens per pass"


def _gain(arm: Mapping[str, Any]) -> str:
    gain = arm["gain"]
    low, middle, high = (formats.signed(100 * gain[name], 1) for name in ("low", "mean", "high"))
    return f"{middle} % [{low}, {high}]"


def _table(arms: Rows) -> Markup:
    rows = [
        (
            f"{arm['kind']}, {arm['experiment']}: {arm['series']} {arm['value']}",
            formats.decimal(arm["texts_per_pool"], 1),
            tokens_of(arm),
            f"{_gain(arm)} over {arm['against']}",
            formats.times(arm["speedup"]["mean"] if arm["speedup"] else None),
        )
        for arm in arms
    ]
    head = ("arm", "texts per pool", "tokens per pass", "gain", "expected speed-up, batch 1")
    return Markup("<h2>All numbers</h2><details><summary>Every arm</summary>{}</details>").format(
        table(head, rows)
    )
