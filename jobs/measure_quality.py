"""KNOWLEDGE -> `quality`: what the texts are like, beside what a CTR model gains from them.

    python -m jobs.measure_quality --config conf/demo.yaml

With `plain_run` the texts are also held against those that plain decoding writes of the same rows.
It takes seconds, and no model.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.carry import StoredFeatures
from features.formats import count, or_unknown, percent
from features.frameworks import framework_named, templates_of
from features.quality.agreement import CatalogFacts
from features.quality.similarity import compare
from features.quality.summary import (
    COLUMNS,
    MOST_COMPARED,
    TextMeasures,
    choose_rows,
    measure_texts,
    summarise,
)
from jobs import cli
from jobs.plain_run import open_plain_run, require_plain_texts, versions_of
from jobs.waves import require_own_framework, require_own_vectors
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.knowledge import entities
from pipeline.parts import read_parts
from pipeline.schemas import KINDS, KNOWLEDGE
from pipeline.store import Store

log = logging.getLogger("jobs.measure_quality")

RESULT = "quality.json"
INPUTS = ["knowledge", "features", "users", "items"]
_KEY = ["kind", "entity_id"]
_STYLE = ".3f"


def run(config: RunConfig, store: Store) -> None:
    """Write the dataset `quality`."""
    require_own_framework(config, store)
    require_own_vectors(store)
    plain = open_plain_run(config, store)
    plan = store.plan("quality", settings=settings_of(config, plain), inputs=INPUTS)
    if plan.is_done:
        log.info("quality: up to date, %d rows", store.require("quality").num_rows)
        return
    if plain is not None:
        require_plain_texts(config, store, plain)
    kinds = measure(config, store, plain)
    result = {"framework": config.framework, "plain_run": config.plain_run, "kinds": kinds}
    _log_result(kinds)
    plan.write_json(RESULT, result, store.require("knowledge").num_rows)


def settings_of(config: RunConfig, plain: Store | None) -> dict[str, Any]:
    """What the measures depend on besides their inputs."""
    return {
        "seed": config.seed,
        "framework": config.framework,
        "reading": framework_named(config.framework).reading,
        "most_compared": MOST_COMPARED,
        "plain_run": config.plain_run,
        "plain": versions_of(plain),
        "shows_attributes": _shows_attributes(config),
        # What the numbers are: those of another kind are old.
        "measures": 2,
    }


def measure(config: RunConfig, store: Store, plain: Store | None) -> dict[str, dict[str, Any]]:
    """The summary of each kind."""
    framework = framework_named(config.framework)
    read = framework.read if framework.reading else None
    facts = {
        kind: CatalogFacts(store.read(f"{kind}s"), is_shown)
        for kind, is_shown in _shows_attributes(config).items()
    }
    keys = store.read("knowledge", _KEY)
    chosen = choose_rows(keys["kind"], config.seed)
    ours = measure_texts(_tables(store), chosen, facts, read)
    if plain is None:
        return summarise(ours)
    asked = entities(keys.take(pa.array(chosen)))
    found = pc.index_in(asked, value_set=entities(plain.read("knowledge", _KEY)))
    places = found.to_numpy().astype(np.int64)
    theirs = measure_texts(_tables(plain), places, facts, read)
    vectors, plain_vectors = _vectors(store, ours), _vectors(plain, theirs)
    similarity = {}
    for kind in KINDS:
        rows = pc.equal(ours.sample["kind"], kind)
        similarity[kind] = compare(
            ours.sample.filter(rows),
            theirs.sample.filter(rows),
            vectors.filter(rows),
            plain_vectors.filter(rows),
            config.seed,
        )
    return summarise(ours, theirs, similarity)


def _shows_attributes(config: RunConfig) -> dict[str, bool]:
    """Whether prompts of a kind show the catalog's attributes, which texts are held against."""
    templates = templates_of(config)
    return {kind: templates.uses(kind, "attributes") for kind in ("user", "item")}


def _tables(store: Store) -> Iterator[pa.Table]:
    """KNOWLEDGE part by part."""
    for part in store.parts("knowledge"):
        yield read_parts([part], KNOWLEDGE, COLUMNS)


def _vectors(store: Store, texts: TextMeasures) -> pa.Table:
    """FEATURES of the sample, row by row.

    Raises:
        DataError: some of its entities have none.
    """
    features = store.read("features", _KEY)
    rows = pc.index_in(entities(texts.sample), value_set=entities(features))
    if rows.null_count:
        raise DataError(
            f"{store.files.address}/features has no row of {rows.null_count} entities of "
            "knowledge; move its folder away and run `laser encode` again"
        )
    if not len(rows):
        return store.read("features").slice(0, 0)
    return StoredFeatures(store).take(rows.to_numpy().astype(np.int64))


def _log_result(kinds: Mapping[str, Any]) -> None:
    for kind, found in kinds.items():
        texts, near = found["texts"], found["similarity"]
        log.info(
            "quality: %ss: %s texts, %s loop, %s nats per token lost, %s of tokens from pools",
            *(kind, count(texts["texts"]), percent(texts["looping_share"])),
            *(or_unknown(texts["nats_per_token"], _STYLE), percent(texts["pool_share"])),
        )
        if near:
            log.info(
                "quality: %ss: of %s texts %s are plain decoding's, cosine %s, to another row's %s",
                *(kind, count(near["rows"]), percent(near["identical"])),
                *(or_unknown(near[key], _STYLE) for key in ("cosine", "cosine_to_another")),
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
