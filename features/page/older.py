"""Reports of older programs with all that the page asks for: what they lack is not known."""

from collections.abc import Mapping
from typing import Any

from features.ctr.verdict import outcome
from features.provenance import language_model_of, unit_of
from features.speed import doubt_of, without_doubtful

_REPORT = {
    **{
        "no_check": "",
        "no_comparison": "",
        "left_out": None,
        "unread_titles": "",
        "quality": None,
        "examples": [],
        "ctr": None,
    },
    **{"waterfall": None, "calibration": None, "steps": None},
    **{"config": None, "config_differences": None},
}
_HEADLINE = {"refresh": None, "relaxed_share": None, "auc_gains": []}
_SPEED = {"divergences": [], "strict_unlike_plain": None}
_TEXT = {"plain_is_cut": False, "relaxed_is_cut": False}
_MODEL = {
    **{"gains": {}, "gain_over_plain": None},
    "lossless": "not measured: the program of that time did not",
    "power": "unknown: the check of that time had no canary",
}


def as_today(report: Mapping[str, Any]) -> dict[str, Any]:
    """`report`, as it is or as it would be if this program had made it."""
    whole = _REPORT | dict(report)
    whole["headline"] = _HEADLINE | dict(report["headline"])
    if whole["ctr"]:
        models = {name: _MODEL | dict(one) for name, one in whole["ctr"]["models"].items()}
        whole["ctr"] = dict(whole["ctr"]) | {"models": models}
        _say_what_gains_mean(whole["headline"], models)
    if whole["speed"]:
        whole["speed"] = _speed(whole)
        whole["headline"] = without_doubtful(whole["headline"], whole["speed"])
    if whole["quality"]:
        whole["quality"] = _quality(whole["quality"])
    named = report["datasets"]
    whole["language_model"] = whole.get("language_model") or language_model_of(whole)
    whole["datasets"] = [{"unit": unit_of(one["dataset"])} | dict(one) for one in named]
    if whole["texts"]:
        whole["texts"] = [_TEXT | dict(text) for text in whole["texts"]]
    return whole


def _quality(quality: Mapping[str, Any]) -> dict[str, Any]:
    """Texts were once held against two attributes of items, called year and genre, and no other."""

    def texts(part: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        if part is None or "catalog" in part:
            return part
        facts = {"year": ("year", "year"), "genre": ("genres", "names")}
        found = {
            name: {"kind": kind} | part[key]
            for key, (name, kind) in facts.items()
            if "skipped" not in part.get(key, {"skipped": ""})
        }
        return dict(part) | {"catalog": found}

    kinds = {
        kind: dict(one) | {name: texts(one[name]) for name in ("texts", "plain")}
        for kind, one in quality["kinds"].items()
    }
    return dict(quality) | {"kinds": kinds}


def _say_what_gains_mean(headline: dict[str, Any], models: Mapping[str, Any]) -> None:
    """Gains had a verdict before they had an outcome."""

    def said(gain: Mapping[str, Any]) -> dict[str, Any]:
        result = models[gain["model"]]
        meant = {"outcome": outcome(result["gain"], result["gain_over_shuffled"])}
        return meant | dict(gain)

    headline["auc_gains"] = [said(gain) for gain in headline["auc_gains"]]
    headline["auc_gain"] = headline["auc_gain"] and said(headline["auc_gain"])


def _speed(report: Mapping[str, Any]) -> dict[str, Any]:
    """How often arms were repeated stands in the settings of the comparison, if anywhere.

    Whether rows were counted once is told; otherwise they were not.
    """
    made = [one for one in report["datasets"] if one["dataset"] == "comparison"]
    settings = made[0]["settings"].get("comparison", {}) if made else {}
    speed = _SPEED | {"repeats": settings.get("repeats", 1)} | dict(report["speed"])
    known = {"doubt": doubt_of(speed["arms"], report["waterfall"])}
    return {"counts_repeats": speed["repeats"] > 1} | known | speed
