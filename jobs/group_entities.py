"""Put every user and item into the group whose pool it will share.

    python -m jobs.group_entities --config conf/demo.yaml

Reads users, items and embeddings; writes the dataset `groups`. The router sends entities with
enough training edges to k-means over their vectors ("user/collab-0"), the others to groups of
equal attributes ("item/genre=Drama", at last "user/all"). A few representatives of each group are
marked; their knowledge is written first.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.formats import count, counted
from jobs import cli
from pipeline.config import GroupSettings, RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.schemas import GROUPS
from pipeline.store import Store
from retrieval_pools.grouping import (
    choose_number_of_groups,
    choose_representatives,
    cluster,
    group_by_attributes,
)
from retrieval_pools.router import ATTRIBUTE, COLLABORATIVE, route

log = logging.getLogger("jobs.group_entities")

_LOGGED_GROUPS = 5  # the largest; all are in the manifest


@dataclass(frozen=True)
class Grouped:
    """One kind of entity with its groups."""

    table: pa.Table  # GROUPS, in the order of the catalog
    backend: str
    inertia: float


def run(config: RunConfig, store: Store) -> None:
    """Make `groups`.

    Raises:
        ConfigError: a grouping attribute is one that no entity has.
        DataError: embeddings do not cover the catalog, or are not finite.
    """
    plan = store.plan(
        "groups",
        settings={"groups": config.groups, "seed": config.seed},
        inputs=["users", "items", "embeddings"],
    )
    if plan.is_done:
        log.info("groups: up to date, %d rows", store.require("groups").num_rows)
        return
    embeddings = store.read("embeddings")
    grouped = {
        kind: group_kind(kind, store.read(f"{kind}s"), embeddings, config.groups, config.seed)
        for kind in ("user", "item")
    }
    facts = {
        "sizes": _sizes(grouped["user"].table) | _sizes(grouped["item"].table),
        "routes": {kind: _routes(result.table) for kind, result in grouped.items()},
        "representatives": {
            kind: int(pc.sum(result.table["representative"]).as_py() or 0)
            for kind, result in grouped.items()
        },
        "backend": next((r.backend for r in grouped.values() if r.backend != "none"), "none"),
        "inertia": {kind: round(result.inertia, 4) for kind, result in grouped.items()},
    }
    plan.write(pa.concat_tables([result.table for result in grouped.values()]), facts)


def group_kind(
    kind: str, catalog: pa.Table, embeddings: pa.Table, settings: GroupSettings, seed: int
) -> Grouped:
    """Group all users, or all items. `catalog` is the table USERS or ITEMS."""
    is_user = kind == "user"
    names = settings.user_attributes if is_user else settings.item_attributes
    wanted = settings.user_groups if is_user else settings.item_groups
    ids = catalog[f"{kind}_id"]
    attributes = [dict(pairs) for pairs in catalog["attributes"].to_pylist()]
    _check_names(kind, names, attributes)
    degrees, vectors = _embeddings_of(kind, ids, embeddings)
    routes = route(degrees, settings.min_interactions)
    warm, cold = np.flatnonzero(routes == COLLABORATIVE), np.flatnonzero(routes == ATTRIBUTE)
    labels = np.empty(len(ids), object)
    distances = np.zeros(len(ids), np.float32)
    chosen = np.zeros(len(ids), bool)

    number = choose_number_of_groups(vectors[warm], seed) if wanted == "auto" else wanted
    clusters = cluster(vectors[warm], number, seed)
    labels[warm] = [f"{kind}/collab-{group}" for group in clusters.assignment]
    distances[warm] = clusters.distances
    chosen[warm] = choose_representatives(
        clusters.assignment, settings.representatives, vectors[warm], clusters.distances
    )
    by_attribute = group_by_attributes(
        [attributes[entity] for entity in cold], names, settings.min_group_size
    )
    labels[cold] = [f"{kind}/{label}" for label in by_attribute]
    chosen[cold] = choose_representatives(np.array(by_attribute, str), settings.representatives)

    columns = [[kind] * len(ids), ids, routes, labels, distances, chosen]
    table = pa.table(dict(zip(GROUPS.names, columns, strict=True))).cast(GROUPS)
    _log_groups(kind, table, int(chosen.sum()))
    return Grouped(table, clusters.backend, clusters.inertia)


def _check_names(kind: str, names: Sequence[str], attributes: list[dict[str, str]]) -> None:
    known = {name for own in attributes for name in own}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"groups.{kind}_attributes: no {kind} has {', '.join(unknown)}; the catalog has "
            f"{', '.join(sorted(known)) or 'none'}"
        )


def _embeddings_of(
    kind: str, ids: pa.ChunkedArray, embeddings: pa.Table
) -> tuple[np.ndarray, np.ndarray]:
    """Training edges (n,) and vectors (n, d) in the order of `ids`."""
    own = embeddings.filter(pc.equal(embeddings["kind"], kind))
    rows = pc.index_in(ids, value_set=own["entity_id"].combine_chunks())
    if rows.null_count:
        missing = ids.filter(pc.is_null(rows))[:3].to_pylist()
        raise DataError(
            f"embeddings: {rows.null_count} {kind}s of the catalog are missing, such as "
            f"{missing}; run `laser embed` again"
        )
    own = own.take(rows)
    flat = pc.list_flatten(own["vector"]).to_numpy()
    return own["num_interactions"].to_numpy(), flat.reshape(len(own), -1)


def _sizes(table: pa.Table) -> dict[str, int]:
    """Entities by group, the largest first."""
    counts = Counter(table["group_id"].to_pylist())
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def _routes(table: pa.Table) -> dict[str, int]:
    counts = Counter(table["route"].to_pylist())
    return {name: counts[name] for name in (COLLABORATIVE, ATTRIBUTE)}


def _log_groups(kind: str, table: pa.Table, representatives: int) -> None:
    sizes, routes = list(_sizes(table).items()), _routes(table)
    log.info(
        "groups: %ss: %s in %s, %s by behaviour and %s by attributes; %s representatives",
        *(kind, count(len(table)), counted(len(sizes), "groups")),
        *(count(number) for number in (*routes.values(), representatives)),
    )
    largest = ", ".join(f"{group} {count(size)}" for group, size in sizes[:_LOGGED_GROUPS])
    others = len(sizes) - _LOGGED_GROUPS
    more = f", and {counted(others, 'smaller groups')}" if others > 0 else ""
    log.info("groups: %ss: %s%s", kind, largest, more)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
