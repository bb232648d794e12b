"""The forecast as one SVG that loads nothing: what moves the cost, and speed over batch sizes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from features import charts, formats
from jobs.plot_frame import BOTTOM, LEFT, RIGHT, TONES, TOP, grid, legend, svg, text

_MARGIN, _TITLE = 20, 30
_LINES = {
    "plain": "plain",
    "drafted": "drafts, as many as pay",
    "fixed": "drafts, always {:.2g} for each row",
}
_STYLE = """
svg { font: 12px/1 system-ui, sans-serif; --page: #fff; --ink: #1d2329; --muted: #5c6670;
  --line: #dfe3e6; --c0: #2f6db0; --c1: #d08a2e; --c2: #3f8f6b; --c3: #a4577f; }
@media (prefers-color-scheme: dark) { svg { --page: #15181b; --ink: #e6e9ec; --muted: #9aa5af;
  --line: #30363c; --c0: #6aa5e3; --c1: #e0a65a; --c2: #6cbf97; --c3: #d58bb2; } }
.page { fill: var(--page); } text { fill: var(--muted); } .head { fill: var(--ink);
  font-weight: 600; } .grid { stroke: var(--line); } .zero { stroke: var(--muted); }
polyline { fill: none; stroke-width: 2; } .bound { stroke-width: 2.5; } circle { stroke: none; }
.c0 { fill: var(--c0); stroke: var(--c0); } .c1 { fill: var(--c1); stroke: var(--c1); }
.c2 { fill: var(--c2); stroke: var(--c2); } .c3 { fill: var(--c3); stroke: var(--c3); }
polyline.c0, polyline.c1, polyline.c2, polyline.c3 { fill: none; }
"""
_MOST_LABELS = 10


def render(forecast: Mapping[str, Any]) -> str:
    """The picture of `plan.json`."""
    panels = [
        (f"Percent more or less {forecast['unit']}, if one thing is otherwise", _tornado(forecast)),
        ("New tokens per second of a device, by batch size", _speeds(forecast["by_batch"])),
    ]
    top, drawn = float(_MARGIN), []
    for title, chart in panels:
        height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', chart)[1])  # type: ignore[index]
        place = Markup('<svg x="{}" y="{:.0f}" width="400" height="{:.0f}" ').format(
            _MARGIN, top + _TITLE, height
        )
        head = Markup('<text class="head" x="{}" y="{:.0f}">{}</text>').format(
            _MARGIN, top + 12, title
        )
        drawn += [head, Markup(chart.replace("<svg ", place, 1))]
        top += _TITLE + height + _MARGIN
    return str(
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1:.0f}" width="{2}" '
            'role="img" aria-label="Cost forecast"><style>{3}</style><rect class="page" '
            'width="{0}" height="{1:.0f}"/>{4}</svg>\n'
        ).format(400 + 2 * _MARGIN, top, 2 * (400 + 2 * _MARGIN), Markup(_STYLE),
                 Markup("\n").join(drawn))
    )  # fmt: skip


def _tornado(forecast: Mapping[str, Any]) -> Markup:
    """What each thing does to the cost, the largest first."""
    spans: dict[str, list[float]] = {}
    for record in forecast["sensitivity"]:
        if record["cost_change"] is not None:
            name = f"{record['what']} \N{PLUS-MINUS SIGN}{abs(record['factor'] - 1):.0%}"
            spans.setdefault(name, []).append(100.0 * record["cost_change"])
    order = sorted(spans, key=lambda name: max(spans[name]) - min(spans[name]), reverse=True)
    intervals = [
        charts.Interval(
            name, 0.0, min(spans[name]), max(spans[name]), TONES[0],
            f"{name}: {min(spans[name]):+.1f} to {max(spans[name]):+.1f} %",
        )
        for name in order
    ]  # fmt: skip
    return charts.interval_chart("Sensitivity", "Change of the cost in percent.", intervals)


def _speeds(by_batch: Sequence[Mapping[str, float]]) -> Markup:
    """Lines over evenly spaced batch sizes."""
    high = max(row[name] for row in by_batch for name in _LINES)
    last = max(len(by_batch) - 1, 1)
    every = -(-len(by_batch) // _MOST_LABELS)  # labels of all would touch

    def down(speed: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * speed / high

    def across(place: int) -> float:
        return LEFT + 14 + (RIGHT - LEFT - 28) * place / last

    parts = [grid(down(tick), _short(tick)) for tick in charts.ticks(0.0, high, 4)]
    parts += [
        text("middle", across(place), BOTTOM + 16, f"{row['rows']:g}")
        for place, row in enumerate(by_batch)
        if (last - place) % every == 0
    ]
    parts.append(text("middle", (LEFT + RIGHT) / 2, BOTTOM + 34, "rows in a batch"))
    for number, (name, wording) in enumerate(_LINES.items()):
        said = wording.format(by_batch[0]["fixed_drafts"])
        corners = " ".join(
            f"{across(place):.1f},{down(row[name]):.1f}" for place, row in enumerate(by_batch)
        )
        parts.append(Markup('<polyline class="{}" points="{}"/>').format(TONES[number], corners))
        parts += [
            Markup(
                '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3"><title>{}</title></circle>'
            ).format(
                TONES[number], across(place), down(row[name]),
                f"{said}, {row['rows']:g} rows: {formats.count(row[name])} tokens per second",
            )
            for place, row in enumerate(by_batch)
        ]  # fmt: skip
        parts.append(legend(number, said, TONES[number]))
    return svg("Speed by batch size", parts, len(_LINES))


def _short(number: float) -> str:
    return f"{number / 1000:g}k" if number >= 1000 else f"{number:g}"
