"""What is not wrong with a catalog but will disappoint, each with its remedy."""

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.build_catalog import NO_PAST
from jobs.catalog_trial import FEW_TESTS
from pipeline.config import RunConfig
from pipeline.schemas import SPLITS

_MANY = 0.5
_RARE = 0.05  # likes, or dislikes


def warnings_of(numbers: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Everything worth a warning in what `numbers_of` found."""
    tables = numbers["tables"]
    return [
        *_of_labels(numbers, config),
        *_of_splits(numbers, config, has_check=_has_dislikes(numbers, config)),
        *_of_items(tables["items"]),
        *(one for kind in ("user", "item") for one in _of_groups(kind, tables[f"{kind}s"])),
    ]


def _of_labels(numbers: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    rows, likes = (numbers["tables"]["interactions"][key] for key in ("rows", "likes"))
    if not _has_dislikes(numbers, config):
        yield (
            "every interaction is a like, but the CTR check needs dislikes too; "
            + (
                "it is left out, texts and features are made"
                if config.catalog.positive_rating is None
                else "raise catalog.positive_rating"
            )
        )
        return
    if not _RARE <= likes / rows <= 1 - _RARE:
        yield (
            f"{likes / rows:.1%} of the interactions are likes, which tells a model little; move "
            "catalog.positive_rating towards the middle of the ratings"
        )
    for name in SPLITS[1:]:
        part = numbers["splits"][name]
        if part["likes"] in (0, part["rows"]):
            yield (
                f"all {part['rows']:,} {name} rows have the same label, so the CTR check cannot be "
                "made; change catalog.positive_rating or catalog.split, or bring more data"
            )


def _has_dislikes(numbers: Mapping[str, Any], config: RunConfig) -> bool:
    """Whether there is anything that the CTR check could tell from likes."""
    rows, likes = (numbers["tables"]["interactions"][key] for key in ("rows", "likes"))
    return config.catalog.positive_rating is not None and likes < rows


def _of_splits(numbers: Mapping[str, Any], config: RunConfig, has_check: bool) -> Iterator[str]:
    if numbers[NO_PAST] > _MANY:
        yield (
            f"{numbers[NO_PAST]:.0%} of the test rows are of users without a past, of whom texts "
            "can say little; set catalog.split.protocol: per_user_prefix, or raise "
            "catalog.split.knowledge_share"
        )
    rows = numbers["splits"]["test"]["rows"]
    if has_check and rows < FEW_TESTS:
        yield (
            f"the test part has {rows:,} rows, so the CTR check will hardly tell anything; lower "
            "catalog.split.train_share or knowledge_share, or bring more data"
        )
    if has_check and config.catalog.split.cold_items:
        yield "catalog.split.cold_items is not for the CTR check; leave it out for one"


def _of_items(items: Mapping[str, Any]) -> Iterator[str]:
    if items["without_title"]:
        yield (
            f"{items['without_title']:,} of {items['rows']:,} items have no title, and are called "
            "untitled in prompts; fill them in, or drop the items"
        )
    if not items["attributes_missing_share"]:
        yield (
            "items have no attributes, so prompts show titles only; name columns under "
            "catalog.tables.items.attributes"
        )


def _of_groups(kind: str, entities: Mapping[str, Any]) -> Iterator[str]:
    cold, bare = entities["cold"], entities["cold_without_attributes"]
    if bare > _MANY * entities["rows"] or (bare and bare == cold):
        yield (
            f"{bare:,} of {entities['rows']:,} {kind}s have fewer past likes than "
            f"groups.min_interactions and nothing of groups.{kind}_attributes, so all share one "
            "pool of texts; name a column there that most have, or lower groups.min_interactions"
        )
