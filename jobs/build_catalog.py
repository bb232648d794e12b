"""Raw files -> users, items, interactions (validated, labelled, split).

Run: python -m jobs.build_catalog --config conf/demo.yaml
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import hashlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from features.formats import count, percent
from jobs import cli
from jobs.unread_titles import unread_titles
from pipeline.catalog import LEFT_OUT, Catalog, load_catalog
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.fetched import name_of
from pipeline.readers import raw_files
from pipeline.schemas import SPLITS
from pipeline.store import Store

log = logging.getLogger("jobs.build_catalog")

NO_PAST = "test_rows_of_users_without_past_share"


def run(config: RunConfig, store: Store) -> None:
    """Write the three tables of the catalog, unless settings and raw files are unchanged."""
    settings = {"catalog": config.catalog, "files": _identities(config.catalog)}
    plans = [store.plan(name, settings) for name in ("users", "items", "interactions")]
    missing = [plan for plan in plans if not plan.is_done]
    if not missing:
        rows = ", ".join(f"{store.require(plan.name).num_rows:,} {plan.name}" for plan in plans)
        log.info("catalog: up to date, %s", rows)
        return
    catalog = load_catalog(config.catalog)
    require_likes(catalog, config.catalog)
    _tell_of_refresh(config, store)
    facts = catalog_facts(catalog)
    log.info(
        "catalog: %s users, %s items, %s interactions, of which %s are likes",
        *(count(facts[name]) for name in ("users", "items", "interactions")),
        percent(facts["positive_share"]),
    )
    log.info(
        "catalog: split into %s; %s of test rows are of users without a past",
        ", ".join(f"{count(rows)} {name}" for name, rows in facts["splits"].items()),
        percent(facts[NO_PAST]),
    )
    facts[LEFT_OUT] = [one._asdict() for one in catalog.left_out]  # said in the log as they were
    for plan in missing:
        plan.write(getattr(catalog, plan.name), facts if plan.name == "interactions" else None)
    if unread := unread_titles(catalog.items["title"], config.language_model):
        log.warning("%s", unread)
    if config.catalog.positive_rating is not None:  # else the check is left out
        _warn_of_lone_labels(catalog.interactions)


def _tell_of_refresh(config: RunConfig, store: Store) -> None:
    """Say that texts are about to be written anew of which most could be kept."""
    if store.manifest("knowledge") is None or config.refresh.previous:
        return
    log.warning(
        "the tables or `catalog` have changed since %s was written, and all of it is made anew; "
        "`laser refresh --previous %s --run NAME` writes a run beside it instead, in which texts "
        "whose prompt is the same are kept",
        *(store.files.address, config.run),
    )


def require_likes(catalog: Catalog, settings: CatalogSettings) -> None:
    """Refuse here what training and the CTR check would stumble over after hours.

    Raises:
        DataError: no interaction is a like.
    """
    if settings.positive_rating is None:
        return
    if pc.max(catalog.interactions["label"]).as_py() == 0:
        ratings = pc.min_max(catalog.interactions["rating"]).as_py()
        raise DataError(
            f"no rating reaches catalog.positive_rating {settings.positive_rating:g}: ratings run "
            f"from {ratings['min']:g} to {ratings['max']:g}; lower it"
        )


def _warn_of_lone_labels(interactions: pa.Table) -> None:
    """Say here, before hours of writing texts, that the CTR check can learn or tell nothing.

    Only a warning: texts and features can be made and used without the check.
    """
    for split in SPLITS[1:]:
        labels = interactions["label"].filter(pc.equal(interactions["split"], split))
        found = pc.unique(labels).to_pylist()
        if len(found) == 1:
            log.warning(
                "the CTR check cannot be made of this catalog: all %d %s rows have the label %d; "
                "change catalog.positive_rating or catalog.split, or bring more data",
                *(len(labels), split, found[0]),
            )


def _identities(settings: CatalogSettings) -> list[dict[str, Any]]:
    """What each raw file is: a changed byte must make the catalog anew."""
    return [_identity(file) for file in raw_files(settings)]


def _identity(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"path": name_of(file), "size": file.stat().st_size, "sha256": digest}


def catalog_facts(catalog: Catalog) -> dict[str, Any]:
    """Counts, and how much of the test part is about users without a past."""
    rows = catalog.interactions
    past = rows.filter(pc.equal(rows["split"], "knowledge"))
    test = rows.filter(pc.equal(rows["split"], "test"))
    known = pc.is_in(test["user_id"], value_set=past["user_id"])
    return {
        "users": catalog.users.num_rows,
        "items": catalog.items.num_rows,
        "interactions": rows.num_rows,
        "splits": {name: pc.sum(pc.equal(rows["split"], name)).as_py() for name in SPLITS},
        "positive_share": round(pc.mean(rows["label"]).as_py(), 4),
        NO_PAST: round(1 - pc.mean(known).as_py(), 4),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit code."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
