"""What the summary, the tile and the check say of the gain, in the same words."""

import shlex

from features.ctr.verdict import BETTER, LOSSLESS, UNKNOWN, WORSE
from features.formats import count, signed
from features.page.paragraph import BAD, GOOD, OPEN, Paragraph, Report

_TOPIC = "CTR gain"
_NO_PLAIN_RUN = "plain_run"  # what an answer names that was not measured for want of it
_SAME_TEXT = ("plain", "strict")  # rules that leave plain decoding's text


def about_gain(report: Report) -> Paragraph:
    """Whether the CTR models gain by the texts, the verdict first, then its numbers."""
    ctr, gains = report["ctr"], report["headline"]["auc_gains"]
    if ctr is None:
        why = report["no_check"] or "make ctr trains the models"
        return Paragraph(_TOPIC, OPEN, [f"Not measured: {why}."])
    least = report["headline"]["auc_gain"]
    if least is None:
        reason = next((one["reason"] for one in gains if one.get("reason")), "no AUC is known")
        return Paragraph(_TOPIC, OPEN, [f"Not enough data to say: {reason}."])
    state, verdict = _verdict(report)
    return Paragraph(_TOPIC, state, [f"{verdict}.", *_numbers(report), *_price(report)])


def lossless_in_words(answer: str, report: Report) -> str:
    """Whether speed costs AUC, by an answer of the check; or what is missing to say it."""
    if not _lacks_plain_run(answer):
        return answer
    rule = report["headline"]["rule"]
    if rule in _SAME_TEXT:
        return f"not measured: this run's rule ({rule}) is to keep plain decoding's text"
    return (
        "not measured: it takes a run of the same users and items whose texts were decoded "
        "strictly (as plain decoding would write them)"
    )


def how_to_compare(report: Report) -> str:
    """The commands that measure whether speed costs AUC; "" if it is measured, or cannot."""
    models = report["ctr"]["models"].values() if report["ctr"] else []
    is_lacking = any(_lacks_plain_run(one["lossless"]) for one in models)
    if not is_lacking or report["headline"]["rule"] in _SAME_TEXT:
        return ""
    name = f"{report['run']}-strict"
    made, named = (shlex.quote(f"{key}={name}") for key in ("run", "plain_run"))
    return (
        "With the options of this run in place of the dots, `laser run ... --set "
        f"generation.rule=strict --set {made}` makes such a run, and then `laser check ... --set "
        f"{named}` compares."
    )


def _lacks_plain_run(answer: str) -> bool:
    return answer.startswith("not measured") and _NO_PLAIN_RUN in answer


def _verdict(report: Report) -> tuple[str, str]:
    """State, and a few words about the model that speaks most against a gain."""
    gains, least = report["headline"]["auc_gains"], report["headline"]["auc_gain"]
    if all(one["outcome"] == BETTER for one in gains):
        return GOOD, "The CTR models gain by the texts"
    if any(one["power"].startswith("no") for one in report["ctr"]["models"].values()):
        users = count(report["ctr"]["test_users"])
        return OPEN, f"No gain seen; too few test users ({users}) to tell"
    if least["outcome"] == BETTER:  # but there are others
        least = next(one for one in gains if one["outcome"] != BETTER)
    name, word = f"the CTR model {least['model']}", least["outcome"]
    if word == UNKNOWN:
        return BAD, f"No gain seen in {name}"
    if word.startswith(BETTER):
        return BAD, f"No gain by what the texts say: {name} is no better than with shuffled ones"
    alike = "" if word == WORSE else ", but no worse than with shuffled ones"
    return BAD, f"No gain: {name} is worse with the texts{alike}"


def _numbers(report: Report) -> list[str]:
    gains, least = report["headline"]["auc_gains"], report["headline"]["auc_gain"]
    state, _ = _verdict(report)
    among = f", the smallest of {len(gains)} models" if len(gains) > 1 else ""
    found = (
        f"AUC {signed(least['auc'])} [{signed(least['low'])}, {signed(least['high'])}] in "
        f"the CTR model {least['model']}{among}"
    )
    if state == GOOD:
        why = "the interval lies above zero and texts shuffled among entities gain less"
        return [f"{found}. That is evidence, since {why}."]
    if state == OPEN:
        return [
            f"{found}. Even texts that give away the test rows gain nothing: this check is blind."
        ]
    return [f"{found}."]


def _price(report: Report) -> list[str]:
    """Whether the speed costs AUC, of the model that answers worst."""
    answers = [one["lossless"] for one in report["ctr"]["models"].values()]
    if not answers:
        return []
    worst = next((one for one in answers if not one.startswith(LOSSLESS)), answers[0])
    worst = lossless_in_words(worst, report)
    how = how_to_compare(report)
    return [
        f"Is acceleration lossless in AUC? {worst[:1].upper()}{worst[1:]}.",
        *([how] if how else []),
    ]
