"""The folder that a vLLM server drafts from: pools of all texts, and prompts by group."""

import json

import numpy as np
import pyarrow as pa
import pytest

from jobs import export_drafts
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.language_model import ChatTokenizer
from pipeline.schemas import GROUPS, INTERACTIONS, ITEMS, KNOWLEDGE, USERS
from pipeline.store import Store
from pipeline.token_identity import key_of_ids
from retrieval_pools.pool_folder import open_pools
from retrieval_pools.vllm_proposer import read_groups

PRINT = "tokenizer-1"


class Letters(ChatTokenizer):
    """One token per character."""

    def encode_all(self, messages):
        return [np.array([ord(sign) for sign in message], np.int32) for message in messages]


def rows(schema, *known):
    plain = {"string": "", "bool": False}
    blank = {
        field.name: [] if pa.types.is_list(field.type) else plain.get(str(field.type), 0)
        for field in schema
    }
    return pa.Table.from_pylist([blank | row for row in known], schema)


@pytest.fixture
def config(monkeypatch):
    monkeypatch.setattr(export_drafts, "load_tokenizer", lambda _: Letters(None, PRINT))
    return RunConfig.model_validate(
        {
            "run": "shop",
            "catalog": {"source": "movielens", "path": "nowhere"},
            "language_model": {"path": "nowhere"},
            "encoder": {"path": "nowhere"},
        }
    )


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "shop")
    store.plan("users", {}).write(pa.table([["u"], [[("age", "30")]]], schema=USERS))
    items = pa.table([["i", "j"], ["Alpha", "Beta"], [[], []]], schema=ITEMS)
    store.plan("items", {}).write(items)
    store.plan("interactions", {}).write(INTERACTIONS.empty_table())
    entities = [("user", "u", "user/a"), ("item", "i", "item/a"), ("item", "j", "item/b")]
    named = [dict(zip(("kind", "entity_id", "group_id"), one, strict=True)) for one in entities]
    store.plan("groups", {}).write(rows(GROUPS, *named))
    texts = [row | {"text": "abc", "token_ids": [97, 98, 99]} for row in named]
    texts[1] |= {"error": "broken"}
    store.plan("waves/0/knowledge", {"tokenizer": PRINT}).write(rows(KNOWLEDGE, *texts))
    merged = store.plan("knowledge", {}, ["waves/0/knowledge"])
    merged.write(rows(KNOWLEDGE, *texts), {"framework": "kar"})
    return store


def test_a_folder_holds_pools_prompts_and_groups(config, store):
    export_drafts.run(config, store)
    folder = store.path("drafts")
    pools = open_pools(folder, PRINT)
    assert {name: pool.num_documents for name, pool in pools.groups.items()} == {
        "item/b": 1,
        "user/a": 1,
    }
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    prompts = {(row["kind"], row["entity_id"]): row for row in map(json.loads, lines)}
    assert prompts.keys() == {("user", "u"), ("item", "i"), ("item", "j")}
    text = "".join(map(chr, prompts["item", "j"]["prompt_token_ids"]))
    assert "Movie: Beta" in text
    groups = read_groups(folder / "groups.json", PRINT)
    for row in prompts.values():
        key = key_of_ids(pa.array(row["prompt_token_ids"], pa.int32()).to_numpy())
        assert groups[key] == row["group_id"]
    written = (folder / "pools.json").stat().st_mtime_ns
    export_drafts.run(config, store)
    assert (folder / "pools.json").stat().st_mtime_ns == written


def test_a_run_without_knowledge_has_no_drafts(config, tmp_path):
    with pytest.raises(DataError, match="knowledge has not been made"):
        export_drafts.run(config, Store(tmp_path / "empty"))


def test_texts_of_another_framework_are_no_drafts(config, store):
    other = config.model_copy(update={"framework": "once"})
    with pytest.raises(DataError, match="written for the framework kar"):
        export_drafts.run(other, store)
