"""What the summary says of the speed."""

from collections.abc import Mapping
from typing import Any

from features.formats import count, counted, decimal, times
from features.page.paragraph import BAD, GOOD, OPEN, Paragraph, Report

_TOPIC = "Speed"
_RULES = {
    "relaxed": "The rule is relaxed: near-misses are accepted, so texts differ slightly.",
    "strict": "The rule is strict: only what plain decoding would write is accepted.",
}
_ALIKE = 0.03  # of a ratio of speeds: nearer to one nobody should call it faster or slower


def about_speed(report: Report) -> Paragraph:
    """How fast drafts made decoding, as far as that was measured and can be believed."""
    headline, speed = report["headline"], report["speed"]
    if speed is None:
        why = report["no_comparison"] or "make comparison measures it"
        return Paragraph(_TOPIC, OPEN, [f"Not measured: {why}.", *_per_pass(headline)])
    if headline["rule"] == "plain":
        return Paragraph(_TOPIC, OPEN, ["No row was drafted for: all texts were decoded plainly."])
    if speed["doubt"]:
        said = ["This measurement of speed is not usable.", speed["doubt"]]
        return Paragraph(_TOPIC, OPEN, said + _per_pass(headline, "What holds: a"))
    if headline["speedup"] is None:
        why = (
            "Not measured: sampled decoding is no arm of the comparison."
            if headline["rule"] == "sampled"
            else "Not enough data: the comparison has no such ratio."
        )
        return Paragraph(_TOPIC, OPEN, [why, *_per_pass(headline)])
    return Paragraph(
        _TOPIC, _state(headline["speedup"], speed), _measured(headline, speed) + _per_pass(headline)
    )


def _state(speedup: float, speed: Mapping[str, Any]) -> str:
    """What ran once is neither good nor bad: a busy machine makes either."""
    if speed["repeats"] == 1 or abs(speedup - 1) <= _ALIKE:
        return OPEN
    return GOOD if speedup > 1 else BAD


def _measured(headline: Mapping[str, Any], speed: Mapping[str, Any]) -> list[str]:
    kinds = ", ".join(f"{kind}s {times(one)}" for kind, one in headline["speedup_by_kind"].items())
    rows = f"{count(speed['rows'])} rows in batches of up to {count(speed['batch_rows'])}"
    said = [
        f"Decoding with drafts (tokens guessed from earlier texts) was "
        f"{_faster(headline['speedup'])}"
        + (f" ({kinds})" if kinds else "")
        + f", measured on {rows}."
    ]
    if headline["rule"] in _RULES:
        said.append(_RULES[headline["rule"]])
    if speed["repeats"] == 1:
        said.append(
            "Every arm ran once, so whatever else the machine did meanwhile is in this figure: "
            "take it as a hint, and raise comparison.repeats for evidence."
        )
    if speed["strict_unlike_plain"]:
        rows = counted(speed["strict_unlike_plain"], "rows")
        if speed["counts_repeats"]:
            rows += f", each of {speed['repeats']} repeats counted"
        said.append(f"Strict decoding left plain decoding's text in {rows}, which it should not.")
    return said


def _faster(speedup: float) -> str:
    if abs(speedup - 1) <= _ALIKE:
        return f"about as fast as plain decoding, {times(speedup)}"
    return f"{times(speedup)} as fast as plain decoding" + (", slower" if speedup < 1 else "")


def _per_pass(headline: Mapping[str, Any], start: str = "A") -> list[str]:
    tokens = headline["tokens_per_forward"]
    if tokens is None:
        return []
    return [f"{start} forward pass of the model wrote {decimal(tokens)} tokens a row (plain: 1)."]
