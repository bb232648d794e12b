"""What measured differences mean, in words: does knowledge help, and is acceleration lossless?

A difference is a `Difference` as plain values, as ctr.json has it: a number that is not known is
None. *Helps* is a test of superiority, to models without knowledge and to the placebo; *lossless*
one of non-inferiority to plainly decoded knowledge, within a margin set beforehand.
"""

from collections.abc import Mapping
from typing import Any

Gain = Mapping[str, Any]

BETTER, WORSE, UNKNOWN = "better", "worse", "no evidence either way"
LOSSLESS, NOT_LOSSLESS = "lossless", "not lossless"

_QUESTIONS = {  # by the keys of a model in ctr.json
    "power": "Can the check see a gain?",
    "verdict": "Does knowledge help?",
    "lossless": "Is acceleration lossless?",
}


def answers(model: Mapping[str, Any]) -> list[str]:
    """What the check says of a model, each answer behind its question."""
    return [
        f"{question} {model[key][:1].upper()}{model[key][1:]}."
        for key, question in _QUESTIONS.items()
        if key in model  # of an older program
    ]


def outcome(gain: Gain, over_shuffled: Gain) -> str:
    """The AUC with knowledge against the AUC without, in a few words."""
    for word, differs in ((BETTER, _is_above), (WORSE, _is_below)):
        if differs(gain, ""):
            is_alike = not differs(over_shuffled, "")
            return f"{word}, but no {word} than shuffled text" if is_alike else word
    return UNKNOWN


def helps(gain: Gain, over_shuffled: Gain) -> str:
    """One plain sentence; what shuffled text brings as well is no evidence about the text."""
    if gain["reason"]:
        return f"no evidence: {gain['reason']}"
    return _about_auc(gain, over_shuffled) + _about_logloss(gain)


def power(canary: Gain | None) -> str:
    """Whether the check can see at all: it has to gain by a profile of what test users like."""
    if canary is None:
        return "unknown: the check has no canary"
    if canary["reason"]:
        return f"no: {canary['reason']}"
    found = _interval(canary)
    if _is_above(canary, ""):
        return f"yes, the canary trips: {found} by a profile that knows the test rows"
    return (
        f"no: {found} even by a profile that knows the test rows, so the two verdicts mean little"
    )


def lossless(over_plain: Gain | None, plain_gain: Gain | None, margin: float, users: int) -> str:
    """One sentence about knowledge against plainly decoded knowledge.

    Args:
        over_plain: its AUC less that of plain decoding's; None if no run has that.
        plain_gain: plain decoding's less that of the base arm; None as above.
        margin: what it may lose.
        users: of the test rows.
    """
    if over_plain is None:
        return "not measured: no run with plainly decoded texts is named (plain_run)"
    if over_plain["reason"]:
        return f"not enough data to say: {over_plain['reason']}"
    found = _interval(over_plain)
    if over_plain["high"] < -margin:
        return f"{NOT_LOSSLESS}: {found}, worse than plain decoding by more than {margin:g}"
    if over_plain["low"] <= -margin:
        return f"not enough data to say: {found}; {_needed(over_plain, margin, users)}"
    said = f"{LOSSLESS}: {found}, not worse than plain decoding by {margin:g}"
    if plain_gain is not None and not _is_above(plain_gain, ""):
        said += "; but plain decoding's text gains nothing that was seen, so little could be lost"
    return said


def _needed(over_plain: Gain, margin: float, users: int) -> str:
    """How many test users would show it in 4 of 5 cases, if the difference is what was found.

    The interval shrinks with the root of the users; what seeds add to it, with more seeds.
    """
    room = margin + min(over_plain["auc"], 0.0)
    if room <= 0:
        return f"the difference found is {margin:g} or more, so more users may show a loss"
    needed = float(f"{users * (over_plain['mde'] / room) ** 2:.2g}")
    return (
        f"within {margin:g} it would take some {max(needed, users + 1):,.0f} test users instead of "
        f"{users:,}, or less where more seeds help"
    )


def _interval(gain: Gain) -> str:
    return f"AUC {gain['auc']:+.4f}, 95 % interval {gain['low']:+.4f} to {gain['high']:+.4f}"


def _about_auc(gain: Gain, over_shuffled: Gain) -> str:
    interval = _interval(gain)
    word = outcome(gain, over_shuffled)
    if word == UNKNOWN:
        seen = max(gain["mde"], over_shuffled["mde"])
        return f"no evidence at this size: {interval}; differences above {seen:.4f} would be seen"
    if word == BETTER:
        return f"helps: {interval}, and better than shuffled knowledge"
    if word == WORSE:
        return f"harms: {interval}, and worse than shuffled knowledge"
    side = "above" if word.startswith(BETTER) else "below"
    return f"no evidence that the text matters: {interval}, but not {side} shuffled knowledge"


def _about_logloss(gain: Gain) -> str:
    """Nothing where the interval holds zero; less loss is better."""
    is_worse = _is_above(gain, "logloss_")
    if not is_worse and not _is_below(gain, "logloss_"):
        return ""
    numbers = (gain[name] for name in ("logloss", "logloss_low", "logloss_high"))
    text = "{:+.4f}, 95 % interval {:+.4f} to {:+.4f}".format(*numbers)
    return f"; log loss is {WORSE if is_worse else BETTER}: {text}"


def _is_above(gain: Gain, measure: str) -> bool:
    low = gain[f"{measure}low"]
    return low is not None and low > 0


def _is_below(gain: Gain, measure: str) -> bool:
    high = gain[f"{measure}high"]
    return high is not None and high < 0
