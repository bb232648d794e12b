"""FEATURES -> `fits` -> `ctr`: what knowledge is worth to a CTR model, and whether speed costs it.

    python -m jobs.check_ctr --config conf/demo.yaml

With ctr.min_auc_gain set, the job ends with exit code 5 when no model gains as much, and with
ctr.require_lossless unless all show that relaxed text serves as well as `plain_run`'s; the results
are stored first.
"""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from features.ctr.arms import RECOMMENDATIONS
from features.ctr.check import summarise
from features.ctr.data import make_ctr_data
from features.ctr.join import sources_of
from features.ctr.verdict import BETTER, LOSSLESS, answers, outcome
from features.formats import or_unknown
from jobs import cli, encode_controls, fit_models
from jobs.left_out import why_no_check
from jobs.recommend import list_stages
from jobs.waves import CATALOG, require_own_framework
from pipeline.config import CtrSettings, RunConfig
from pipeline.errors import CheckError
from pipeline.store import Plan, Store

log = logging.getLogger("jobs.check_ctr")

RESULT = "ctr.json"
_METRICS = ("auc", "auc_sd", "logloss", "logloss_sd")
_CHECK = {"bootstrap", "lossless_margin"}  # settings that the fits do not depend on


def run(config: RunConfig, store: Store) -> None:
    """Write the datasets `fits` and `ctr`, then hold the result against the thresholds."""
    if why_no_check(config):
        _leave_out(config)
        return
    require_own_framework(config, store)
    encode_controls.run(config, store)
    if RECOMMENDATIONS in config.ctr.controls:
        for stage in list_stages(config):
            import_module(f"jobs.{stage}").run(config, store)
    fit_models.run(config, store)
    plan = store.plan("ctr", settings_of(config), [*CATALOG, "fits"])
    if plan.is_done:
        log.info("ctr: up to date, %d test rows", store.require("ctr").num_rows)
    else:
        _check(config, store, plan)
    require_gain(store.require("ctr").facts, config.ctr)


def _leave_out(config: RunConfig) -> None:
    """Say so, or fail where something is to be shown."""
    if config.ctr.min_auc_gain is not None or config.ctr.require_lossless:
        raise CheckError(
            f"{why_no_check(config)}, so the CTR check cannot be made; leave out ctr.min_auc_gain "
            "and ctr.require_lossless"
        )
    log.warning("ctr: left out, %s", why_no_check(config))


def settings_of(config: RunConfig) -> dict[str, Any]:
    """What a check depends on besides its inputs."""
    return {
        "ctr": config.ctr.model_dump(mode="json", include=_CHECK),
        # What the numbers are: those of another kind are old.
        "gain": "mean over paired seeds",
        "beside": "GAUC, calibration, slices",
    }


def _check(config: RunConfig, store: Store, plan: Plan) -> None:
    users, items, interactions = (store.read(name) for name in CATALOG)
    data = make_ctr_data(interactions, users, items, config.ctr.history_length)
    sources = sources_of(data, store.read("features", ["kind", "entity_id", "source"]))
    data = replace(data, sources=sources)
    fits = fit_models.read_fits(store.read("fits"))
    result = {
        "protocol": config.catalog.split.protocol,
        "framework": config.framework,
        "plain_run": config.plain_run,
        **summarise(data, fits, config.ctr, config.seed),
        "coverage": store.require("fits").facts["coverage"],
    }
    for line in told(result):
        log.info("ctr: %s", line)
    plan.write_json(RESULT, result, len(data.splits["test"]))


def require_gain(result: Mapping[str, Any], settings: CtrSettings) -> None:
    """Hold the gains of the models, and what acceleration costs, against the config's thresholds.

    Raises:
        CheckError: no model gains as much as is asked for (an unknown gain is none; to be above 0
            it has to be seen as well: by the interval, and over shuffled texts), or acceleration is
            not lossless in all of them.
    """
    models, least = result["models"], settings.min_auc_gain
    if least is not None and not any(_reaches(model, least) for model in models.values()):
        found = ", ".join(
            f"{name} {or_unknown(model['gain']['auc'], '+.4f')} ({_outcome(model)})"
            for name, model in models.items()
        )
        raise CheckError(f"ctr.min_auc_gain is {least}, but knowledge gains {found}; see {RESULT}")
    said = {name: model["lossless"] for name, model in models.items()}
    if settings.require_lossless and not all(t.startswith(LOSSLESS) for t in said.values()):
        found = "; ".join(f"{name}: {text}" for name, text in said.items())
        raise CheckError(f"ctr.require_lossless is set, but {found}; see {RESULT}")


def _reaches(model: Mapping[str, Any], least: float) -> bool:
    gain = model["gain"]["auc"]
    return gain is not None and gain >= least and (least <= 0 or _outcome(model) == BETTER)


def _outcome(model: Mapping[str, Any]) -> str:
    return outcome(model["gain"], model["gain_over_shuffled"])


def told(result: Mapping[str, Any]) -> Iterator[str]:
    """What a person reads in the log: a line for each arm, then the answers, of each model."""
    for name, model in result["models"].items():
        width = 1 + max(map(len, model["arms"]))
        for arm, metrics in model["arms"].items():
            yield (
                "{}, {} AUC {} (sd {}), log loss {} (sd {})".format(
                    *(name, f"{arm}:".ljust(width)),
                    *(or_unknown(metrics[key]) for key in _METRICS),
                )
            )
        for answer in answers(model):
            first, *more = answer.replace("; ", ";\n").splitlines()  # no terminal is as wide as all
            yield f"{name}: {first}"
            yield from (f"{name}:   {clause}" for clause in more)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
