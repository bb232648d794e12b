"""Give every item a semantic ID: a few codes, like items with a common beginning.

    python -m jobs.assign_semantic_ids --config conf/demo.yaml

Reads items, interactions, embeddings and content vectors: those of `features`, or with
`semantic_ids.content: raw_text` the control of that name, which is encoded first if it is missing.
Writes the dataset `semantic_ids`, with the codebooks beside the rows. Codebooks are fitted on warm
items, those with an interaction of the splits up to `recommender.until`; nothing of later ones is
looked at. With `semantic_ids.from_run` those of another run go on, and neither interactions nor
embeddings are read: its items keep their ids, and only new ones are encoded.
"""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jobs import cli
from jobs.item_contents import RAW_TEXT, content_dataset, made_with, read_contents, read_items
from jobs.semantic_id_files import (
    DATASET,
    open_earlier,
    read_ids,
    read_tokenizer,
    require_same_content,
    who_is_warm,
    write_ids,
)
from pipeline.config import RunConfig
from pipeline.generative.collisions import resolve
from pipeline.generative.health import codebook_health, collisions
from pipeline.generative.kept_ids import GivenIds, assign_beside, changed_health
from pipeline.generative.semantic_ids import fit_tokenizer, without_collaborative
from pipeline.store import Plan, Store

log = logging.getLogger("jobs.assign_semantic_ids")

# Times the old items' error by content. On MovieLens-100K films held out at random have at most
# 1.05, those of a genre that is held out whole 1.05 to 1.29, vectors of noise 1.75 to 3.4.
_DRIFT = 1.2
_FEW = 20  # new items whose mean error says nothing


def run(config: RunConfig, store: Store) -> None:
    """Make `semantic_ids`.

    Raises:
        ConfigError: too few items to fit on, too many with the same codes, or the ids of
            `semantic_ids.from_run` are of another kind or of other vectors.
        DataError: content or embeddings lack an item, no item has a text, or
            `semantic_ids.from_run` has no ids.
    """
    earlier = open_earlier(config)
    content = content_dataset(config.semantic_ids)
    if config.semantic_ids.content == RAW_TEXT:
        from jobs import encode_controls  # loads torch and ray

        encode_controls.encode(config, store, [RAW_TEXT])
    settings: dict[str, Any] = {"semantic_ids": config.semantic_ids, "seed": config.seed}
    settings |= who_is_warm(config)
    if earlier is not None:
        settings["earlier"] = earlier.require(DATASET).version
    behaviour = [] if earlier else ["interactions", "embeddings"]
    plan = store.plan(DATASET, settings, ["items", content, *behaviour])
    if plan.is_done:
        log.info("%s: up to date, %d rows", DATASET, store.require(DATASET).num_rows)
    elif earlier is None:
        _fit(config, store, plan, content)
    else:
        _go_on(config, store, plan, content, earlier)


def _fit(config: RunConfig, store: Store, plan: Plan, content: str) -> None:
    """Fit codebooks, and give every item an id."""
    ids, items = read_items(store, content, config.recommender.until)
    if not config.semantic_ids.collaborative_weight:
        items = without_collaborative(items)
    began = time.monotonic()
    tokenizer = fit_tokenizer(items, config.semantic_ids, config.seed)
    fitting = time.monotonic() - began
    vectors = tokenizer.vectors(items)
    nearest = tokenizer.quantizer.encode(vectors)
    codes = resolve(
        config.semantic_ids.collisions,
        nearest,
        items.is_warm,
        tokenizer.codebook_size,
        lambda rows: tokenizer.quantizer.last_level_choices(vectors.take(rows)),
    )
    facts = codebook_health(items, tokenizer, vectors, nearest, config.seed)
    facts["reassigned"] = int((codes[:, : nearest.shape[1]] != nearest).any(axis=1).sum())
    facts["fitting_seconds"] = round(fitting, 2)
    facts["content_made_with"] = made_with(store, content)
    log.info(
        "%d items, %d warm; fitted on %d in %.1f s, %d codes a level",
        *(facts[name] for name in ("items", "warm", "fitted", "fitting_seconds", "codebook_size")),
    )
    _log_health(facts)
    given = GivenIds(ids, codes, items.is_warm, collisions(nearest)[0], np.ones(len(ids), bool))
    plan.write_files(lambda folder: write_ids(folder, given, None, tokenizer), len(ids), facts)


def _go_on(config: RunConfig, store: Store, plan: Plan, content: str, earlier: Store) -> None:
    """Keep the ids of an earlier run, and give its new items one each."""
    ids, items = read_contents(store, content)
    made, tokenizer = made_with(store, content), read_tokenizer(earlier)
    require_same_content(earlier, made, items.content.shape[1], tokenizer)
    policy = config.semantic_ids.collisions
    found = assign_beside(ids, items, read_ids(earlier), tokenizer, policy)
    facts = changed_health(found, tokenizer, config.seed)
    moved = found.ids.codes[:, : tokenizer.levels] != found.nearest
    facts["reassigned"] = int(moved.any(axis=1).sum())
    facts["content_made_with"] = made
    _log_change(config, facts)
    _log_health(facts)
    plan.write_files(
        lambda folder: write_ids(folder, found.ids, found.left, tokenizer), len(ids), facts
    )


def _log_change(config: RunConfig, facts: Mapping[str, Any]) -> None:
    name = config.semantic_ids.from_run
    log.info(
        "codebooks of %s: %d items keep their ids, %d are new, %d have left; %d ids are reserved",
        *(name, *(facts[key] for key in ("kept", "new", "left", "reserved"))),
    )
    if not facts["kept"]:
        log.warning(
            "no item of the catalog has an id in %s; is semantic_ids.from_run the run you mean?",
            name,
        )
    if not facts["new"]:
        return
    shares = ", ".join(f"{share:.1%}" for share in facts["new_prefix_seen"])
    log.info("share of new items whose prefix a warm item has, level by level: %s", shares)
    old, new = (facts["content_error"][key] for key in ("old", "new"))
    if old is None or new is None:
        return
    log.info("error of new items by content %.3f, of old ones %.3f", new, old)
    if facts["new"] >= _FEW and new > _DRIFT * old:
        log.warning(
            "new items are unlike those that the codebooks of %s were fitted on (error %.3f, of "
            "old items %.3f): their ids tell little of them; leave semantic_ids.from_run out to "
            "fit anew, and train the recommender anew",
            *(name, new, old),
        )


def _of_cold_items(facts: Mapping[str, Any], level: int) -> str:
    if facts["items"] == facts["warm"]:
        return ""
    share = facts["cold_prefix_seen"][level]
    return f", and by a warm item of {share:.1%} of the cold ones"


def _log_health(facts: Mapping[str, Any]) -> None:
    near = facts["neighbours"]
    for level, own in enumerate(facts["levels"]):
        log.info(
            "level %d: %d codes used, %d dead, perplexity %.1f, error %.3f; prefix shared by "
            "%.1f %% of neighbours (chance %.2f %%)%s",
            level + 1,
            *(own[name] for name in ("used", "dead", "perplexity", "error")),
            *(100 * near[name][level] for name in ("agreement", "chance")),
            _of_cold_items(facts, level),
        )
    log.info(
        "%d items collide (%.1f %%), at most %d in one bucket; %d were given another last code",
        facts["colliding"],
        100 * facts["collision_rate"],
        facts["largest_bucket"],
        facts["reassigned"],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
