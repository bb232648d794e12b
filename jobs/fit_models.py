"""FEATURES -> `fits`: all models of the check (model x arm x seed), each a Ray task of one core.

First each arm of each model tries all settings with its first seed, then what was best is trained
with the others. A killed job goes on after the last stored fit.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from features.ctr.arms import RECOMMENDATIONS, Arm, Told, make_arms
from features.ctr.candidates import CandidateLists, join_lists
from features.ctr.check import first_tasks, other_tasks, tuned
from features.ctr.controls import dataset_of, encoded
from features.ctr.data import CtrData, make_ctr_data
from features.ctr.guard import require_past_only
from features.ctr.join import KnowledgeVectors, join_vectors, vectors_of
from features.ctr.training import Fit, Task, Trial, fit_one
from features.frameworks import framework_named
from jobs.cluster import start_ray
from jobs.plain_run import open_plain_run, require_plain_texts, versions_of
from jobs.progress import Countdown
from jobs.waves import CATALOG, require_own_vectors
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.schemas import FITS, PROVENANCE
from pipeline.store import Store

log = logging.getLogger("jobs.fit_models")

INPUTS = [*CATALOG, "features", "knowledge"]
# What may be asked of the same fits.
_OF_THE_CHECK = {"bootstrap", "min_auc_gain", "lossless_margin", "require_lossless"}


def run(config: RunConfig, store: Store) -> None:
    """Write the dataset `fits`."""
    plain = open_plain_run(config, store)
    plan = store.plan("fits", settings_of(config, plain), inputs_of(config))
    if plan.is_done:
        log.info("fits: up to date, %d fits", store.require("fits").num_rows)
        return
    if plain is not None:
        require_plain_texts(config, store, plain)
    data, vectors = load_inputs(store, config)
    arms = make_arms(data, vectors, _controls(config, store, data), _plain(config, plain, data))
    coverage = vectors.coverage(data, "test")
    log.info(
        "fits: %s rows; %.0f %% of test rows have a user's own text, %.0f %% an item's",
        " + ".join(f"{len(rows):,} {name}" for name, rows in data.splits.items()),
        *(100 * share for share in coverage.values()),
    )
    for kind, fields in (("user", data.user_fields), ("item", data.item_fields)):
        if fields.left_out:
            log.info("fits: of %ss left out: %s", kind, "; ".join(fields.left_out))
    writer = plan.open_writer()
    done = {fit.task: fit for fit in read_fits(writer.existing())}
    stored = len(done)
    first = first_tasks(config.ctr, arms, config.seed)
    total = len(first) + (config.ctr.seeds - 1) * len(config.ctr.models) * len(arms)
    log.info(
        "fits: %d to train, %d stored already; models %s, arms %s",
        *(total - stored, stored, ", ".join(config.ctr.models), ", ".join(arms)),
    )
    trainer = _Trainer(data, arms, config)
    countdown = Countdown(log, "fits", "fits", total, stored)

    def fill(tasks: Sequence[Task]) -> None:
        for fit in trainer.train([task for task in tasks if task not in done]):
            writer.append(as_table(fit))
            done[fit.task] = fit
            _tell(fit)
            countdown.count()

    fill(first)
    fill(other_tasks(tuned(done[task] for task in first), config.ctr))
    # What the try wrote that the seconds are of.
    writer.finish({"coverage": coverage, "rows_written": len(done) - stored})


def settings_of(config: RunConfig, plain: Store | None) -> dict[str, Any]:
    """What fits depend on besides their inputs."""
    return {
        "ctr": config.ctr.model_dump(mode="json", exclude=_OF_THE_CHECK),
        "seed": config.seed,
        "framework": config.framework,
        "learning": framework_named(config.framework).learning,
        "plain": list(versions.values()) if (versions := versions_of(plain)) else None,
    }


def inputs_of(config: RunConfig) -> list[str]:
    """The datasets that fits are made from."""
    lists = [RECOMMENDATIONS] if RECOMMENDATIONS in config.ctr.controls else []
    return [*INPUTS, *map(dataset_of, encoded(config.ctr.controls)), *lists]


def load_inputs(store: Store, config: RunConfig) -> tuple[CtrData, KnowledgeVectors]:
    """CTR rows and the vectors that belong to them.

    Raises:
        DataError: the features were made from other knowledge, or the join finds a fault.
    """
    users, items, interactions = (store.read(name) for name in CATALOG)
    data = make_ctr_data(interactions, users, items, config.ctr.history_length)
    return data, _vectors(config, store, data)


def _vectors(config: RunConfig, store: Store, data: CtrData) -> KnowledgeVectors:
    require_own_vectors(store)
    knowledge = store.read("knowledge", ["kind", "entity_id", *PROVENANCE])
    return join_vectors(data, store.read("features"), knowledge, config.catalog.split.protocol)


def _plain(config: RunConfig, plain: Store | None, data: CtrData) -> KnowledgeVectors | None:
    return None if plain is None else _vectors(config, plain, data)


def _controls(config: RunConfig, store: Store, data: CtrData) -> dict[str, Told | None]:
    """The controls wanted, with vectors where they are encoded texts, and with lists."""
    controls: dict[str, Told | None] = dict.fromkeys(config.ctr.controls)
    for name in encoded(config.ctr.controls):
        features = store.read(dataset_of(name))
        require_past_only(data, features, config.catalog.split.protocol)
        controls[name] = vectors_of(data, features)
    if RECOMMENDATIONS in controls:
        controls[RECOMMENDATIONS] = _lists(config, store, data)
    return controls


def _lists(config: RunConfig, store: Store, data: CtrData) -> CandidateLists:
    """Lists of the users.

    Raises:
        DataError: they were made from what has changed since, or would leak.
    """
    if not store.is_consistent(RECOMMENDATIONS):
        raise DataError(
            f"{store.files.address}/{RECOMMENDATIONS} was made from older inputs; run recommend "
            "again"
        )
    splits = store.require(RECOMMENDATIONS).settings.get("splits", [])
    table = store.read(RECOMMENDATIONS)
    lists = join_lists(data, table, splits, config.catalog.split.protocol)
    log.info(
        "fits: the item of %.1f %% of train rows and %.1f %% of test rows is in the user's list",
        *(100 * lists.coverage(data, split) for split in ("train", "test")),
    )
    return lists


def read_fits(table: pa.Table) -> list[Fit]:
    """Rows of FITS."""
    scores = [np.asarray(row.values, np.float32) for row in table["probabilities"]]
    return [
        Fit(
            Task(
                row["model"], row["arm"], row["seed"], Trial(row["learning_rate"], row["dropout"])
            ),
            probabilities,
            row["valid_auc"],
            row["epochs"],
        )
        for row, probabilities in zip(
            table.drop_columns(["probabilities"]).to_pylist(), scores, strict=True
        )
    ]


def as_table(fit: Fit) -> pa.Table:
    """One row of FITS."""
    task = fit.task
    row = {"model": task.model, "arm": task.arm, "seed": task.seed, **task.trial._asdict()}
    row |= {"valid_auc": fit.valid_auc, "epochs": fit.epochs}
    return pa.Table.from_pylist([row | {"probabilities": fit.test_probabilities}], schema=FITS)


def _tell(fit: Fit) -> None:
    """For who debugs: `fits` keeps it all."""
    log.debug(
        "fits: %s, %s, seed %d, learning rate %g, dropout %g: valid AUC %.4f after %d epochs",
        *(fit.task.model, fit.task.arm, fit.task.seed, *fit.task.trial),
        *(fit.valid_auc, fit.epochs),
    )


class _Trainer:
    """Fits in parallel; data and vectors are shipped once."""

    def __init__(self, data: CtrData, arms: Mapping[str, Arm], config: RunConfig) -> None:
        import ray

        start_ray(config.cluster)
        self._config = config
        self._data = ray.put(data)
        self._arms = {name: ray.put(arm) for name, arm in arms.items()}

    def train(self, tasks: Sequence[Task]) -> Iterator[Fit]:
        """Fits as they finish."""
        import ray

        fit_in_ray: Any = ray.remote(num_cpus=1)(fit_one)  # its stubs know no default arguments
        settings, framework = self._config.ctr, self._config.framework
        waiting = [
            fit_in_ray.remote(self._data, self._arms[task.arm], task, settings, framework)
            for task in tasks
        ]
        while waiting:
            ready, waiting = ray.wait(waiting)
            fit: Fit = ray.get(ready[0])
            yield fit
