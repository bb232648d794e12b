"""Which of the settings that a catalog may need make it load: rows left out, another split."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobs.build_catalog import NO_PAST, catalog_facts
from pipeline.catalog import Catalog, load_catalog
from pipeline.catalog_config import CatalogSettings
from pipeline.errors import DataError, UnusableCatalog

_MANY = 0.5  # of the test rows of users without a past: a cut on one clock is of no use then
FEW_TESTS = 200  # rows


@dataclass(frozen=True)
class Trial:
    """A catalog that loaded, with what was wrong before."""

    catalog: Catalog
    settings: CatalogSettings
    unusable: list[str]  # kinds of rows that are left out
    why_split: str


def load_somehow(settings: CatalogSettings) -> Trial:
    """Load a catalog as `settings` say, or without unusable rows, or split user by user.

    Raises:
        DataError: it loads in no way; what is wrong without any of this.
    """
    with quiet():
        return _loaded(settings)


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings of the log: what is left out of a catalog is told by the caller, once."""
    logger = logging.getLogger("pipeline")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _loaded(settings: CatalogSettings) -> Trial:
    first: DataError | None = None
    for rows in ("refuse", "drop"):
        given = settings.model_copy(update={"unusable_rows": rows})
        try:
            catalog, given, why = _split(given)
        except DataError as error:
            first = first or error
            continue
        catalog, given = _with_more_tests(catalog, given)
        return Trial(catalog, given, _unusable(first), why)
    assert first is not None  # or the loop had returned
    raise first


def _split(settings: CatalogSettings) -> tuple[Catalog, CatalogSettings, str]:
    """By one clock, unless that leaves a part empty or most test users without a past."""
    try:
        catalog = load_catalog(settings)
        share = catalog_facts(catalog)[NO_PAST]
        if share <= _MANY:
            return catalog, settings, f"{share:.0%} of the test rows are of users without a past"
        why = f"one clock would leave {share:.0%} of the test rows to users without a past"
    except DataError as error:
        if "leaves a part empty" not in str(error):
            raise
        catalog, why = None, "one clock would leave a part empty"
    split = settings.split.model_copy(update={"protocol": "per_user_prefix"})
    other = settings.model_copy(update={"split": split})
    try:
        return load_catalog(other), other, why
    except DataError:
        if catalog is None:
            raise
        return catalog, settings, why


def _with_more_tests(
    catalog: Catalog, settings: CatalogSettings
) -> tuple[Catalog, CatalogSettings]:
    """With a larger test part, if there are too few rows in it to tell models apart."""
    if catalog_facts(catalog)["splits"]["test"] >= FEW_TESTS:
        return catalog, settings
    split = settings.split.model_copy(update={"train_share": 0.6, "valid_share": 0.2})
    other = settings.model_copy(update={"split": split})
    try:
        return load_catalog(other), other
    except DataError:
        return catalog, settings


def _unusable(error: DataError | None) -> list[str]:
    return error.found if isinstance(error, UnusableCatalog) else []
