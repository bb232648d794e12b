"""How many texts a refresh would keep, by the prompts alone."""

from typing import NamedTuple

import numpy as np

from features.frameworks import templates_of
from pipeline.catalog import Catalog
from pipeline.config import RunConfig
from pipeline.prompts import Prompts, prompt_hash
from pipeline.runs import open_run

_ROWS = 4096  # prompts that are made at once


class Refreshed(NamedTuple):
    """Texts by what becomes of them, if model and parameters are the same."""

    kept: int
    changed: int  # asked something else now, or failed before
    new: int


def refreshed_rows(config: RunConfig, catalog: Catalog) -> Refreshed:
    """Compare the prompts of a catalog with those that the earlier run was asked."""
    assert config.refresh.previous is not None, "only of a refresh"
    earlier = open_run(config.artifacts, config.refresh.previous)
    columns = ["kind", "entity_id", "prompt_hash", "error"]
    table = earlier.read("knowledge", columns).to_pydict()
    hashes = {
        (kind, entity): "" if error else hashed
        for kind, entity, hashed, error in zip(*(table[name] for name in columns), strict=True)
    }
    prompts = Prompts(
        catalog.users, catalog.items, catalog.interactions, config.prompts, templates_of(config)
    )
    found = [0, 0, 0]
    for kind in config.generation.kinds:
        total = prompts.count(kind)
        for start in range(0, total, _ROWS):
            for prompt in prompts.take(kind, np.arange(start, min(start + _ROWS, total))):
                before = hashes.get((kind, prompt.entity_id))
                same = before == prompt_hash(prompt.text)
                found[2 if before is None else 0 if same else 1] += 1
    return Refreshed(*found)
