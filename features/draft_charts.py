"""Charts of decoding as inline SVG: a waterfall, stacked bars, and the square of two shares."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from features.charts import Dot
from features.svg import ROW, WIDTH, drawing, hovered, label_width, row_label, rule, words

_FOR_VALUE = 74  # room for the number at a bar's end
_STEP = 30  # height of one of a waterfall


@dataclass(frozen=True)
class Step:
    """Where a quantity is after one more step."""

    label: str
    value: float
    text: str
    hover: str


@dataclass(frozen=True)
class Stack:
    """A bar of parts: (value, tone) each, with a number at its end."""

    label: str
    parts: list[tuple[float, str]]
    text: str
    hover: str


@dataclass(frozen=True)
class Cloud:
    """Dots of one colour, joined in their order."""

    tone: str
    dots: list[Dot]


def waterfall(
    title: str, description: str, steps: Sequence[Step], is_doubted: bool = False
) -> Markup:
    """What every step adds to the one before, or takes from it; the first stands on zero.

    Steps that nobody should believe are grey, gain or loss.
    """
    left = label_width(step.label for step in steps)
    room = WIDTH - left - _FOR_VALUE
    largest = max((step.value for step in steps), default=0.0) or 1.0
    parts: list[Markup] = []
    before = 0.0
    for index, step in enumerate(steps):
        top = index * _STEP
        low, high = sorted((before, step.value))
        tone = "quiet" if is_doubted or not index else "gain" if step.value >= before else "loss"
        start, length = left + room * low / largest, max(1.5, room * (high - low) / largest)
        end = left + room * step.value / largest
        drawn = Markup('<rect class="base" x="{:.1f}" y="{}" width="{:.1f}" height="18"/>').format(
            left, top + 5, room * low / largest
        )
        drawn += Markup(
            '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="18" rx="2"/>'
            '<text class="value" x="{:.1f}" y="{}">{}</text>'
        ).format(
            tone, start, top + 5, length, left + room * high / largest + 7, top + 18, step.text
        )
        if index + 1 < len(steps):
            drawn += Markup(
                '<line class="joint" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>'
            ).format(end, top + 23, top + _STEP + 5)
        parts.append(hovered(step.hover, row_label(step.label, top + 1) + drawn))
        before = step.value
    return drawing(title, description, parts, len(steps) * _STEP + 4)


def stacked_bars(title: str, description: str, stacks: Sequence[Stack]) -> Markup:
    """Bars of parts on one scale, from zero."""
    left = label_width(stack.label for stack in stacks)
    room = WIDTH - left - _FOR_VALUE
    largest = max((sum(value for value, _ in one.parts) for one in stacks), default=0.0) or 1.0
    rows: list[Markup] = []
    for index, stack in enumerate(stacks):
        top, at = index * ROW, left
        drawn = Markup("")
        for value, tone in stack.parts:
            length = room * value / largest
            drawn += Markup(
                '<rect class="{}" x="{:.2f}" y="{}" width="{:.2f}" height="16"/>'
            ).format(tone, at, top + 5, length)
            at += length
        number = Markup('<text class="value" x="{:.1f}" y="{}">{}</text>').format(
            at + 7, top + 17, stack.text
        )
        rows.append(hovered(stack.hover, row_label(stack.label, top) + drawn + number))
    return drawing(title, description, rows, len(stacks) * ROW)


def share_square(
    title: str, description: str, clouds: Sequence[Cloud], x_name: str, y_name: str
) -> Markup:
    """Shares against shares, both from 0 to 1, with the diagonal on which they are equal.

    The area of a dot is its `weight` among those of its cloud.
    """
    left, right, top, bottom = 48.0, 348.0, 26.0, 326.0

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * x, bottom - (bottom - top) * y

    parts: list[Markup] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        across, up = place(share, share)
        parts.append(rule(left, right, up))
        parts.append(
            Markup('<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
                across, top, bottom
            )
        )
        parts.append(words("end", left - 8, up + 4, f"{100 * share:g} %"))
        parts.append(words("middle", across, bottom + 18, f"{100 * share:g} %"))
    parts.append(
        Markup('<line class="ideal" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
            left, bottom, right, top
        )
    )
    for cloud in clouds:
        heaviest = max((dot.weight for dot in cloud.dots), default=0.0) or 1.0
        corners = " ".join("{:.1f},{:.1f}".format(*place(dot.x, dot.y)) for dot in cloud.dots)
        parts.append(
            Markup('<polyline class="thread {}" points="{}"/>').format(cloud.tone, corners)
        )
        for dot in cloud.dots:
            radius = 3 + 9 * (dot.weight / heaviest) ** 0.5
            shape = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>').format(
                dot.tone, *place(dot.x, dot.y), radius
            )
            parts.append(hovered(dot.hover, shape))
    parts.append(words("middle", (left + right) / 2, bottom + 38, x_name))
    parts.append(words("start", left - 44, top - 14, y_name))
    return drawing(title, description, parts, bottom + 46)
