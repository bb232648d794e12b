"""The sweep as one HTML page that loads nothing: lines over what is varied, and gains."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from features import charts, formats

_WIDTH, _HEIGHT = 400, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 388, 10, 186
_TONES = ("c0", "c1", "c2", "c3")
_PLURALS = {"user": "users", "item": "items"}
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
        parts.append(_section(title, [*drawn, _references(arms, experiment)]))
    for experiment, (title, x_name) in _LINES.items():
        parts.append(
            _section(title, [_lines(arms, experiment, kind, title, x_name) for kind in kinds])
        )
    parts += [_rules(sweep["rules"]), _table(arms)]
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


def _section(title: str, figures: Sequence[Markup]) -> Markup:
    return Markup('<h2>{}</h2><div class="pair">{}</div>').format(title, Markup("").join(figures))


def _gains(arms: Rows, experiment: str, kind: str) -> Markup:
    """Gains of the arms over what each is held against, in percent."""
    intervals = [
        charts.Interval(
            arm["series"],
            100 * arm["gain"]["mean"],
            100 * arm["gain"]["low"],
            100 * arm["gain"]["high"],
            "c0",
            f"{arm['series']}: {_tokens(arm)} tokens per pass, {_gain(arm)} over {arm['against']}",
        )
        for arm in arms
        if (arm["experiment"], arm["kind"]) == (experiment, kind)
        and arm["series"] != arm["against"]
    ]
    title = f"{_GAINS[experiment]}: {_PLURALS[kind]}"
    description = "Percent more tokens per pass, with its 90 % interval."
    return _figure(
        f"{_PLURALS[kind]}: percent more tokens per pass",
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
    drawn = line_chart(f"{title}: {_PLURALS[kind]}", own, x_name)
    return _figure(f"{_PLURALS[kind]}: tokens per pass", drawn)


def _figure(title: str, drawn: Markup) -> Markup:
    return Markup("<figure style='margin:0'><h3>{}</h3>{}</figure>").format(title, drawn)


def line_chart(title: str, arms: Rows, x_name: str) -> Markup:
    """A line for every series over evenly spaced values, each point with its interval."""
    values = list(dict.fromkeys(arm["value"] for arm in arms))
    names = list(dict.fromkeys(arm["series"] for arm in arms))
    low = min(arm["tokens_per_pass"]["low"] for arm in arms)
    high = max(arm["tokens_per_pass"]["high"] for arm in arms)
    margin = 0.06 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def down(tokens: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (tokens - low) / (high - low)

    def across(value: str) -> float:
        return _LEFT + 14 + (_RIGHT - _LEFT - 28) * values.index(value) / max(len(values) - 1, 1)

    parts = [_grid(down(tick), f"{tick:g}") for tick in charts.ticks(low, high, 4)]
    parts += [_text("middle", across(value), _BOTTOM + 16, value) for value in values]
    parts.append(_text("middle", (_LEFT + _RIGHT) / 2, _BOTTOM + 34, x_name))
    for number, name in enumerate(names):
        tone, own = _TONES[number % len(_TONES)], [arm for arm in arms if arm["series"] == name]
        nudge = 4.0 * (number - (len(names) - 1) / 2)  # or intervals would hide each other
        places = [(across(arm["value"]) + nudge, arm) for arm in own]
        corners = " ".join(
            f"{x:.1f},{down(arm['tokens_per_pass']['mean']):.1f}" for x, arm in places
        )
        parts.append(Markup('<polyline class="{}" points="{}"/>').format(tone, corners))
        parts += [_point(x, down, arm, tone) for x, arm in places]
        parts.append(_legend(number, name, tone))
    height = _HEIGHT + 16 * len(names)
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, height, title, Markup("").join(parts))


def _point(x: float, down: Any, arm: Mapping[str, Any], tone: str) -> Markup:
    tokens = arm["tokens_per_pass"]
    return Markup(
        '<g><title>{0}, {1}: {2} tokens per pass</title><line class="bound {3}" x1="{4:.1f}" '
        'x2="{4:.1f}" y1="{5:.1f}" y2="{6:.1f}"/><circle class="{3}" cx="{4:.1f}" cy="{7:.1f}" '
        'r="3.5"/></g>'
    ).format(
        arm["series"], arm["value"], _tokens(arm), tone, x,
        down(tokens["low"]), down(tokens["high"]), down(tokens["mean"]),
    )  # fmt: skip


def _grid(y: float, text: str) -> Markup:
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
    return line.format(_LEFT, _RIGHT, y, y) + _text("end", _LEFT - 6, y + 4, text)


def _legend(number: int, name: str, tone: str) -> Markup:
    y = _HEIGHT + 16 * number
    mark = Markup('<circle class="{}" cx="{}" cy="{}" r="4"/>').format(tone, _LEFT, y)
    return mark + _text("start", _LEFT + 10, y + 4, name)


def _text(anchor: str, x: float, y: float, text: str) -> Markup:
    return Markup('<text text-anchor="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
        anchor, x, y, text
    )


def _tokens(arm: Mapping[str, Any]) -> str:
    tokens = arm["tokens_per_pass"]
    low, high = formats.decimal(tokens["low"]), formats.decimal(tokens["high"])
    return f"{formats.decimal(tokens['mean'])} [{low}, {high}]"


def _gain(arm: Mapping[str, Any]) -> str:
    gain = arm["gain"]
    low, middle, high = (formats.signed(100 * gain[name], 1) for name in ("low", "mean", "high"))
    return f"{middle} % [{low}, {high}]"


def _rules(rules: Rows) -> Markup:
    if not rules:
        return Markup("")
    rows = [
        (
            f"{rule['kind']}, {rule['rule']}",
            _tokens(rule),
            formats.decimal(rule["nats_per_token"]["mean"], 4),
        )
        for rule in rules
    ]
    head = ("rule, one row at a time", "tokens per pass", "nats per token given up")
    return Markup("<h2>Rules</h2>") + _rows(head, rows)


def _table(arms: Rows) -> Markup:
    rows = [
        (
            f"{arm['kind']}, {arm['experiment']}: {arm['series']} {arm['value']}",
            formats.decimal(arm["texts_per_pool"], 1),
            _tokens(arm),
            f"{_gain(arm)} over {arm['against']}",
            formats.times(arm["speedup"]["mean"] if arm["speedup"] else None),
        )
        for arm in arms
    ]
    head = ("arm", "texts per pool", "tokens per pass", "gain", "expected speed-up, batch 1")
    return Markup("<h2>All numbers</h2><details><summary>Every arm</summary>{}</details>").format(
        _rows(head, rows)
    )


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    def line(cells: Sequence[str], tag: str) -> Markup:
        drawn = [
            Markup("<{0}{1}>{2}</{0}>").format(
                tag, Markup("") if place else Markup(' class="name"'), cell
            )
            for place, cell in enumerate(cells)
        ]
        return Markup("<tr>{}</tr>").format(Markup("").join(drawn))

    return Markup("<table>{}{}</table>").format(
        line(head, "th"), Markup("").join(line(row, "td") for row in rows)
    )
