"""The comparison of decoding arms for the report, and whether its ratios can be true at all."""

from collections.abc import Mapping, Sequence
from typing import Any

from features import measures
from features.formats import decimal, times

_REFERENCE = "transformers.generate"  # no arm of the engine: its passes cost something else
# A drafted pass costs what a plain one does, or more, so that a ratio of speeds is at most that of
# tokens per pass; batches that end unevenly and rounding are given this much.
_POSSIBLE = 1.25

Arms = Sequence[Mapping[str, Any]]


def of_comparison(comparison: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The comparison with ratios to plain decoding, sums over both kinds, and a doubt if any.

    Comparisons did not always count the rows unlike plain decoding's, and those of older programs
    count a row once in every repeat.
    """
    arms = [dict(arm) for arm in comparison["arms"]]
    for name in dict.fromkeys(arm["arm"] for arm in arms):
        parts = [arm for arm in arms if arm["arm"] == name]
        if all(part["kind"] != "all" for part in parts):
            arms.append(_all_kinds(name, parts))
    plain = {arm["kind"]: arm["tokens_per_second"] for arm in arms if arm["arm"] == "plain"}
    for arm in arms:
        arm["ratio_to_plain"] = measures.ratio(arm["tokens_per_second"], plain.get(arm["kind"]))
    strict = next((arm for arm in arms if (arm["arm"], arm["kind"]) == ("strict", "all")), None)
    kept = {key: comparison[key] for key in comparison if key not in ("texts", "waterfall")}
    return (
        {"divergences": []}
        | kept
        | {
            "arms": arms,
            "repeats": (repeats := settings["comparison"]["repeats"]),
            "counts_repeats": repeats > 1
            and not all("repeats" in arm for arm in comparison["arms"]),
            "strict_unlike_plain": strict and strict.get("rows_unlike_plain"),
            "doubt": doubt_of(arms, comparison.get("waterfall")),
        }
    )


def doubt_of(arms: Arms, waterfall: Arms | None) -> str:
    """Why the speeds cannot be believed, in a sentence; "" if nothing speaks against them."""
    plain = {arm["kind"]: arm["tokens_per_forward"] for arm in arms if arm["arm"] == "plain"}
    found = [
        (excess, f"{arm['arm']} decoding{_of_kind(arm['kind'])}", arm)
        for arm in arms
        if arm["arm"] != _REFERENCE and (excess := _excess(arm, plain.get(arm["kind"])))
    ]
    steps = waterfall or []
    found += [
        (
            excess,
            f"the step \N{LEFT DOUBLE QUOTATION MARK}{step['step']}\N{RIGHT DOUBLE QUOTATION MARK}",
            step,
        )
        for step in steps
        if (excess := _excess(step, steps[0]["tokens_per_forward"]))
    ]
    return _sentence(max(found, key=lambda one: one[0])) if found else ""


def without_doubtful(
    headline: Mapping[str, Any], speed: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A headline that gives no ratio where there is a doubt about it."""
    is_doubted = speed is not None and bool(speed["doubt"])
    return dict(headline) | ({"speedup": None, "speedup_by_kind": {}} if is_doubted else {})


def _excess(arm: Mapping[str, Any], plain: float | None) -> float | None:
    """How many times its speed is what its tokens per pass allow; None if possible or unknown."""
    allowed = measures.ratio(arm["tokens_per_forward"], plain)
    excess = measures.ratio(arm["ratio_to_plain"], allowed)
    return excess if excess is not None and excess > _POSSIBLE else None


def _sentence(worst: tuple[float, str, Mapping[str, Any]]) -> str:
    _, name, arm = worst
    return (
        f"{name[:1].upper()}{name[1:]} came out {times(arm['ratio_to_plain'])} as fast as plain "
        f"decoding with {decimal(arm['tokens_per_forward'])} tokens per forward pass, which no "
        "draft can bring: the machine was busy with something else during part of the comparison."
    )


def _of_kind(kind: str) -> str:
    return "" if kind == "all" else f" of {kind}s"


def _all_kinds(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    keys = ("rows", "seconds", "new_tokens", "looping_rows", "rows_unlike_plain")
    sums = {key: sum(part[key] for part in parts) for key in keys if key in parts[0]}
    passes = [measures.ratio(part["new_tokens"], part["tokens_per_forward"]) for part in parts]
    known = [count for count in passes if count is not None]
    return {
        "arm": name,
        "kind": "all",
        **sums,
        "tokens_per_second": measures.ratio(sums["new_tokens"], sums["seconds"]),
        "tokens_per_forward": (
            measures.ratio(sums["new_tokens"], sum(known)) if len(known) == len(parts) else None
        ),
    }
