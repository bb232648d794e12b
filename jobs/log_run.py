"""The report of a run -> MLflow: headline as metrics, config as parameters, both files whole.

    python -m jobs.log_run --config conf/demo.yaml --set mlflow.tracking_uri=http://tracking:5000

`run_all` does it last, where `mlflow.tracking_uri` is set. A report is told once; whoever has been
told of it stands in the run's `mlflow.json`. A server that fails costs a warning, never a run.
"""

import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jobs import cli
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError, UserError
from pipeline.locations import is_remote, without_secrets
from pipeline.store import Store

log = logging.getLogger("jobs.log_run")

RECORD = "mlflow.json"
_REMEDY = "`laser log` tells it later"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # schemes that MLflow knows
_OF_DATABASES = ("sqlalchemy", "alembic")  # what the whole MLflow brings to open them
_BATCH = 100  # entries that MLflow takes at once
_LONGEST = 500  # characters of a parameter, which every version takes
# MLflow would ask a server that is gone for minutes, tell others that it is in use, and write to a
# folder only where that is said twice.
_MANNERS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def require_mlflow(config: RunConfig) -> None:
    """Check that MLflow is there, if it is asked for.

    Raises:
        ConfigError: it is not installed, or not so much of it that it opens databases.
    """
    if config.mlflow.tracking_uri is None:
        return
    if find_spec("mlflow") is None:
        raise ConfigError(
            "mlflow.tracking_uri is set, but MLflow is not installed; run `pip install "
            "'mlflow-skinny>=3'` (the extra `mlflow`), or set mlflow.tracking_uri to null"
        )
    if _is_database(config) and not all(map(find_spec, _OF_DATABASES)):
        raise ConfigError(
            "mlflow.tracking_uri is a database, which the extra `mlflow` cannot open; run `pip "
            "install 'mlflow>=3'`, the whole of it, or set mlflow.tracking_uri to a server or to "
            "file:<folder>"
        )


def attempt(config: RunConfig, store: Store, missed: Sequence[UserError] = ()) -> None:
    """Tell MLflow of the run, if it is asked for; what goes wrong is a warning."""
    if not config.mlflow.tracking_uri:
        return
    try:
        tell(config, store, missed)
    except Exception as error:  # whatever a server, its client or a network may do
        log.warning("%s; %s", without_secrets(f"MLflow was not told: {error}"), _REMEDY)


def run(config: RunConfig, store: Store) -> None:
    """Tell MLflow of the run.

    Raises:
        ConfigError: `mlflow.tracking_uri` is not set, or MLflow not installed.
        DataError: there is no report of the run as it is, or MLflow cannot be told.
    """
    if not config.mlflow.tracking_uri:
        raise ConfigError("mlflow.tracking_uri is not set, so there is nobody to tell")
    require_mlflow(config)
    _require_report(store)
    try:
        tell(config, store)
    except Exception as error:
        message = f"MLflow at {config.mlflow.tracking_uri} was not told: {error}"
        raise DataError(without_secrets(message)) from error


def tell(config: RunConfig, store: Store, missed: Sequence[UserError] = ()) -> None:
    """Log the report that there is, unless it has been; raises whatever MLflow raises.

    Config and headline are those of the report, whatever config asks for it to be told.
    """
    told = {
        "tracking_uri": config.mlflow.tracking_uri,
        "experiment": config.mlflow.experiment,
        "report": _require_report(store),
    }
    if _told(store) == told:
        log.info("MLflow has been told of this report")
        return
    os.environ.update({name: os.environ.get(name, value) for name, value in _MANNERS.items()})
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

    folder = store.files.local("report")
    report = json.loads((folder / "report.json").read_text("utf-8"))
    client = MlflowClient(tracking_uri=config.mlflow.tracking_uri)
    tags = _tags(store, report, missed)
    made = client.create_run(_experiment(client, config), run_name=config.run, tags=tags)
    run_id = made.info.run_id
    try:
        _fill(client, run_id, report)
        for file in ("report.html", "report.json"):
            client.log_artifact(run_id, str(folder / file))
    except BaseException:
        with suppress(Exception):  # of a server that is gone: the first error says more
            client.set_terminated(run_id, "FAILED")
        raise
    client.set_terminated(run_id, "FINISHED")
    store.files.write(RECORD, json.dumps(told | {"run_id": run_id}).encode())
    log.info("MLflow: experiment %s, run %s", config.mlflow.experiment, run_id)


def _require_report(store: Store) -> str:
    """Version of the report.

    Raises:
        DataError: there is none, or it is of datasets that have changed since.
    """
    version = store.require("report").version
    if not store.is_consistent("report"):
        raise DataError(
            f"{store.files.address}/report is of datasets that were made anew since; run "
            "`laser report`"
        )
    return version


def _tags(store: Store, report: Mapping[str, Any], missed: Sequence[UserError]) -> dict[str, str]:
    """What to tell of a run besides numbers and settings."""
    tags = {"laser.report": store.require("report").version, "laser.place": store.files.address}
    if missed:
        tags["laser.missed"] = "; ".join(map(str, missed))
    if others := report.get("config_differences"):
        tags["laser.made_with_other"] = ", ".join(one["setting"] for one in others)
    return tags


def _is_database(config: RunConfig) -> bool:
    """Whether MLflow is to write into a database itself, without a server."""
    scheme = (config.mlflow.tracking_uri or "").partition("://")[0]
    return scheme.partition("+")[0] in _DATABASES


def _experiment(client: Any, config: RunConfig) -> str:
    """Id of the experiment, which is made if it is not there.

    Files of one in a database would go to ./mlruns, wherever that is; they lie with the runs.
    """
    name, place = config.mlflow.experiment, None
    if found := client.get_experiment_by_name(name):
        return found.experiment_id
    if _is_database(config):
        runs = config.artifacts
        place = f"{runs if is_remote(runs) else Path(runs).resolve().as_uri()}/mlflow"
    return client.create_experiment(name, artifact_location=place)


def _fill(client: Any, run_id: str, report: Mapping[str, Any]) -> None:
    """Log metrics, parameters and the config; reports of older programs have no config."""
    from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]

    settings, now = report.get("config") or {}, int(time.time() * 1000)
    facts = dict(_leaves(report["headline"]))
    numbers = {key: value for key, value in facts.items() if _is_number(value)}
    entries = {
        "metrics": [Metric(key, float(value), now, 0) for key, value in numbers.items()],
        "params": [Param(key, str(value)[:_LONGEST]) for key, value in _leaves(settings)],
        "tags": [RunTag(key, value) for key, value in facts.items() if _is_word(value)],
    }
    for name, values in entries.items():
        for start in range(0, len(values), _BATCH):
            client.log_batch(run_id, **{name: values[start : start + _BATCH]})
    if settings:
        client.log_dict(run_id, settings, "config.json")


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values of a tree by dotted keys; an entry of a list that names its `model` goes by it."""
    for key, inner in value.items():
        place = f"{prefix}{key}"
        if isinstance(inner, list) and inner and all(_names_model(one) for one in inner):
            inner = {one["model"]: one for one in inner}
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{place}.")
        elif inner is not None:
            yield place, inner


def _names_model(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("model"), str)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _told(store: Store) -> dict[str, Any]:
    """Who has been told of which report."""
    try:
        told = json.loads((store.files.read(RECORD) or b"{}").decode())
        return {key: told[key] for key in ("tracking_uri", "experiment", "report")}
    except (ValueError, KeyError, TypeError):  # lost or damaged: once too often does no harm
        return {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
