"""GROUPS + KNOWLEDGE of earlier waves -> the pools a wave drafts from.

    python -m jobs.build_pools --config conf/demo.yaml

Run by itself it builds the pools of every wave whose earlier waves are written;
jobs.generate_knowledge calls it between waves. Pools are frozen: a wave reads them, no one writes.
"""

import logging
import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from jobs import cli
from pipeline.config import RunConfig
from pipeline.language_model import load_tokenizer
from pipeline.store import Plan, Store
from retrieval_pools.pool import build_pools

log = logging.getLogger("jobs.build_pools")


def run(config: RunConfig, store: Store) -> None:
    """Write `waves/<n>/pools` for every wave that can have them."""
    tokenizer = load_tokenizer(config.language_model).fingerprint
    for wave in range(1, config.generation.waves + 1):
        if store.manifest(knowledge_name(wave - 1)) is None:
            log.info("pools of wave %d need the knowledge of wave %d first", wave, wave - 1)
            return
        build_wave(config, store, wave, tokenizer)


def build_wave(config: RunConfig, store: Store, wave: int, tokenizer: str) -> Plan:
    """Build the pools of one wave from all waves before it; return the plan they fulfil."""
    earlier = [knowledge_name(number) for number in range(wave)]
    name = f"waves/{wave}/pools"
    plan = store.plan(
        name, {"pools": config.pools, "tokenizer": tokenizer}, inputs=["groups", *earlier]
    )
    if plan.is_done:
        log.info("%s: up to date", name)
        return plan
    documents = _documents(store, earlier)
    pools = build_pools(documents, config.pools.depth, config.pools.max_tokens)
    tokens = sum(len(text) for texts in documents.values() for text in texts)
    plan.write_files(
        lambda folder: pools.save(folder, tokenizer), tokens, {"groups": len(documents)}
    )
    log.info("%s: %d groups, %d tokens", name, len(documents), tokens)
    return plan


def knowledge_name(wave: int) -> str:
    """Dataset of one wave's knowledge."""
    return f"waves/{wave}/knowledge"


def _documents(store: Store, names: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Token ids of every text without error, by group, in the order of the waves."""
    documents: dict[str, list[np.ndarray]] = defaultdict(list)
    for name in names:
        knowledge = store.read(name).select(["group_id", "token_ids", "error"])
        for row in knowledge.to_pylist():
            if row["token_ids"] and not row["error"]:
                documents[row["group_id"]].append(np.array(row["token_ids"], np.int32))
    return dict(documents)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
