"""What a run is, kept in its folder: a first run, or a refresh of an earlier one.

`run.json` holds {"previous": name or null}. A folder without it counts as a first run. The record
binds once knowledge rests on it: changed after that, it would set all of the run's texts aside.
"""

import json
import logging

from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.runs import RECORD, is_refresh, open_run, runs_in
from pipeline.store import Store

log = logging.getLogger("jobs.run_record")

_MOST_NAMES = 10  # in an error


def as_recorded(config: RunConfig, store: Store) -> RunConfig:
    """`config` with the earlier run that the folder of `store` names, where it names none itself.

    Raises:
        ConfigError: the run has knowledge, and the config makes it another kind of run.
        DataError: the record is damaged.
    """
    named, recorded = config.refresh.previous, _recorded(store)
    if named == recorded or not _has_knowledge(store):
        return config
    place = store.files.address
    if named is None and recorded != config.run:
        log.info("%s is a refresh of %s, as its %s says", place, recorded, RECORD)
        refresh = config.refresh.model_copy(update={"previous": recorded})
        return config.model_copy(update={"refresh": refresh})
    if recorded == config.run:
        raise ConfigError(
            f"{place}/{RECORD} makes {config.run} a refresh of itself; write another name there"
        )
    if store.files.read(RECORD) is None and is_refresh(store):
        return config  # made before runs had records: the config is believed
    what = f"a refresh of {recorded}" if recorded else "a first run, which it would replace"
    raise ConfigError(
        f"refresh.previous is {named}, but {place} is {what}; set another `run` (in "
        "`make refresh`: RUN), or leave refresh.previous out to go on with this one"
    )


def record(config: RunConfig, store: Store) -> None:
    """Write down what the run of `store` is, unless it stands there.

    Raises:
        ConfigError: it is a refresh of nobody knows what.
        DataError: it is a refresh, and the earlier run does not exist or has not finished.
    """
    previous = config.refresh.previous
    if store.files.read(RECORD) is not None and _recorded(store) == previous:
        return
    if previous is None and is_refresh(store):
        raise ConfigError(
            f"{store.files.address} is a refresh, and has no {RECORD} that says of what; set "
            "refresh.previous, or another `run`"
        )
    require_previous(config)
    store.files.write(RECORD, json.dumps({"previous": previous}).encode())


def require_previous(config: RunConfig) -> None:
    """Check that the run which a refresh goes on from is there.

    Raises:
        DataError: it does not exist or has not finished; those that have are named.
    """
    previous = config.refresh.previous
    if previous is None or _is_finished(config, previous):
        return
    found = [name for name in runs_in(config.artifacts) if name != config.run]
    done = [name for name in found if _is_finished(config, name)]
    raise DataError(
        f"refresh.previous (in `make refresh`: PREVIOUS) is {previous}, but {config.artifacts}/ "
        f"has no such finished run; there are: {_listed(config, done)}. A refresh that was "
        f"begun names it in its {RECORD}"
    )


def _is_finished(config: RunConfig, run: str) -> bool:
    return open_run(config.artifacts, run).manifest("knowledge") is not None


def require_run(config: RunConfig, store: Store) -> None:
    """Check that a run is there to be looked at.

    Raises:
        DataError: there is no such run; those that exist are named.
    """
    if not store.files.exists():
        found = _listed(config, runs_in(config.artifacts))
        raise DataError(f"no such run: {config.run}; in {config.artifacts}/ there are: {found}")


def _listed(config: RunConfig, names: list[str]) -> str:
    """The newest of some runs, and how many more there are."""

    def began(name: str) -> float:
        return open_run(config.artifacts, name).files.written_at(RECORD) or 0.0

    newest = sorted(names, key=began, reverse=True)[:_MOST_NAMES]
    more = f" and {len(names) - len(newest)} more" if len(names) > len(newest) else ""
    return ", ".join(newest) + more or "none"


def _recorded(store: Store) -> str | None:
    """The earlier run that the record names."""
    data = store.files.read(RECORD)
    if data is None:
        return None
    try:
        return json.loads(data.decode())["previous"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f'{store.files.address}/{RECORD} is damaged ({error}); write {{"previous": null}} into '
            "it, or the name of the run that this one refreshes"
        ) from error


def _has_knowledge(store: Store) -> bool:
    """Whether a wave has been begun."""
    return any(store.files.has_folder(name) for name in ("waves", "knowledge"))
