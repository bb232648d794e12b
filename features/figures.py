"""The figures of the report: which numbers go into which chart, and in which colours."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from features import charts, formats

_ARM_TONES = {"transformers.generate": "quiet", "plain": "quiet", "strict": "c1", "relaxed": "c0"}
_TONES = {"knowledge": "c0", "plain": "c0", "shuffled": "c1", "canary": "c1"}  # of arms
_OTHER_ARM = "c2"
_MEANINGS = {  # of the tones
    "c0": "texts of the model",
    "c1": "bounds: texts of others, and knowing the test rows",
    _OTHER_ARM: "controls without a model",
}
_HUES = 8  # classes c0 to c7 of the page
_MOST_BARS = 40
_PLURALS = {"user": "users", "item": "items", "all": "users and items"}

Rows = Sequence[Mapping[str, Any]]


def decoding_speed(arms: Rows, kind: str, is_doubted: bool = False) -> Markup:
    """Tokens per second of each decoding arm, on one scale for both kinds; grey where in doubt."""
    fastest = max((arm["tokens_per_second"] or 0.0 for arm in arms), default=0.0)
    bars = [
        charts.Bar(
            arm["arm"].removeprefix("transformers."),
            arm["tokens_per_second"] or 0.0,
            f"{formats.decimal(arm['tokens_per_second'], 1)}/s",
            "quiet" if is_doubted else _ARM_TONES.get(arm["arm"], "c2"),
            f"{arm['arm']}: {formats.decimal(arm['tokens_per_second'], 1)} tokens per second, "
            f"{formats.times(arm['ratio_to_plain'])} plain decoding",
        )
        for arm in arms
        if arm["kind"] == kind
    ]
    title = f"Decoding speed, {_PLURALS[kind]}"
    return charts.bar_chart(title, "Tokens per second of every decoding arm.", bars, fastest)


def acceptance_by_source(rows: Rows) -> Markup:
    """Share of drafted tokens that stayed, by source."""
    bars = [
        charts.Bar(
            row["source"],
            row["rate"],
            formats.percent(row["rate"]),
            "c0",
            f"{row['source']}: {formats.count(row['accepted'])} of "
            f"{formats.count(row['drafted'])} drafted tokens accepted",
        )
        for row in rows
    ]
    largest = max(row["rate"] for row in rows)
    return charts.bar_chart(
        "Acceptance by source", "Share of drafted tokens that stayed, by source.", bars, largest
    )


def acceptance_by_depth(rows: Rows) -> Markup:
    """Share of drafted tokens that stayed, by distance from the last committed token."""
    dots = [
        charts.Dot(
            row["depth"],
            row["rate"],
            f"depth {row['depth']}: {formats.count(row['accepted'])} of "
            f"{formats.count(row['drafted'])} accepted ({formats.percent(row['rate'])})",
        )
        for row in rows
    ]
    return charts.share_line(
        "Acceptance by depth",
        "Share of drafted tokens that stayed, by their depth in the draft tree.",
        dots,
        "depth in the draft tree",
    )


def group_sizes(groups: Rows, kind: str) -> Markup:
    """Entities of each group of one kind, coloured by route; the smallest may be left out."""
    shown = [group for group in groups if group["kind"] == kind][:_MOST_BARS]
    bars = [
        charts.Bar(
            short_group(group["kind"], group["group_id"], group["route"]),
            group["size"],
            formats.count(group["size"]),
            "c0" if group["route"] == "collaborative" else "quiet",
            f"{group['group_id']} ({group['route']}): {formats.count(group['size'])} "
            f"{_PLURALS[kind]}, mean distance {formats.decimal(group['distance'], 3)}",
        )
        for group in shown
    ]
    largest = max(group["size"] for group in shown)
    title = f"Sizes of groups of {_PLURALS[kind]}"
    return charts.bar_chart(title, "Number of entities in each group.", bars, largest)


def hidden_groups(groups: Rows, kind: str) -> int:
    """How many groups `group_sizes` leaves out."""
    return max(0, sum(group["kind"] == kind for group in groups) - _MOST_BARS)


def embedding_map(points: Rows, groups: Rows) -> Markup:
    """Users as circles and items as squares, in the colours of `group_legend`."""
    tones = {(row["kind"], row["group_id"]): row["tone"] for row in group_legend(groups)}
    dots = [
        charts.Dot(
            point["x"],
            point["y"],
            _name_point(point),
            tones.get((point["kind"], point["group_id"]), "quiet"),
            is_square=point["kind"] == "item",
        )
        for point in points
    ]
    description = "Users are circles and items squares; points near each other behave alike."
    return charts.scatter("Map of the embeddings", description, dots)


def group_legend(groups: Rows) -> list[dict[str, str]]:
    """Kind, id and colour of every collaborative group; hues repeat after eight."""
    collaborative = [group for group in groups if group["route"] == "collaborative"]
    return [
        {
            "kind": group["kind"],
            "group_id": group["group_id"],
            "name": short_group(group["kind"], group["group_id"], group["route"]),
            "tone": f"c{index % _HUES}",
        }
        for index, group in enumerate(collaborative)
    ]


def auc_gains(models: Mapping[str, Mapping[str, Any]]) -> Markup | None:
    """AUC gained by every arm of each model over its base arm."""
    intervals = [
        charts.Interval(
            f"{model}, {arm}",
            gain["auc"],
            gain["low"],
            gain["high"],
            _TONES.get(arm, _OTHER_ARM),
            f"{model}, {arm} over base: {formats.signed(gain['auc'])} "
            f"[{formats.signed(gain['low'])}, {formats.signed(gain['high'])}]",
        )
        for model, result in models.items()
        for arm, gain in result["gains"].items()
        if None not in (gain["auc"], gain["low"], gain["high"])
    ]
    if not intervals:
        return None
    description = "AUC of each arm over the base arm with its interval; right of zero is better."
    return charts.interval_chart("AUC over the base arm", description, intervals)


def gain_legend(models: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What each colour of `auc_gains` means, and its tone, of those that are there."""
    arms = {arm for result in models.values() for arm in result["gains"]}
    used = {_TONES.get(arm, _OTHER_ARM) for arm in arms}
    return [(words, tone) for tone, words in _MEANINGS.items() if tone in used]


def _name_point(point: Mapping[str, Any]) -> str:
    name = f"{point['kind']} {point['entity_id']}"
    called = f"{point['title']} ({name})" if point["title"] else name
    return f"{called}, group {point['group_id'] or 'none'}"


def short_group(kind: str, group_id: str, route: str = "") -> str:
    """The id without the kind and route in front, which title and colour say already."""
    name = re.sub(rf"^(({kind}|{route or kind})[:/.-])+", "", group_id)
    return f"group {name}" if name.isdigit() else name
