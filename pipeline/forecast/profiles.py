"""Where a forecast takes its yield curves from: a named profile, or a file of an earlier run.

`measured.json` beside this file has the curves of the named profile, with all drafts of 64 nodes
verified, node by node, and the cost table and speeds that the forecast is checked against.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

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
    return {
        rule: YieldCurve(
            np.array(kinds[kind]["drafts"]), np.array(kinds[kind]["extra"]), f"{DEFAULT}, {rule}"
        )
        for rule, kinds in measured()["curves"].items()
    }


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


def _curves_in(stored: Any) -> dict[str, YieldCurve]:
    if not isinstance(stored, dict):
        raise DataError("it is no benchmark, comparison or report")
    if "acceptance" in stored:
        return {OWN: of_report(stored)}
    names = {arm.get("arm") for arm in stored.get("arms", ())}
    rules = [rule for rule in (STRICT, RELAXED, BUDGET) if rule in names]
    if not rules:
        raise DataError("it is no benchmark, comparison or report with an arm that drafts")
    if "batch_rows" in stored:
        shapes = named_curves()
        return {rule: of_comparison(stored, rule, shapes[rule]) for rule in rules}
    return {rule: of_benchmark(stored, rule) for rule in rules}
