"""What every chart is drawn with: a titled SVG, labelled groups with hover text, text and rules.

All text is escaped. Names of classes are those of the page's style, which colours them.
"""

import re
from collections.abc import Iterable
from unicodedata import east_asian_width

from markupsafe import Markup

WIDTH = 400  # units; text keeps a readable size on a phone
ROW = 26
_CHARACTER = 7.2  # width of one, on average
_LONGEST = 22  # columns of a label; the rest is in its hover text


def drawing(
    title: str, description: str, parts: Iterable[Markup], height: float, width: float = WIDTH
) -> Markup:
    """A whole chart; its title and description are what a screen reader says."""
    name = "chart-" + re.sub(r"\W+", "-", title.lower())
    return Markup(
        '<svg class="chart" viewBox="0 0 {width} {height:.0f}" role="img" '
        'aria-labelledby="{name}-title {name}-desc">'
        '<title id="{name}-title">{title}</title><desc id="{name}-desc">{description}</desc>'
        "{body}</svg>"
    ).format(
        width=width, height=height, name=name, title=title, description=description,
        body=Markup("\n").join(parts),
    )  # fmt: skip


def hovered(hover: str, body: Markup) -> Markup:
    """Parts that show one text when pointed at."""
    return Markup("<g><title>{}</title>{}</g>").format(hover, body)


def label_width(labels: Iterable[str]) -> float:
    """Units that the longest of some labels takes."""
    return 14 + _CHARACTER * min(_LONGEST, max(map(_columns, labels), default=0))


def row_label(label: str, top: float) -> Markup:
    """The name of a row of bars, cut if it is long."""
    shown = label
    while _columns(shown) > _LONGEST:
        shown = shown.removesuffix("\u2026")[:-1] + "\u2026"
    return words("start", 0, top + 17, shown)


def _columns(text: str) -> int:
    """Columns of a text; Chinese, Japanese and Korean letters take two."""
    return len(text) + sum(east_asian_width(letter) in "WF" for letter in text)


def words(anchor: str, x: float, y: float, text: str) -> Markup:
    """A line of text, from `x` on (`start`), around it (`middle`) or up to it (`end`)."""
    return Markup('<text text-anchor="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
        anchor, x, y, text
    )


def rule(left: float, right: float, y: float) -> Markup:
    """A horizontal line of the grid."""
    return Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
        left, right, y, y
    )
