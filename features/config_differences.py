"""Where a config is another than the one that the datasets of a run were made with.

A run's config is kept nowhere whole: a page shows the config that it was made with itself, and may
claim of it what the manifests say. They hold what texts and numbers depend on, not all of it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Settings of manifests that stand elsewhere in a config.
_PLACES = {
    "draft_nodes": "engine.draft_nodes",
    "sources": "drafts.sources",
    "max_tokens": "encoder.max_tokens",
}
_HASHED = ("drafts.model",)  # a config names it, a manifest has its fingerprint
_OWN_WORDING = "controls/"  # datasets of the check that are asked in words of their own
_WHOLE = ("catalog",)  # stands in a manifest with every key, but for those that say nothing new
_UNSET = "not set"


def config_differences(
    config: Mapping[str, Any], datasets: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Settings that `datasets` were made with and that are others in `config`, in words.

    Args:
        config: as plain values; what is at the top level of a manifest's settings only, such as the
            hash of the wording, is compared if it has that key.
        datasets: name (`dataset`) and `settings` of each.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for dataset in datasets:
        for place, made_with, now in _others(config, dataset["settings"]):
            if place == "templates" and dataset["dataset"].startswith(_OWN_WORDING):
                continue
            key = place, _worded(made_with)
            name = dataset["dataset"]
            if key in found:
                found[key]["datasets"] += f", {name}"
            else:
                found[key] = {"setting": place, "made_with": key[1], "config": _worded(now)}
                found[key]["datasets"] = name
    return list(found.values())


def _others(
    config: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Setting, its value in the manifest, and another one in the config."""
    stored = dict(_leaves(settings))
    here = dict(_leaves(config))
    for place, made_with in stored.items():
        place = _PLACES.get(place, place)
        is_known = place.partition(".")[0] in config and place not in _HASHED
        if is_known and here.get(place) != made_with:
            yield place, made_with, here.get(place)
    for place, now in here.items():
        section = place.partition(".")[0]
        if section in _WHOLE and section in settings and place not in stored:
            yield place, None, now


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted keys; a list is one value, and a section without any is none."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _worded(value: Any) -> str:
    """As a config has it, for copying."""
    if value is None or isinstance(value, str):
        return _UNSET if value is None else value
    return json.dumps(value, ensure_ascii=False)
