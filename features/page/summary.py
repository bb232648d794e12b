"""The run in a few plain sentences, made from its numbers, for who has one minute.

A sentence never claims more than was measured: what was not, what had too little data, and what a
busy machine may have spoilt is said in the same breath.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from features.ctr.verdict import BETTER, LOSSLESS
from features.formats import count, decimal, duration, percent, signed, times
from features.measures import ratio

GOOD, BAD, OPEN = "good", "bad", "open"  # of a result: open is what nobody knows yet
_ALIKE = 0.03  # of a ratio of speeds: nearer to one nobody should call it faster or slower

Report = Mapping[str, Any]


class Paragraph(NamedTuple):
    """What is known about one question."""

    topic: str
    state: str
    sentences: list[str]


def paragraphs(report: Report) -> list[Paragraph]:
    """What was done, how fast, whether a CTR model gains, and what failed."""
    return [_unbroken(part(report)) for part in (_done, _speed, _gain, _failed)]


def _unbroken(part: Paragraph) -> Paragraph:
    """No line ends between a number and its unit."""
    unit = re.compile(r"(?<=\d) (?=%|(?:s|min|h)\b)")
    return part._replace(sentences=[unit.sub("\N{NO-BREAK SPACE}", one) for one in part.sentences])


def _done(report: Report) -> Paragraph:
    headline, refresh = report["headline"], report["headline"]["refresh"]
    written, rows = headline["entities"], headline["of_rows"]
    by = f", written by {report['speed']['model']}" if report["speed"] else ""
    said = [f"{count(written)} of {count(rows)} users and items have a text{by}."]
    if refresh:
        said.append(
            f"{count(refresh['kept'])} were kept from {refresh['previous']}, "
            f"{count(refresh['written'])} written now."
        )
    if headline["tokens"]:
        whose = "New" if refresh else "Their"
        tokens = f"{whose} tokens: {count(headline['tokens'])}, {_seconds(report)}"
        said.append(f"{tokens}; {_how_chosen(headline, report['speed'])}.")
    return Paragraph("Done", GOOD if written == rows else BAD, said)


def _how_chosen(headline: Mapping[str, Any], speed: Mapping[str, Any] | None) -> str:
    if headline["relaxed_share"]:
        return f"{percent(headline['relaxed_share'])} of them were not the model's first choice"
    if headline["rule"] == "plain":
        return "all by plain decoding"
    if headline["rule"] == "sampled":
        return "drawn at random, by a rule that keeps the model's chances"
    if headline["rule"] != "strict":
        return "none of them was relaxed"
    is_checked = speed is not None and speed["strict_unlike_plain"] == 0
    checked = f", as checked on {count(speed['rows'])} rows" if speed and is_checked else ""
    return f"by a rule that keeps plain decoding's text{checked}"


def _seconds(report: Report) -> str:
    """After a kill only the last try's time is known, and older programs do not tell of one."""
    stage = next((one for one in report["stages"] if one["stage"] == "knowledge"), None)
    if not stage or not stage["seconds"]:
        return "in a time nobody measured"
    is_whole, took = stage.get("is_whole"), duration(stage["seconds"])
    if is_whole is None:
        return f"in {took} if the run was not interrupted"
    return f"in {took}" if is_whole else f"the last part of them in {took}"


def _speed(report: Report) -> Paragraph:
    headline, speed = report["headline"], report["speed"]
    if speed is None:
        why = report["no_comparison"] or "make comparison measures it"
        return Paragraph("Speed", OPEN, [f"Not measured: {why}.", *_per_pass(headline)])
    speedup = headline["speedup"]
    if headline["rule"] == "plain":
        return Paragraph("Speed", OPEN, ["No row was drafted for: all texts were decoded plainly."])
    if speedup is None:
        why = (
            "Not measured: sampled decoding is no arm of the comparison."
            if headline["rule"] == "sampled"
            else "Not enough data: the comparison has no such ratio."
        )
        return Paragraph("Speed", OPEN, [why, *_per_pass(headline)])
    kinds = ", ".join(f"{kind}s {times(one)}" for kind, one in headline["speedup_by_kind"].items())
    rows = f"{count(speed['rows'])} rows in batches of up to {count(speed['batch_rows'])}"
    said = [
        f"Decoding with drafts ({headline['rule']}) was {_faster(speedup)}"
        + (f" ({kinds})" if kinds else "")
        + f", measured on {rows}."
    ]
    if speed["repeats"] == 1:
        said.append(
            "Every arm ran once, so whatever else the machine did meanwhile is in this figure: "
            "take it as a hint, and raise comparison.repeats for evidence."
        )
    if speed["strict_unlike_plain"]:
        rows = "rows"
        if speed["counts_repeats"]:
            rows = f"rows, each of {speed['repeats']} repeats counted"
        said.append(
            f"Strict decoding left plain decoding's text in {count(speed['strict_unlike_plain'])} "
            f"{rows}, which it should not."
        )
    is_faster = speedup > 1 + _ALIKE and speed["repeats"] > 1
    state = GOOD if is_faster else BAD if speedup < 1 - _ALIKE else OPEN
    return Paragraph("Speed", state, said + _per_pass(headline))


def _faster(speedup: float) -> str:
    if abs(speedup - 1) <= _ALIKE:
        return f"about as fast as plain decoding, {times(speedup)}"
    return f"{times(speedup)} as fast as plain decoding" + (", slower" if speedup < 1 else "")


def _per_pass(headline: Mapping[str, Any]) -> list[str]:
    tokens = headline["tokens_per_forward"]
    if tokens is None:
        return []
    return [f"A forward pass of the model wrote {decimal(tokens)} tokens a row (plain: 1)."]


def _gain(report: Report) -> Paragraph:
    ctr, gains = report["ctr"], report["headline"]["auc_gains"]
    if ctr is None:
        why = report["no_check"] or "make ctr trains the models"
        return Paragraph("CTR gain", OPEN, [f"Not measured: {why}."])
    least = report["headline"]["auc_gain"]
    if least is None:
        reason = next((one["reason"] for one in gains if one.get("reason")), "no AUC is known")
        return Paragraph("CTR gain", OPEN, [f"Not enough data to say: {reason}."])
    found = f"AUC {signed(least['auc'])} [{signed(least['low'])}, {signed(least['high'])}]"
    among = f", the smallest of {len(gains)} models" if len(gains) > 1 else ""
    where = f"{found} in {least['model']}{among}"
    results = list(ctr["models"].values())
    is_blind = any(one["power"].startswith("no") for one in results)
    is_better = all(one["outcome"] == BETTER for one in gains)
    if is_better:
        said = [
            f"The CTR models gain by the texts: {where}. That is evidence, since the interval lies "
            "above zero and texts shuffled among entities gain less."
        ]
    else:
        said = [f"No evidence that a CTR model gains by the texts: {where}: {least['outcome']}."]
    if is_blind and not is_better:
        said.append(
            "The check is too small to tell: not even a profile that knows the test rows gains."
        )
    state = GOOD if is_better else OPEN if is_blind else BAD
    return Paragraph("CTR gain", state, said + _price(results))


def _price(results: list[Mapping[str, Any]]) -> list[str]:
    """Whether the speed costs AUC, of the model that answers worst."""
    answers = [one["lossless"] for one in results]
    if not answers:
        return []
    worst = next((one for one in answers if not one.startswith(LOSSLESS)), answers[0])
    return [f"Does the speed cost AUC? {worst[:1].upper()}{worst[1:]}."]


def _failed(report: Report) -> Paragraph:
    failures, headline = report["failures"], report["headline"]
    if not failures:
        return Paragraph("Failures", GOOD, ["No row failed."])
    most = failures[0]
    share = percent(ratio(headline["errors"], headline["of_rows"]))
    rows = f"{count(headline['errors'])} of {count(headline['of_rows'])} rows"
    said = [f"{rows} have no text ({share})."] if headline["errors"] else []
    if most["stage"] == "knowledge":
        said.append(f"Most often ({count(most['rows'])} rows): {most['message']}.")
    else:
        said.append(f"{count(most['rows'])} vectors stand in for a missing one: {most['message']}.")
    return Paragraph("Failures", BAD if headline["errors"] else OPEN, said)
