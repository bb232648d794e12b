"""GROUPS + KNOWLEDGE of earlier waves -> the pools a wave drafts from.

    python -m jobs.build_pools --config conf/demo.yaml

Run by itself it builds the pools of every wave whose earlier waves are written;
jobs.generate_knowledge calls it between waves. Pools are frozen: a wave reads them, no one writes.
The manifest says how much the texts repeat each other, by group and by the wave that wrote them.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.formats import count
from jobs import cli
from jobs.wave_names import knowledge_name, last_wave, pools_name
from jobs.waves import earlier_knowledge, earlier_run
from pipeline.config import PoolSettings, RunConfig
from pipeline.language_model import ChatTokenizer, load_tokenizer
from pipeline.store import Plan, Store
from retrieval_pools.diversity import by_wave
from retrieval_pools.document import Document
from retrieval_pools.pool import PoolSet, build_pools
from retrieval_pools.pool_folder import save_pools

log = logging.getLogger("jobs.build_pools")

# What a document is made of, and the order in which they are read: that of rows depends on actors.
_COLUMNS = ["group_id", "token_ids", "error", "rule", "relaxed_tokens", "wave", "kind", "entity_id"]
_ORDER = [(name, "ascending") for name in ("wave", "kind", "entity_id")]


def run(config: RunConfig, store: Store) -> None:
    """Write `waves/<n>/pools` for every wave that can have them."""
    tokenizer = load_tokenizer(config.language_model)
    for wave in range(1, last_wave(config) + 1):
        if not config.refresh.previous and store.manifest(knowledge_name(wave - 1)) is None:
            log.info("pools of wave %d need the knowledge of wave %d first", wave, wave - 1)
            return
        before = store.manifest(pools_name(wave))
        name = build_wave(config, store, wave, tokenizer).name
        if (made := store.require(name)) == before:
            log.info("%s: up to date, %s tokens", name, count(made.num_rows))


def build_wave(config: RunConfig, store: Store, wave: int, tokenizer: ChatTokenizer) -> Plan:
    """Build the pools of one wave from all texts before it; return the plan they fulfil.

    In a refresh those are the texts of the earlier run, whether they still hold or not.
    """
    name = pools_name(wave)
    settings = {"pools": config.pools, "tokenizer": tokenizer.fingerprint}
    waves = [knowledge_name(number) for number in range(wave)]
    earlier = earlier_run(config)
    if earlier is not None:
        settings["earlier"] = earlier.require("knowledge").version
        waves = []
    plan = store.plan(name, settings, inputs=["groups", *waves])
    if plan.is_done:  # whoever drafts from them has more to say
        return plan
    source = earlier or store
    model = source.require(knowledge_name(0)).settings["model"]  # all waves have the same
    if earlier is not None:
        knowledge = _regrouped(earlier_knowledge(earlier, tokenizer), store.read("groups"))
    else:
        knowledge = pa.concat_tables([store.read(wave_name, _COLUMNS) for wave_name in waves])
    pools, facts = pool_knowledge(knowledge, config.pools)

    def fill(folder: Path) -> None:
        save_pools(pools, folder, tokenizer.fingerprint, model)

    plan.write_files(fill, pools.num_tokens, facts)
    log.info(
        "%s: %s groups, %s texts (%s relaxed), %s tokens; %s",
        name,
        *map(count, (facts["groups"], pools.num_documents, pools.num_relaxed, pools.num_tokens)),
        _drift(facts["diversity"]["all"]),
    )
    return plan


def pool_knowledge(knowledge: pa.Table, settings: PoolSettings) -> tuple[PoolSet, dict[str, Any]]:
    """Pool every text of `knowledge`, KNOWLEDGE, by group; and what to say of the pools."""
    documents = _documents(knowledge)
    pools = build_pools(documents, settings.depth, settings.max_bytes)
    return pools, {
        "groups": len(documents),
        "documents": pools.num_documents,
        "relaxed": pools.num_relaxed,
        "diversity": _diversity(documents),
    }


def _regrouped(knowledge: pa.Table, groups: pa.Table) -> pa.Table:
    """KNOWLEDGE of an earlier run under the groups of today, without who has left the catalog."""
    names = ("kind", "entity_id", "group_id")
    rows = zip(*(groups[name].to_pylist() for name in names), strict=True)
    today = {(kind, entity): group for kind, entity, group in rows}
    entities = zip(*(knowledge[name].to_pylist() for name in names[:2]), strict=True)
    owner = pa.array([today.get(entity) for entity in entities], pa.string())
    place = knowledge.schema.get_field_index("group_id")
    regrouped = knowledge.set_column(place, "group_id", owner)
    return regrouped.filter(owner.is_valid())


def _documents(knowledge: pa.Table) -> dict[str, list[Document]]:
    """Every text without error, by group, in the order of the waves.

    A row of the relaxed rule that relaxed nothing holds the greedy text.
    """
    has_text = pc.greater(pc.list_value_length(knowledge["token_ids"]), 0)
    usable = knowledge.filter(pc.and_(has_text, pc.equal(knowledge["error"], "")))
    rows = usable.select(_COLUMNS).sort_by(_ORDER)
    is_relaxed = pc.and_(pc.equal(rows["rule"], "relaxed"), pc.greater(rows["relaxed_tokens"], 0))
    ends = np.cumsum(pc.list_value_length(rows["token_ids"]).to_numpy(), dtype=np.int64)
    ids = [chunk.flatten().to_numpy() for chunk in rows["token_ids"].chunks]
    texts = np.split(np.concatenate(ids), ends[:-1]) if len(ends) else []
    columns = (rows["group_id"], is_relaxed, rows["wave"])
    documents: dict[str, list[Document]] = defaultdict(list)
    for text, group, relaxed, wave in zip(texts, *(c.to_pylist() for c in columns), strict=True):
        documents[group].append(Document(text, relaxed, wave))
    return dict(documents)


def _diversity(documents: Mapping[str, Sequence[Document]]) -> dict[str, Any]:
    """Of all texts and of each group's, those that found no room included."""
    return {
        "all": by_wave([document for group in documents.values() for document in group]),
        "groups": {name: by_wave(documents[name]) for name in sorted(documents)},
    }


def _drift(diversity: Mapping[str, Any]) -> str:
    """How alike the texts of each wave are, in words."""
    waves = [f"{wave}: {measured['similarity']}" for wave, measured in diversity["waves"].items()]
    by_wave = f" (by wave {', '.join(waves)})" if len(waves) > 1 else ""
    return (
        f"distinct 3-grams {diversity['distinct_3']}, similarity {diversity['similarity']}{by_wave}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
