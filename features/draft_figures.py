"""The figures of decoding in the report: what each step brought, how well drafts were judged."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from features import charts, draft_charts, figures, formats

PARTS = {"draft": "c1", "forward": "c0", "verify": "c2", "bookkeeping": "quiet"}  # of a step
_RULES = {"plain": "quiet", "strict": "c1", "relaxed": "c0", "sampled": "c2"}
_MOST_BARS = 30

Rows = Sequence[Mapping[str, Any]]


def waterfall(steps: Rows, is_doubted: bool = False) -> Markup:
    """Tokens per second from plain decoding to ours, a step at a time; grey where in doubt."""
    drawn = [
        draft_charts.Step(
            step["step"],
            step["tokens_per_second"] or 0.0,
            formats.times(step["ratio_to_plain"]),
            f"{step['step']}: {formats.fact(step['adds']).rstrip('.')}; "
            f"{formats.decimal(step['tokens_per_second'], 1)} tokens per second, "
            f"{formats.times(step['ratio_to_plain'])} plain decoding, "
            f"{formats.decimal(step['tokens_per_forward'])} tokens per forward pass",
        )
        for step in steps
    ]
    return draft_charts.waterfall(
        "From plain decoding to ours",
        "Tokens per second after every step, and the ratio to plain decoding.",
        drawn,
        is_doubted,
    )


def calibration(by_rule: Rows) -> Markup:
    """How often drafts stayed against how often that was expected."""
    clouds = [
        draft_charts.Cloud(
            tone := rule_tone(rule["rule"]),
            [
                charts.Dot(
                    one["expected"],
                    one["rate"],
                    f"{rule['rule']}, expected {formats.percent(one['low'])} to "
                    f"{formats.percent(one['high'])}: {formats.count(one['accepted'])} of "
                    f"{formats.count(one['drafted'])} stayed ({formats.percent(one['rate'])}), "
                    f"{formats.percent(one['expected'])} were expected to",
                    tone,
                    weight=one["drafted"],
                )
                for one in drawn_bins(rule)
            ],
        )
        for rule in by_rule
    ]
    return draft_charts.share_square(
        "Calibration of drafts",
        "Share of drafted tokens that stayed against the share expected; on the diagonal the "
        "two are equal, and larger dots are more tokens.",
        clouds,
        "expected to stay",
        "stayed",
    )


def drawn_bins(rule: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Bins that had drafts."""
    return [one for one in rule["bins"] if None not in (one["expected"], one["rate"])]


def rule_tone(rule: str) -> str:
    """The colour of a verification rule."""
    return _RULES.get(rule, "c3")


def acceptance_by_group(rows: Rows, kind: str) -> Markup:
    """Share of drafted tokens that stayed, in the groups with most rows."""
    shown = of_kind(rows, kind)[:_MOST_BARS]
    bars = [
        charts.Bar(
            figures.short_group(kind, row["group_id"]),
            row["rate"] or 0.0,
            f"{formats.percent(row['rate'])}",
            "c0" if kind == "user" else "c2",
            f"{row['group_id']}: {formats.count(row['accepted'])} of "
            f"{formats.count(row['drafted'])} drafted tokens stayed, "
            f"{formats.decimal(row['tokens_per_forward'])} tokens per forward pass, "
            f"{formats.count(row['rows'])} rows",
        )
        for row in shown
    ]
    largest = max((row["rate"] or 0.0 for row in rows), default=0.0)
    return charts.bar_chart(
        f"Acceptance by group of {kind}s",
        "Share of drafted tokens that stayed, in every group.",
        bars,
        largest,
    )


def of_kind(rows: Rows, kind: str) -> list[Mapping[str, Any]]:
    """Groups of a kind that were drafted for, those of most rows first."""
    found = [row for row in rows if row["kind"] == kind and row["drafted"]]
    return sorted(found, key=lambda row: -row["rows"])


def hidden_groups(rows: Rows, kind: str) -> int:
    """How many groups `acceptance_by_group` leaves out."""
    return max(0, len(of_kind(rows, kind)) - _MOST_BARS)


def step_times(by_wave: Rows) -> Markup:
    """Milliseconds of one step of the engine, by what they were spent on."""
    stacks = []
    for wave in by_wave:
        parts = {name: per_step(wave, name) for name in PARTS}
        spent = ", ".join(f"{name} {formats.decimal(one, 1)} ms" for name, one in parts.items())
        stacks.append(
            draft_charts.Stack(
                f"wave {wave['wave']}",
                [(parts[name], tone) for name, tone in PARTS.items()],
                f"{formats.decimal(sum(parts.values()), 1)} ms",
                f"wave {wave['wave']}, {formats.count(wave['steps'])} steps of "
                f"{formats.decimal(wave['rows_per_step'], 1)} rows: {spent}",
            )
        )
    return draft_charts.stacked_bars(
        "Time per step",
        "Mean milliseconds of a step in every wave, by what they went into.",
        stacks,
    )


def per_step(wave: Mapping[str, Any], part: str) -> float:
    """Mean milliseconds that a step of a wave spent on one part."""
    seconds = wave["seconds_by_part"].get(part) or 0.0
    return 1000 * seconds / wave["steps"] if wave["steps"] else 0.0
