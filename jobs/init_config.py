"""A user's own tables -> a commented config that a run can start from.

Looks at the tables, finds out which is what, tries whether the catalog loads, and writes what it
proposes. What it is not sure of is marked `# check:`.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from jobs.catalog_trial import Trial, load_somehow
from jobs.cli import ROOT
from jobs.config_text import ConfigText
from jobs.editor_schema import first_line, write_schema
from jobs.proposed_text import add_catalog, add_settings
from pipeline.catalog_config import CatalogSettings
from pipeline.config_file import load_config
from pipeline.errors import ConfigError, DataError
from pipeline.locations import is_remote, parse_location
from pipeline.proposed_settings import Like, propose_like
from pipeline.settings import RunName
from pipeline.table_guess import Guess, guess_tables
from pipeline.table_heads import Head, read_head
from pipeline.table_links import Table
from pipeline.table_near_misses import unparted
from pipeline.table_roles import find_roles

MOST_ROWS = 1_000_000  # of a table that are looked at
MOST_TABLES = 8


@dataclass(frozen=True)
class Proposal:
    """What is proposed for some tables."""

    text: str  # YAML
    doubts: list[str]  # lines to be checked by a person
    guess: Guess
    trial: Trial | None  # None: the tables are too large to be tried


def init(
    paths: Sequence[Path | str],
    output: Path,
    *,
    run: str | None = None,
    overwrite: bool = False,
    users: Path | str | None = None,
    items: Path | str | None = None,
    interactions: Path | str | None = None,
) -> Proposal:
    """Write a config for some tables, of which some may be named by what they hold.

    Raises:
        ConfigError: the file exists, and is not to be overwritten, or cannot be written; the run
            cannot be called so; or too few or too many tables.
        DataError: a table cannot be read, or what a catalog needs is not found in any of them.
    """
    name = run if run is not None else _run_name(output)
    with _complaints_of(output):
        _require_free(output, overwrite)
    proposal = propose(paths, name, users, items, interactions)
    with _complaints_of(output):
        _write(proposal.text, output)
    return proposal


@contextmanager
def _complaints_of(output: Path) -> Iterator[None]:
    """What the system says of a place, as an error that a person can act on."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{output} cannot be written ({error.strerror}); give another --output"
        ) from error


def _require_free(output: Path, overwrite: bool) -> None:
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; give --output a file in it, such as own.yaml")
    if output.exists() and not overwrite:
        raise ConfigError(f"{output} exists; give another --output, or --force to replace it")


def _write(text: str, output: Path) -> None:
    """Write a config that can be read, and beside it what editors know it by."""
    target = Path(os.path.realpath(output))  # of a link, what it points to
    for folder in (output.parent, target.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".laser-init-") as folder:
        written = Path(folder) / target.name
        written.write_text(f"{first_line(output.parent)}\n{text}", encoding="utf-8")
        load_config(written)
        write_schema(output.parent)
        written.replace(target)


def propose(
    paths: Sequence[Path | str],
    run: str,
    users: Path | str | None = None,
    items: Path | str | None = None,
    interactions: Path | str | None = None,
) -> Proposal:
    """What `init` would write.

    Raises:
        ConfigError: the run cannot be called so, or too few or too many tables.
        DataError: see `init`.
    """
    _require_name(run)
    named = {"users": users, "items": items, "interactions": interactions}
    given = {name: _located(path) for name, path in named.items() if path is not None}
    places = list(dict.fromkeys([*map(_located, paths), *given.values()]))
    if not 2 <= len(places) <= MOST_TABLES:
        raise ConfigError(
            f"tables given: {len(places)}; give 2 to {MOST_TABLES}: interactions, items and, if "
            "there is one, users (a table is a CSV, TSV or Parquet file, or a folder of Parquet)"
        )
    tables = {place: Table.of(_read(place)) for place in places}
    roles = {name: tables[place] for name, place in given.items()}
    guess = _guess(list(tables.values()), roles)
    like = _like(guess)
    is_whole = all(table.head.is_whole for table in tables.values())
    trial = load_somehow(_settings(guess, like)) if is_whole else None
    text = ConfigText()
    text.remark("Written by `laser init` from " + ", ".join(map(as_written, places)) + ".")
    text.remark(
        'Look at lines marked "check:". What is not named has a default: pipeline/config.py'
    )
    text.value("run", run, 0, f"names the folder artifacts/{run}")
    text.value("seed", 2026, 0)
    add_catalog(text, guess, like, trial, as_written)
    add_settings(text, guess, trial)
    return Proposal(str(text), text.doubts, guess, trial)


def _guess(tables: Sequence[Table], roles: Mapping[str, Table]) -> Guess:
    """What the tables are.

    Raises:
        DataError: they do not fit together; also names those that are not parted into columns.
    """
    try:
        return guess_tables(find_roles(tables, **roles))
    except DataError as error:
        if hint := unparted(tables):
            raise DataError(f"{hint}; as they are, {error}") from error
        raise


def _require_name(run: str) -> None:
    try:
        TypeAdapter(RunName).validate_python(run)
    except ValidationError as error:
        raise ConfigError(
            f"--run {run!r}: a run is called by letters, digits and . _ - only, the first a letter "
            "or a digit"
        ) from error


def as_written(place: Path | str) -> str:
    """A path as a config has it: of the project's root if it lies there, else absolute."""
    if is_remote(place):
        return place
    path = Path(place).absolute()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def _located(path: Path | str) -> Path | str:
    """A local path as one that does not depend on where we are, or a URI.

    Raises:
        ConfigError: the URI cannot be used.
    """
    try:
        place = parse_location(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    return place if is_remote(place) else Path(place).expanduser().absolute()


def _read(place: Path | str) -> Head:
    if isinstance(place, Path) and not place.exists():
        near = sorted(path.name for path in place.parent.glob("*") if path.is_file())[:10]
        there = f"; {place.parent} has {', '.join(near)}" if near else ""
        raise DataError(f"{place} does not exist{there}")
    return read_head(place, MOST_ROWS)


def _like(guess: Guess) -> Like | None:
    """From which rating on an interaction is a like; None where there are no ratings."""
    if guess.rating.choice is None:
        return None
    numbers = guess.roles.interactions.columns[guess.rating.choice.column].ratings
    assert numbers is not None  # or it were no rating
    return propose_like(numbers.to_numpy())


def _settings(guess: Guess, like: Like | None) -> CatalogSettings:
    """The guess as settings, to be tried."""
    roles, users = guess.roles, guess.roles.to_users
    columns = {"user_id": guess.user_id.column, "item_id": guess.item_id.column}
    columns["timestamp"] = guess.timestamp.column
    if guess.rating.choice:
        columns["rating"] = guess.rating.choice.column
    tables = {
        "interactions": {**_place(roles.interactions.head), "columns": columns},
        "items": {
            **_place(roles.to_items.table.head),
            "columns": {"item_id": roles.to_items.key.name, "title": guess.title.column},
            "attributes": [choice.column for choice in guess.item_attributes.kept],
        },
    }
    if users:
        tables["users"] = {
            **_place(users.table.head),
            "columns": {"user_id": users.key.name},
            "attributes": [choice.column for choice in guess.user_attributes.kept],
        }
    return CatalogSettings.model_validate(
        {
            "tables": tables,
            "timestamp_unit": guess.unit,
            "positive_rating": like.rating if like else None,
        }
    )


def _place(head: Head) -> dict[str, Path | str | None]:
    return {"path": head.path, "separator": head.separator}


def _run_name(output: Path) -> str:
    """The name of the file, as far as a run may be called so."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", output.stem).strip("-._")
    return name or "catalog"
