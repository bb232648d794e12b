"""What a measured gain means, in words.

A gain is a `Difference` as plain values, as ctr.json has it: a number that is not known is None.
"""

from collections.abc import Mapping
from typing import Any

Gain = Mapping[str, Any]

BETTER, WORSE, UNKNOWN = "better", "worse", "no evidence either way"


def outcome(gain: Gain, over_shuffled: Gain) -> str:
    """The AUC with knowledge against the AUC without, in a few words."""
    for word, differs in ((BETTER, _is_above), (WORSE, _is_below)):
        if differs(gain, ""):
            is_alike = not differs(over_shuffled, "")
            return f"{word}, but no {word} than shuffled text" if is_alike else word
    return UNKNOWN


def verdict(gain: Gain, over_shuffled: Gain) -> str:
    """One plain sentence; what shuffled text brings as well is no evidence about the text."""
    if gain["reason"]:
        return f"no evidence: {gain['reason']}"
    return _about_auc(gain, over_shuffled) + _about_logloss(gain)


def _about_auc(gain: Gain, over_shuffled: Gain) -> str:
    interval = f"AUC {gain['auc']:+.4f}, 95 % interval {gain['low']:+.4f} to {gain['high']:+.4f}"
    word = outcome(gain, over_shuffled)
    if word == UNKNOWN:
        return f"no evidence at this size; AUC differences above {gain['mde']:.4f} would be seen"
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
