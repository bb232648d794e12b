"""Where a forecast takes its yield curves from: a named profile, or a file of an earlier run.

`measured.json` beside this file is the named profile, in the form that `jobs.measure_drafts`
writes: curves with all drafts verified, node by node, and the cost table and speeds that the
forecast is checked against.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, DataError
from pipeline.forecast.yield_curve import YieldCurve, of_benchmark, of_comparison, of_report

DEFAULT = "movies-135m"
STRICT, RELAXED, BUDGET = "strict", "relaxed", "budget"
OWN = "as that run"  # the one rule that a report knows


@cache
def measured() -> Mapping[str, Any]:
    """What was measured on this project: SmolLM2-135M about users and films of MovieLens-100K."""
    return json.loads((files("pipeline.forecast") / "measured.json").read_text(encoding="utf-8"))


def named_curves(kind: str = "all") -> dict[str, YieldCurve]:
    """Curves of the named profile by rule; of users, of items, or of both."""
    return _stored_curves(measured(), kind, DEFAULT)


def curves_of(profile: str) -> dict[str, YieldCurve]:
    """Yield curves by rule, from a profile's name or the path of a file.

    Raises:
        ConfigError: there is no such profile.
        DataError: the file says nothing of drafts.
    """
    if profile == DEFAULT:
        return named_curves()
    path = Path(profile)
    if not path.is_file():
        raise ConfigError(
            f"plan.profile is {profile}, which is no file; name one, or take {DEFAULT}"
        )
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}") from error
    try:
        return _curves_in(stored)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _stored_curves(profile: Mapping[str, Any], kind: str, name: str) -> dict[str, YieldCurve]:
    """Of a profile with all drafts verified.

    Raises:
        DataError: a curve is missing, or is none that nodes of a draft tree could give.
    """
    try:
        found = {
            rule: YieldCurve.through(
                list(zip(kinds[kind]["drafts"], kinds[kind]["extra"], strict=True)),
                f"{name}, {rule}",
            )
            for rule, kinds in profile["curves"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"no profile of drafts: {error!r}") from error
    if not found:
        raise DataError("a profile of drafts without a rule")
    return found


def _curves_in(stored: Any) -> dict[str, YieldCurve]:
    if not isinstance(stored, dict):
        raise DataError("it is no profile, benchmark, comparison or report")
    if "curves" in stored:
        return _stored_curves(stored, "all", "measured profile")
    if "acceptance" in stored:
        return {OWN: of_report(stored)}
    names = {arm.get("arm") for arm in stored.get("arms", ())}
    rules = [rule for rule in (STRICT, RELAXED, BUDGET) if rule in names]
    if not rules:
        raise DataError("it is no profile or report, and has no arm that drafts")
    if "batch_rows" in stored:
        shapes = named_curves()
        return {rule: of_comparison(stored, rule, shapes[rule]) for rule in rules}
    return {rule: of_benchmark(stored, rule) for rule in rules}
