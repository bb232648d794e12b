"""From rows of knowledge to pools: whose text, how it was written, and what the manifest says."""

import json
import logging

import pyarrow as pa
import pytest

from jobs.build_pools import build_wave
from pipeline.config import RunConfig
from pipeline.language_model import ChatTokenizer
from pipeline.schemas import GROUPS, KNOWLEDGE
from pipeline.store import Store
from retrieval_pools.pool_folder import open_pools

TOKENIZER = ChatTokenizer(None, "tokenizer-1")
EMPTY = {"string": "", "int32": 0, "int64": 0, "float": 0.0}


@pytest.fixture
def config_of(tmp_path):
    def make(**sections):
        return RunConfig.model_validate(
            {
                "run": "now",
                "artifacts": str(tmp_path),
                "catalog": {"source": "movielens", "path": "x"},
                "language_model": {"path": "x"},
                "encoder": {"path": "x"},
            }
            | sections
        )

    return make


def a_row(entity, text, group="user/a", wave=0, rule="plain", relaxed=0, error=""):
    """A row of KNOWLEDGE; columns that pools do not read are empty."""
    row = {field.name: EMPTY.get(str(field.type), []) for field in KNOWLEDGE}
    said = {"kind": "user", "entity_id": entity, "group_id": group, "token_ids": list(text)}
    how = {"wave": wave, "rule": rule, "relaxed_tokens": relaxed, "error": error}
    return row | said | how


def write(store, name, rows, model="model-1", tokenizer="tokenizer-1"):
    table = pa.Table.from_pylist(rows, schema=KNOWLEDGE)
    store.plan(name, {"model": model, "tokenizer": tokenizer}).write(table)


def write_groups(store, groups):
    rows = [
        {
            "kind": "user",
            "entity_id": entity,
            "route": "attribute",
            "group_id": group,
            "distance": 0.0,
            "representative": False,
        }
        for entity, group in groups.items()
    ]
    store.plan("groups", {}).write(pa.Table.from_pylist(rows, schema=GROUPS))


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "now")
    write_groups(store, dict.fromkeys("opqrst", "user/a"))
    return store


def built(config, store, wave):
    plan = build_wave(config, store, wave, TOKENIZER)
    return open_pools(store.path(plan.name), TOKENIZER.fingerprint), store.require(plan.name).facts


def texts(pools, group="user/a"):
    return [text.tolist() for text in pools.texts(group)]


def test_only_rows_that_relaxed_a_token_count_half(config_of, store):
    rows = [
        a_row("o", range(10), rule="plain"),
        a_row("p", range(11), rule="relaxed", relaxed=2),
        a_row("q", range(12), rule="relaxed", relaxed=0),
        a_row("r", range(13), rule="strict"),
        a_row("s", range(14), rule="sampled"),
    ]
    write(store, "waves/0/knowledge", rows)
    pools, facts = built(config_of(), store, 1)
    assert texts(pools) == [list(range(size)) for size in range(10, 15)]
    assert (pools.num_documents, pools.num_relaxed) == (5, 1)
    assert (facts["documents"], facts["relaxed"], facts["groups"]) == (5, 1, 1)


def test_rows_with_an_error_or_without_text_are_no_documents(config_of, store):
    rows = [a_row("o", range(10)), a_row("p", [], "user/b"), a_row("q", [1], error="broken")]
    write(store, "waves/0/knowledge", rows)
    pools, _ = built(config_of(), store, 1)
    assert list(pools.groups) == ["user/a"]
    assert texts(pools) == [list(range(10))]


def test_all_earlier_waves_are_pooled_oldest_first_whatever_the_order_of_rows(config_of, store):
    early = [a_row("p", [1, 2, 3]), a_row("o", [4, 5, 6])]
    write(store, "waves/0/knowledge", early)
    write(store, "waves/1/knowledge", [a_row("a", [7, 8, 9], wave=1)])
    pools, _ = built(config_of(), store, 2)
    assert texts(pools) == [[4, 5, 6], [1, 2, 3], [7, 8, 9]]


def test_the_manifest_of_pools_names_the_model_that_wrote_the_texts(config_of, store):
    write(store, "waves/0/knowledge", [a_row("o", range(10))], model="model-7")
    built(config_of(), store, 1)
    manifest = json.loads((store.path("waves/1/pools") / "pools.json").read_text())
    assert (manifest["model"], manifest["tokenizer"]) == ("model-7", "tokenizer-1")


def test_drift_toward_one_phrase_is_told_by_wave_and_logged(config_of, store, caplog):
    phrase = list(range(500, 520))
    write(store, "waves/0/knowledge", [a_row("o", range(20)), a_row("p", range(30, 50))])
    alike = [a_row("q", [*phrase, 1], wave=1), a_row("r", [*phrase, 2], "user/b", wave=1)]
    write(store, "waves/1/knowledge", alike)
    with caplog.at_level(logging.INFO, "jobs.build_pools"):
        _, facts = built(config_of(), store, 2)
    waves = facts["diversity"]["all"]["waves"]
    assert waves["0"] == {"documents": 2, "distinct_3": 1.0, "similarity": 0.0}
    assert waves["1"]["similarity"] == pytest.approx(18 / 20)
    assert waves["1"]["distinct_3"] < 1.0
    groups = facts["diversity"]["groups"]
    assert [groups[name]["documents"] for name in ("user/a", "user/b")] == [3, 1]
    assert groups["user/b"]["waves"]["1"]["similarity"] is None
    (line,) = [record.message for record in caplog.records if "waves/2/pools" in record.message]
    assert "2 groups, 4 texts (0 relaxed), 82 tokens" in line
    assert "(by wave 0: 0.0, 1: 0.9)" in line


def test_the_bound_of_the_config_is_kept(config_of, store):
    rows = [a_row(f"e{number:03d}", range(number, number + 100)) for number in range(40)]
    write(store, "waves/0/knowledge", rows)
    pools, facts = built(config_of(pools={"max_bytes": 16384}), store, 1)
    assert pools.num_documents == 16384 // 1263 == 12
    assert pools.tokens.nbytes + pools.group_suffixes.nbytes + pools.global_suffixes.nbytes <= 16384
    assert facts["documents"] == 12
    assert facts["diversity"]["all"]["documents"] == 40  # of all that was written


def test_a_refresh_pools_the_earlier_run_under_the_groups_of_today(config_of, store, tmp_path):
    earlier = Store(tmp_path / "before")
    rows = [
        a_row("o", [1, 2, 3], "user/old", rule="relaxed", relaxed=1),
        a_row("p", [4, 5, 6], "user/old", wave=1),
        a_row("gone", [7, 8, 9], "user/old"),
    ]
    write(earlier, "waves/0/knowledge", rows, model="model-0")
    write(earlier, "knowledge", rows)
    pools, _ = built(config_of(refresh={"previous": "before"}), store, 1)
    assert list(pools.groups) == ["user/a"]
    assert texts(pools) == [[1, 2, 3], [4, 5, 6]]
    assert pools.num_relaxed == 1
    manifest = json.loads((store.path("waves/1/pools") / "pools.json").read_text())
    assert manifest["model"] == "model-0"


def test_texts_of_another_tokenizer_are_pooled_in_the_tokens_of_today(config_of, store, tmp_path):
    earlier = Store(tmp_path / "before")
    rows = [a_row("o", [70_001, 70_002]) | {"text": "abc"}, a_row("p", [70_003], error="broken")]
    write(earlier, "waves/0/knowledge", rows, tokenizer="tokenizer-0")
    write(earlier, "knowledge", rows)

    def letters(text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [ord(letter) for letter in text]}

    config = config_of(refresh={"previous": "before"})
    plan = build_wave(config, store, 1, ChatTokenizer(letters, "tokenizer-1"))
    pools = open_pools(store.path(plan.name), "tokenizer-1")
    assert texts(pools) == [[97, 98, 99]]


def test_pools_that_are_up_to_date_are_left_alone(config_of, store):
    write(store, "waves/0/knowledge", [a_row("o", range(10))])
    config = config_of()
    built(config, store, 1)
    before = (store.path("waves/1/pools") / "pools.json").stat().st_mtime_ns
    built(config, store, 1)
    assert (store.path("waves/1/pools") / "pools.json").stat().st_mtime_ns == before
