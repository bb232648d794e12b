"""KNOWLEDGE, GROUPS, CATALOG -> `drafts`: one folder from which a vLLM server drafts.

    python -m jobs.export_drafts --config conf/demo.yaml

It holds pools of all that the run has written; `groups.json`, by which a proposer knows the pool of
a prompt; and `prompts.jsonl`, a line for every entity with its prompt in token ids. How vLLM is
given it stands in `pipeline/docs/vllm.md`.
"""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from features.frameworks import templates_of
from jobs import cli
from jobs.build_pools import pool_knowledge
from jobs.waves import CATALOG, earlier_knowledge, groups_of, open_prompts, require_own_framework
from pipeline.config import RunConfig
from pipeline.knowledge import MEMBER
from pipeline.language_model import ChatTokenizer, load_tokenizer
from pipeline.store import Store
from pipeline.token_identity import key_of_ids
from retrieval_pools.pool_folder import save_pools
from retrieval_pools.vllm_proposer import GROUPS, save_groups

log = logging.getLogger("jobs.export_drafts")

DATASET = "drafts"
PROMPTS = "prompts.jsonl"
_AT_ONCE = 1024  # prompts in memory


def run(config: RunConfig, store: Store) -> None:
    """Write `drafts`.

    Raises:
        DataError: the run has no knowledge to draft from, or knowledge of another framework.
    """
    store.require("knowledge")
    require_own_framework(config, store)
    tokenizer = load_tokenizer(config.language_model)
    settings = {
        "prompts": config.prompts.deciding(),
        "templates": templates_of(config).hash,
        "kinds": config.generation.kinds,
        "pools": config.pools,
        "tokenizer": tokenizer.fingerprint,
    }
    plan = store.plan(DATASET, settings, [*CATALOG, "groups", "knowledge"])
    if plan.is_done:
        rows = store.require(DATASET).num_rows
        log.info("%s: up to date, %d prompts in %s", DATASET, rows, store.files.local(DATASET))
        return
    pools, facts = pool_knowledge(earlier_knowledge(store, tokenizer), config.pools)

    def fill(folder: Path) -> None:
        save_pools(pools, folder, tokenizer.fingerprint)
        groups = _write_prompts(folder / PROMPTS, config, store, tokenizer)
        save_groups(folder / GROUPS, groups, tokenizer.fingerprint)

    plan.write_files(fill, groups_of(config, store).num_rows, facts)
    log.info(
        "%s: %d texts in %d groups, %d prompts in %s",
        DATASET,
        *(pools.num_documents, len(pools.groups), store.require(DATASET).num_rows),
        store.path(DATASET),
    )


def _write_prompts(
    path: Path, config: RunConfig, store: Store, tokenizer: ChatTokenizer
) -> dict[str, str]:
    """Write a line for every entity; return the group of every prompt, by its key."""
    prompts, groups = open_prompts(config, store), {}
    members = groups_of(config, store).select(MEMBER).to_pylist()
    with path.open("w", encoding="utf-8") as file:
        for kind in config.generation.kinds:
            own = [row for row in members if row["kind"] == kind]
            for start in range(0, len(own), _AT_ONCE):
                rows = own[start : start + _AT_ONCE]
                places = prompts.rows(kind, pa.array([row["entity_id"] for row in rows]))
                texts = [prompt.text for prompt in prompts.take(kind, places)]
                for row, ids in zip(rows, tokenizer.encode_all(texts), strict=True):
                    groups[key_of_ids(ids)] = row["group_id"]
                    file.write(json.dumps(row | {"prompt_token_ids": ids.tolist()}) + "\n")
    return groups


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
