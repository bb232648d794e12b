"""A draft model through the jobs: tiny models in folders, a small shop, a local Ray."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from jobs import build_catalog, generate_knowledge, group_entities, train_embeddings
from jobs.generation_actor import make_engine
from jobs.soak_shop import save_tokenizer
from jobs.waves import Identity, open_wave, plan_wave
from pipeline.config_file import load_config
from pipeline.knowledge import requests_of
from pipeline.language_model import load_tokenizer
from pipeline.model_identity import model_fingerprint
from pipeline.store import Store

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # third parties warn as they please inside workers
]

NEW = 48  # enough that reading the prompts pays


def save_model(folder, vocabulary, silent_layers=0, noise=0.0):
    """A random Llama of one layer that speaks, and of others that only take their time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
                parameter.add_(noise * torch.randn_like(parameter))
    spoken = model.state_dict()
    config.num_hidden_layers = 1 + silent_layers
    model = LlamaForCausalLM(config)
    model.load_state_dict(spoken, strict=False)
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The configuration of a small shop whose catalog is built and grouped."""
    folder = tmp_path_factory.mktemp("shop")
    random = np.random.default_rng(5)
    pieces = ["chair", "table", "lamp", "shelf", "carpet"]
    tables = {
        "goods": (["item_id", "title"], [(f"g{n}", f"{pieces[n % 5]} {n}") for n in range(14)]),
        "buyers": (["user_id"], [(f"b{n}",) for n in range(20)]),
        "ratings": (
            ["user_id", "item_id", "rating", "timestamp"],
            [
                (f"b{random.integers(20)}", f"g{random.integers(14)}", 1 + n % 5, 10**9 + n)
                for n in range(500)
            ],
        ),
    }
    for name, (header, rows) in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
    texts = ["Describe a chair, a table or a lamp for a recommender system."]
    for name, silent_layers, noise in (("target", 11, 0.0), ("draft", 0, 0.002)):
        save_model(folder / name, save_tokenizer(folder / name, texts, 300), silent_layers, noise)
    other = save_tokenizer(folder / "stranger", ["something else " * 9], 300)
    save_model(folder / "stranger", other, 1)
    tree = {
        "run": "shop",
        "artifacts": str(folder / "artifacts"),
        "catalog": {
            "tables": {
                "users": {"path": str(folder / "buyers.csv")},
                "items": {"path": str(folder / "goods.csv")},
                "interactions": {"path": str(folder / "ratings.csv")},
            },
        },
        "embeddings": {"dim": 8, "max_epochs": 5},
        "groups": {"item_groups": 1, "user_groups": 1, "representatives": 100},
        "language_model": {"path": str(folder / "target")},
        "prompts": {"domain": "thing", "max_tokens": 600},
        "generation": {
            "kinds": ["item"],
            "rule": "strict",
            "max_new_tokens": NEW,
            "waves": 1,
        },
        "engine": {"batch_rows": 4, "max_length": 680, "draft_nodes": 8},
        "drafts": {"source": "model", "model": {"path": str(folder / "draft")}, "tokens": 3},
        "encoder": {"path": "unused"},
    }
    path = folder / "shop.yaml"
    path.write_text(yaml.safe_dump(tree))
    for job in (build_catalog, train_embeddings, group_entities):
        assert job.main(["--config", str(path)]) == 0
    return path


def open_run(path, **changes):
    config = load_config(path)
    generation = config.generation.model_copy(update=changes)
    config = config.model_copy(update={"generation": generation})
    return config, Store(config.artifacts / config.run)


def identity_of(config):
    return Identity(
        load_tokenizer(config.language_model),
        model_fingerprint(config.language_model),
        model_fingerprint(config.drafts.model),
    )


def drafted_and_accepted(rows):
    drafted = np.array([row["drafted_by_depth"] for row in rows]).sum(0)
    return drafted, np.array([row["accepted_by_depth"] for row in rows]).sum(0)


@pytest.fixture(scope="module")
def strict(shop):
    assert generate_knowledge.main(["--config", str(shop)]) == 0
    return open_run(shop)


def test_strict_text_with_a_draft_model_is_that_of_plain_decoding(strict):
    config, store = strict
    rows = store.read("knowledge").to_pylist()
    assert {row["wave"] for row in rows} == {0}  # all are representatives; a model drafts there too
    assert {(row["rule"], row["error"], row["pool_version"]) for row in rows} == {
        ("strict", "", "")
    }
    identity, plain = identity_of(config), {}
    engine = make_engine(config, identity.tokenizer)
    wave = open_wave(config, store, 0, identity, "")
    tasks = wave.prompted(wave.tasks)
    for done in engine.generate(
        requests_of(tasks, identity.tokenizer, NEW, config.prompts.max_tokens)
    ):
        plain[tasks["entity_id"][int(done.key)].as_py()] = done.token_ids.tolist()
    assert {row["entity_id"]: row["token_ids"] for row in rows} == plain
    assert len(plain) == 14
    drafted, accepted = drafted_and_accepted(rows)
    assert drafted[3:].sum() == 0
    assert accepted[0] > 0.5 * drafted[0] > 0
    assert store.manifest("waves/1/pools") is None


def test_who_drafts_belongs_to_the_plan_where_it_decides_on_the_text(strict):
    config, store = strict
    identity = identity_of(config)
    longer = config.drafts.model_copy(update={"tokens": 5})
    other = [
        (config.model_copy(update={"drafts": longer}), identity),
        (config, replace(identity, draft_model="another")),
    ]
    for changed, of in other:
        assert plan_wave(changed, store, 0, of).is_done
    for rule in ("relaxed", "sampled"):
        update = {"generation": config.generation.model_copy(update={"rule": rule})}
        prints = {
            plan_wave(changed.model_copy(update=update), store, 0, of).fingerprint
            for changed, of in [(config, identity), *other]
        }
        assert len(prints) == 3


def test_sampled_text_comes_through_the_command_line(shop):
    arguments = ["--config", str(shop), "--set", "generation.rule=sampled"]
    arguments += ["--set", "run=sampled"]
    for job in (build_catalog, train_embeddings, group_entities, generate_knowledge):
        assert job.main(arguments) == 0
    rows = Store(load_config(shop).artifacts / "sampled").read("knowledge").to_pylist()
    assert {(row["wave"], row["rule"], row["error"]) for row in rows} == {(0, "sampled", "")}
    assert len({tuple(row["token_ids"]) for row in rows}) == 14
    drafted, accepted = drafted_and_accepted(rows)
    assert accepted[0] > 0.5 * drafted[0] > 0
    tokens = sum(len(row["token_ids"]) for row in rows)
    assert tokens > sum(row["forward_passes"] for row in rows)


def test_another_tokenizer_is_refused_before_any_worker_starts(shop, capsys):
    stranger = shop.parent / "stranger"
    arguments = ["--config", str(shop), "--set", "generation.max_new_tokens=7"]
    assert generate_knowledge.main([*arguments, "--set", f"drafts.model.path={stranger}"]) != 0
    said = capsys.readouterr().err
    assert "tokenizer" in said
    assert str(stranger) in said
    assert str(shop.parent / "target") in said
