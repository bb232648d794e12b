"""FEATURES -> `ctr`: what knowledge is worth to a CTR model, with intervals and a placebo.

    python -m jobs.check_ctr --config conf/demo.yaml

Every fit (model x arm x seed) is a Ray task of one core. With ctr.min_auc_gain set, the job ends
with exit code 5 when no model gains as much; the results are stored first.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from features.ctr.check import ARMS, Fit, fit_one, summarise
from features.ctr.data import CtrData, make_ctr_data
from features.ctr.join import KnowledgeVectors, join_vectors
from features.frameworks import framework_named
from jobs import cli
from jobs.cluster import start_ray
from jobs.waves import require_own_framework
from pipeline.config import CtrSettings, RunConfig
from pipeline.errors import CheckError, DataError
from pipeline.store import Plan, Store

log = logging.getLogger("jobs.check_ctr")

RESULT = "ctr.json"
INPUTS = ["interactions", "users", "items", "features", "knowledge"]


def run(config: RunConfig, store: Store) -> None:
    """Write the dataset `ctr`, then hold it against the threshold."""
    plan = store.plan("ctr", settings=settings_of(config), inputs=INPUTS)
    if plan.is_done:
        log.info("ctr: up to date, %d test rows", store.require("ctr").num_rows)
    else:
        _check(config, store, plan)
    require_gain(store.require("ctr").facts, config.ctr.min_auc_gain)


def settings_of(config: RunConfig) -> dict[str, Any]:
    """What a check depends on besides its inputs."""
    return {
        "ctr": config.ctr.model_dump(mode="json", exclude={"min_auc_gain"}),
        "seed": config.seed,
        "framework": config.framework,
        "learning": framework_named(config.framework).learning,
        # What the numbers are: those of another kind are old.
        "gain": "mean over paired seeds",
        "beside": "GAUC, calibration, slices",
    }


def _check(config: RunConfig, store: Store, plan: Plan) -> None:
    began = time.monotonic()
    require_own_framework(config, store)
    data, vectors = load_inputs(store, config.ctr)
    coverage = vectors.coverage(data, "test")
    log.info(
        "ctr: %s rows; %.0f %% of test rows have user vectors, %.0f %% item vectors",
        " + ".join(f"{len(rows)} {name}" for name, rows in data.splits.items()),
        *(100 * share for share in coverage.values()),
    )
    start_ray(config.cluster)
    fits = list(_fits(data, vectors, config))
    result = {
        "protocol": config.catalog.split.protocol,
        "framework": config.framework,
        **summarise(data, fits, config.ctr, config.seed),
        "coverage": coverage,
        "seconds": round(time.monotonic() - began, 1),
    }
    _log_result(result)
    text = json.dumps(result, indent=2)
    plan.write_files(
        lambda folder: _write(folder / RESULT, text),
        num_rows=len(data.splits["test"]),
        facts=result,
    )


def load_inputs(store: Store, settings: CtrSettings) -> tuple[CtrData, KnowledgeVectors]:
    """CTR rows and the vectors that belong to them.

    Raises:
        DataError: the features were made from other knowledge, or the join finds a fault.
    """
    if store.require("features").inputs["knowledge"] != store.require("knowledge").version:
        raise DataError("features were made from other knowledge; run encode_features again")
    tables = (store.read(name) for name in ("interactions", "users", "items"))
    data = make_ctr_data(*tables, history_length=settings.history_length)
    return data, join_vectors(data, store.read("features"), store.read("knowledge"))


def require_gain(result: Mapping[str, Any], least: float | None) -> None:
    """Hold the best model's gain against the config's threshold.

    Raises:
        CheckError: no model reaches it (an unknown gain reaches nothing).
    """
    if least is None:
        return
    gains = {name: model["gain"]["auc"] for name, model in result["models"].items()}
    if not any(gain is not None and gain >= least for gain in gains.values()):
        found = ", ".join(f"{name} {_number(gain, '+.4f')}" for name, gain in gains.items())
        raise CheckError(f"ctr.min_auc_gain is {least}, but knowledge gains {found}; see {RESULT}")


def _fits(data: CtrData, vectors: KnowledgeVectors, config: RunConfig) -> Iterator[Fit]:
    """All fits, as they finish; arms share their seeds."""
    import ray

    settings, seeds = config.ctr, range(config.seed, config.seed + config.ctr.seeds)
    fit: Any = ray.remote(num_cpus=1)(fit_one)  # its stubs know no default arguments
    shared = ray.put(data), ray.put(vectors)
    waiting = [
        fit.remote(*shared, settings, model, arm, number, config.framework)
        for number, model, arm in product(seeds, settings.models, ARMS)
    ]
    total, began = len(waiting), time.monotonic()
    while waiting:
        ready, waiting = ray.wait(waiting)
        result: Fit = ray.get(ready[0])
        done = total - len(waiting)
        log.info(
            "ctr: fit %d / %d (%s, %s, seed %d): valid AUC %.4f after %d epochs; %.0f s to go",
            *(done, total, result.model, result.arm, result.seed),
            *(result.valid_auc, result.epochs),
            (time.monotonic() - began) / done * len(waiting),
        )
        yield result


def _log_result(result: Mapping[str, Any]) -> None:
    for name, model in result["models"].items():
        for arm, metrics in model["arms"].items():
            log.info(
                "ctr: %-7s %-10s AUC %s (sd %s), logloss %s (sd %s)",
                *(name, arm),
                *(_number(metrics[key]) for key in ("auc", "auc_sd", "logloss", "logloss_sd")),
            )
        log.info("ctr: %-7s %s", name, model["verdict"])


def _number(value: float | None, style: str = ".4f") -> str:
    return "unknown" if value is None else format(value, style)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
