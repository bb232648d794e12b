"""The frame of a chart and the pieces of a page that the sweep's figures share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from features import formats

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 40, 388, 10, 186
TONES = ("c0", "c1", "c2", "c3")
PLURALS = {"user": "users", "item": "items"}


def section(title: str, figures: Sequence[Markup]) -> Markup:
    """Figures under a heading."""
    return Markup('<h2>{}</h2><div class="pair">{}</div>').format(title, Markup("").join(figures))


def figure(title: str, drawn: Markup) -> Markup:
    """A chart under its title."""
    return Markup("<figure style='margin:0'><h3>{}</h3>{}</figure>").format(title, drawn)


def svg(title: str, parts: Sequence[Markup], legends: int) -> Markup:
    """A chart with room for so many lines of legend."""
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT + 16 * legends, title, Markup("").join(parts))


def point(said: str, x: float, down: Callable[[float], float], rate: Any, tone: str) -> Markup:
    """A dot at the mean of `rate` in its interval; `said` is shown when it is pointed at."""
    return Markup(
        '<g><title>{0}</title><line class="bound {1}" x1="{2:.1f}" x2="{2:.1f}" y1="{3:.1f}" '
        'y2="{4:.1f}"/><circle class="{1}" cx="{2:.1f}" cy="{5:.1f}" r="3.5"/></g>'
    ).format(said, tone, x, down(rate["low"]), down(rate["high"]), down(rate["mean"]))


def grid(y: float, label: str) -> Markup:
    """A horizontal line with its value."""
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
    return line.format(LEFT, RIGHT, y, y) + text("end", LEFT - 6, y + 4, label)


def legend(number: int, name: str, tone: str) -> Markup:
    """What a tone stands for, one line per number."""
    y = HEIGHT + 16 * number
    mark = Markup('<circle class="{}" cx="{}" cy="{}" r="4"/>').format(tone, LEFT, y)
    return mark + text("start", LEFT + 10, y + 4, name)


def text(anchor: str, x: float, y: float, said: str) -> Markup:
    """Words in a chart."""
    return Markup('<text text-anchor="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
        anchor, x, y, said
    )


def tokens_of(arm: Mapping[str, Any]) -> str:
    """Tokens per pass with their interval."""
    tokens = arm["tokens_per_pass"]
    low, high = formats.decimal(tokens["low"]), formats.decimal(tokens["high"])
    return f"{formats.decimal(tokens['mean'])} [{low}, {high}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Rows under their head; the first column names them."""

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
