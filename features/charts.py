"""Charts as inline SVG: bars, a line, intervals, a scatter plot.

Every chart carries a title and a description for screen readers, takes its colours from the CSS
classes of the page (so that one drawing serves light, dark and print), and is 400 units wide, so
that its text keeps a readable size on a phone. All text is escaped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from features.svg import ROW, WIDTH, drawing, hovered, label_width, row_label, rule, words


@dataclass(frozen=True)
class Bar:
    """One bar; `tone` is the CSS class that colours it."""

    label: str
    value: float
    text: str
    tone: str
    hover: str = ""


@dataclass(frozen=True)
class Interval:
    """A middle and its bounds."""

    label: str
    middle: float
    low: float
    high: float
    tone: str
    hover: str


@dataclass(frozen=True)
class Dot:
    """A point of a line or a scatter plot."""

    x: float
    y: float
    hover: str
    tone: str = "c0"
    is_square: bool = False
    weight: float = 1.0  # its area, where dots differ in it


def bar_chart(title: str, description: str, bars: Sequence[Bar], largest: float) -> Markup:
    """Horizontal bars from zero; a bar of value `largest` fills the width."""
    left = label_width(bar.label for bar in bars)
    room = WIDTH - left - 74  # the rest is for the number at the bar's end
    rows: list[Markup] = []
    for index, bar in enumerate(bars):
        top = index * ROW
        length = max(1.0, room * bar.value / largest) if largest > 0 else 1.0
        drawn = Markup(
            '<rect class="{}" x="{}" y="{}" width="{:.1f}" height="16" rx="2"/>'
            '<text class="value" x="{:.1f}" y="{}">{}</text>'
        ).format(bar.tone, left, top + 5, length, left + length + 7, top + 17, bar.text)
        rows.append(
            hovered(bar.hover or f"{bar.label}: {bar.text}", row_label(bar.label, top) + drawn)
        )
    return drawing(title, description, rows, len(bars) * ROW)


def share_line(title: str, description: str, dots: Sequence[Dot], x_name: str) -> Markup:
    """A line of shares (0 to 1) over whole numbers that start at 1."""
    left, right, top, bottom = 44, WIDTH - 12, 10, 186
    ceiling = next(
        step
        for step in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
        if step == 1.0 or step >= max(dot.y for dot in dots)
    )
    last = max(2.0, max(dot.x for dot in dots))

    def place(dot: Dot) -> tuple[float, float]:
        across = left + 14 + (right - left - 28) * (dot.x - 1) / (last - 1)
        return across, bottom - (bottom - top) * dot.y / ceiling

    parts = [rule(left, right, bottom - (bottom - top) * share) for share in (0.0, 0.5, 1.0)]
    parts += [
        words("end", left - 8, bottom - (bottom - top) * share + 4, f"{100 * ceiling * share:g} %")
        for share in (0.0, 0.5, 1.0)
    ]
    corners = " ".join("{:.1f},{:.1f}".format(*place(dot)) for dot in dots)
    parts.append(Markup('<polyline class="line" points="{}"/>').format(corners))
    every = math.ceil(len(dots) / 12)
    for index, dot in enumerate(dots):
        parts.append(_mark(dot, *place(dot), size=3.5))
        if index % every == 0:
            parts.append(words("middle", place(dot)[0], bottom + 18, f"{dot.x:g}"))
    parts.append(words("middle", (left + right) / 2, bottom + 38, x_name))
    return drawing(title, description, parts, bottom + 46)


def interval_chart(title: str, description: str, intervals: Sequence[Interval]) -> Markup:
    """Middles with their bounds around a zero line."""
    low = min(0.0, *(interval.low for interval in intervals))
    high = max(0.0, *(interval.high for interval in intervals))
    margin = 0.06 * (high - low) or 1.0
    low, high = low - margin, high + margin
    left = label_width(interval.label for interval in intervals)
    right, bottom = WIDTH - 14, len(intervals) * ROW + 6

    def across(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    parts: list[Markup] = []
    for tick in ticks(low, high, 4):
        name = "zero" if tick == 0 else "grid"
        parts.append(
            Markup('<line class="{0}" x1="{1:.1f}" x2="{1:.1f}" y1="0" y2="{2}"/>').format(
                name, across(tick), bottom
            )
        )
        text = f"{tick:+g}".replace("-", "\N{MINUS SIGN}") if tick else "0"
        parts.append(words("middle", across(tick), bottom + 16, text))
    for index, interval in enumerate(intervals):
        middle = index * ROW + 13
        drawn = Markup(
            '<line class="bound {0}" x1="{1:.1f}" x2="{2:.1f}" y1="{3}" y2="{3}"/>'
            '<circle class="{0}" cx="{4:.1f}" cy="{3}" r="4.5"/>'
        ).format(
            interval.tone, across(interval.low), across(interval.high), middle,
            across(interval.middle),
        )  # fmt: skip
        parts.append(hovered(interval.hover, row_label(interval.label, index * ROW) + drawn))
    return drawing(title, description, parts, bottom + 22)


def scatter(title: str, description: str, dots: Sequence[Dot]) -> Markup:
    """Points on a plane with equal scales; the axes have no unit and are not drawn."""
    left, top = min(dot.x for dot in dots), min(dot.y for dot in dots)
    spread_x = max(dot.x for dot in dots) - left
    spread_y = max(dot.y for dot in dots) - top
    scale = 2 * (WIDTH - 24) / max(spread_x, spread_y / 0.55, 1e-9)
    width, height = 2 * WIDTH, max(120.0, spread_y * scale + 48)
    shift, size = (width - spread_x * scale) / 2, 5.0 if len(dots) <= 400 else 3.5
    marks = [
        _mark(dot, shift + (dot.x - left) * scale, height - 24 - (dot.y - top) * scale, size)
        for dot in dots
    ]
    return drawing(title, description, marks, height, width)


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` round numbers between `low` and `high`; zero, if among them, is exact."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _mark(dot: Dot, x: float, y: float, size: float) -> Markup:
    if dot.is_square:
        shape = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{}" height="{}">').format(
            dot.tone, x - size, y - size, 2 * size, 2 * size
        )
        return shape + Markup("<title>{}</title></rect>").format(dot.hover)
    shape = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}">').format(
        dot.tone, x, y, size
    )
    return shape + Markup("<title>{}</title></circle>").format(dot.hover)
