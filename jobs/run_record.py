"""What a run is, kept in its folder: a first run, or a refresh of an earlier one.

`run.json` holds {"previous": name or null}. A folder without it counts as a first run. The record
binds once knowledge rests on it: changed after that, it would set all of the run's texts aside.
"""

import json
import logging
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.parts import write_atomically
from pipeline.store import MANIFEST, Store

log = logging.getLogger("jobs.run_record")

RECORD = "run.json"


def as_recorded(config: RunConfig, root: Path) -> RunConfig:
    """`config` with the earlier run that the folder `root` names, where it names none itself.

    Raises:
        ConfigError: the run has knowledge, and the config makes it another kind of run.
        DataError: the record is damaged.
    """
    named, recorded = config.refresh.previous, _recorded(root)
    if named == recorded or not _has_knowledge(root):
        return config
    path = root / RECORD
    if named is None and recorded != config.run:
        log.info("%s is a refresh of %s, as its %s says", root, recorded, RECORD)
        refresh = config.refresh.model_copy(update={"previous": recorded})
        return config.model_copy(update={"refresh": refresh})
    if recorded == config.run:
        raise ConfigError(
            f"{path} makes {config.run} a refresh of itself; write another name there"
        )
    if not path.is_file() and _is_refresh(root):
        return config  # made before runs had records: the config is believed
    what = f"a refresh of {recorded}" if recorded else "a first run, which it would replace"
    raise ConfigError(
        f"refresh.previous is {named}, but {root} is {what}; set another `run` (in "
        "`make refresh`: RUN), or leave refresh.previous out to go on with this one"
    )


def record(config: RunConfig, root: Path) -> None:
    """Write down what the run in `root` is, unless it stands there.

    Raises:
        ConfigError: it is a refresh of nobody knows what.
        DataError: it is a refresh, and the earlier run does not exist or has not finished.
    """
    previous = config.refresh.previous
    if (root / RECORD).is_file() and _recorded(root) == previous:
        return
    if previous is None and _is_refresh(root):
        raise ConfigError(
            f"{root} is a refresh, and has no {RECORD} that says of what; set refresh.previous, or "
            "another `run`"
        )
    require_previous(config)
    write_atomically(root / RECORD, json.dumps({"previous": previous}).encode())


def require_previous(config: RunConfig) -> None:
    """Check that the run which a refresh goes on from is there.

    Raises:
        DataError: it does not exist or has not finished; those that have are named.
    """
    previous = config.refresh.previous
    if previous is None or Store(config.artifacts / previous).manifest("knowledge") is not None:
        return
    found = [name for name in runs_in(config.artifacts) if name != config.run]
    done = [name for name in found if (config.artifacts / name / "knowledge" / MANIFEST).is_file()]
    raise DataError(
        f"refresh.previous (in `make refresh`: PREVIOUS) is {previous}, but {config.artifacts}/ "
        f"has no such finished run; there are: {_listed(done)}. A refresh that was begun names "
        f"it in its {RECORD}"
    )


def require_run(config: RunConfig, root: Path) -> None:
    """Check that a run is there to be looked at.

    Raises:
        DataError: there is no such run; those that exist are named.
    """
    if not root.is_dir():
        found = _listed(runs_in(config.artifacts))
        raise DataError(f"no such run: {config.run}; in {config.artifacts}/ there are: {found}")


def runs_in(artifacts: Path) -> list[str]:
    """Names of the runs in a folder: of all that hold a record or a dataset."""
    return sorted(
        folder.name
        for folder in artifacts.glob("*/")
        if (folder / RECORD).is_file() or any(folder.glob(f"*/{MANIFEST}"))
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _recorded(root: Path) -> str | None:
    """The earlier run that the record names."""
    path = root / RECORD
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))["previous"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f'{path} is damaged ({error}); write {{"previous": null}} into it, or the name of the '
            "run that this one refreshes"
        ) from error


def _has_knowledge(root: Path) -> bool:
    """Whether a wave has been begun."""
    return any((root / name).exists() for name in ("waves", "knowledge"))


def _is_refresh(root: Path) -> bool:
    """Whether the knowledge of a run goes on from an earlier one's."""
    first = Store(root).manifest("waves/0/knowledge")
    return first is not None and "earlier" in first.settings
