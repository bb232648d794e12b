"""What the benchmark stands on: pools of earlier texts, and rows that are in none of them."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from jobs import build_catalog, group_entities, train_embeddings
from jobs.build_pools import build_wave
from jobs.generate_knowledge import write_wave
from jobs.wave_names import last_wave
from jobs.waves import Identity, Wave, open_wave
from jobs.writers import Writers
from pipeline.config import RunConfig
from pipeline.engine.types import Request
from pipeline.errors import DataError
from pipeline.knowledge import requests_of
from pipeline.language_model import ChatTokenizer
from pipeline.store import Plan, Store


def prepare(config: RunConfig, store: Store, identity: Identity) -> Plan:
    """Make the pools of the last wave, and all that they are made of."""
    for stage in (build_catalog, train_embeddings, group_entities):
        stage.run(config, store)
    with Writers(config, identity.tokenizer) as writers:
        for wave in range(config.generation.waves):
            write_wave(config, store, wave, identity, writers)
    import ray

    ray.shutdown()  # idle workers would take time and memory from what is measured
    return build_wave(config, store, last_wave(config), identity.tokenizer)


def requests_by_kind(
    config: RunConfig, store: Store, identity: Identity
) -> dict[str, list[Request]]:
    """Rows of the last wave by kind, in a random order, with keys that no other kind has."""
    wave = open_wave(config, store, last_wave(config), identity, "")
    random = np.random.default_rng(config.seed)
    kinds = config.generation.kinds
    return {kind: _of_kind(config, wave, kind, identity.tokenizer, random) for kind in kinds}


def _of_kind(
    config: RunConfig,
    wave: Wave,
    kind: str,
    tokenizer: ChatTokenizer,
    random: np.random.Generator,
) -> list[Request]:
    rows = wave.prompted(wave.tasks.filter(pc.equal(wave.tasks["kind"], kind)))
    limits = config.benchmark.max_new_tokens, config.prompts.max_tokens
    every = requests_of(rows, tokenizer, *limits)
    usable = [
        replace(request, key=f"{kind} {request.key}")
        for request in every
        if len(request.prompt_ids)
    ]
    if not usable:
        raise DataError(
            f"the last wave has no {kind} to measure; raise catalog.max_{kind}s, or leave "
            f"{kind} out of generation.kinds"
        )
    return [usable[place] for place in random.permutation(len(usable))]


def block_of(requests: Sequence[Request], block: int, size: int) -> list[Request]:
    """Rows of a block; where there are too few for all blocks, later ones begin anew."""
    size = min(size, len(requests))
    return [requests[(block * size + place) % len(requests)] for place in range(size)]
