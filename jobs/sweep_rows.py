"""What the sweep stands on: every text of a strict run, and the settings of a replay over them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.benchmark_rows import prepare
from jobs.generate_knowledge import write_wave
from jobs.wave_names import knowledge_name, last_wave
from jobs.waves import Identity, open_wave
from jobs.writers import Writers
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.knowledge import requests_of
from pipeline.store import Plan, Store
from retrieval_pools.document import Document
from retrieval_pools.pool import PoolSet, build_pools
from retrieval_pools.replay import Recording
from retrieval_pools.router import COLLABORATIVE

_UNBOUNDED = 10**12  # bytes: no pool of a sweep leaves a text out


@dataclass(frozen=True)
class Texts:
    """All entities that have said something, wave by wave; everything is in this order."""

    recordings: list[Recording]
    kinds: np.ndarray  # (n,) str
    waves: np.ndarray  # (n,) int64
    groups: np.ndarray  # (n,) object, the run's own
    is_collaborative: np.ndarray  # (n,) bool
    distances: np.ndarray  # (n,) float32, to the centroid of the run's group
    vectors: np.ndarray  # (n, d) float32

    def __len__(self) -> int:
        return len(self.recordings)

    @property
    def is_past(self) -> np.ndarray:
        """Which texts are there before the last wave: (n,) bool."""
        return self.waves < self.waves.max()

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every text: (n,) int64."""
        return np.array([len(recording.token_ids) for recording in self.recordings], np.int64)


@dataclass(frozen=True)
class Setting:
    """Which texts are in which pool, who drafts from it, and how; texts are indices."""

    pools: Mapping[str, np.ndarray]
    pool_of: np.ndarray  # (n,) object, the pool that each row takes for its group's
    rows: np.ndarray  # those replayed
    sources: tuple[str, ...]
    depth: int
    nodes: int

    @property
    def texts_per_pool(self) -> float:
        """Texts in the pool of a row's group, mean over the rows; without groups, all texts."""
        if "group" in self.sources:
            sizes = [len(self.pools.get(str(self.pool_of[row]), ())) for row in self.rows]
            return float(np.mean(sizes))
        return float(sum(map(len, self.pools.values()))) if "global" in self.sources else 0.0


def prepare_texts(config: RunConfig, store: Store, identity: Identity) -> Plan:
    """Make what is missing, the texts of the last wave included; return the plan of its pools.

    Raises:
        ConfigError: the run's texts would not be greedy, or it has no first waves.
    """
    if config.generation.rule != "strict":
        raise ConfigError(
            f"generation.rule is {config.generation.rule}; a sweep replays greedy texts: set it "
            "to strict, and another `run` name"
        )
    if config.refresh.previous:
        raise ConfigError("a sweep holds out the last wave of a first run: unset refresh.previous")
    pools = prepare(config, store, identity)
    with Writers(config, identity.tokenizer) as writers:
        write_wave(config, store, last_wave(config), identity, writers)
    import ray

    ray.shutdown()  # its idle workers would take time from the replays
    return pools


def read_texts(config: RunConfig, store: Store, identity: Identity) -> Texts:
    """Every text without error.

    Raises:
        DataError: a kind has no text in the last wave, or none before it.
    """
    rows = list(_rows(config, store, identity))
    texts = Texts(
        [row["recording"] for row in rows],
        np.array([row["kind"] for row in rows], str),
        np.array([row["wave"] for row in rows], np.int64),
        np.array([row["group_id"] for row in rows], object),
        np.array([row["route"] == COLLABORATIVE for row in rows], bool),
        np.array([row["distance"] for row in rows], np.float32),
        np.array([row["vector"] for row in rows], np.float32),
    )
    for kind in config.generation.kinds:
        for name, is_in in (("in the last wave", ~texts.is_past), ("before it", texts.is_past)):
            if not (is_in & (texts.kinds == kind)).any():
                raise DataError(
                    f"no {kind} has a text {name}; raise catalog.max_{kind}s, or leave {kind} out "
                    "of generation.kinds"
                )
    return texts


def _rows(config: RunConfig, store: Store, identity: Identity) -> Iterator[dict[str, Any]]:
    """Of every text its recording, and what groups and embeddings say of its entity."""
    groups, embeddings = _by_entity(store.read("groups")), _by_entity(store.read("embeddings"))
    for wave in range(last_wave(config) + 1):
        opened = open_wave(config, store, wave, identity, "")
        tasks = opened.tasks
        limits = config.generation.max_new_tokens, config.prompts.max_tokens
        requests = requests_of(opened.prompted(tasks), identity.tokenizer, *limits)
        written = _by_entity(store.read(knowledge_name(wave)))
        entities = zip(tasks["kind"].to_pylist(), tasks["entity_id"].to_pylist(), strict=True)
        for request, entity in zip(requests, entities, strict=True):
            row = written[entity]
            if not row["error"]:
                ids = np.array(row["token_ids"], np.int32)
                recording = Recording(request, ids, row["finish_reason"])
                known = {"vector": embeddings[entity]["vector"], "recording": recording}
                yield groups[entity] | {"wave": wave} | known


def _by_entity(table: pa.Table) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["kind"], row["entity_id"]): row for row in table.to_pylist()}


def pools_for(texts: Texts, setting: Setting) -> PoolSet:
    """The pools of a setting."""
    documents = {
        name: [Document(texts.recordings[text].token_ids) for text in members]
        for name, members in setting.pools.items()
    }
    return build_pools(documents, setting.depth, _UNBOUNDED)
