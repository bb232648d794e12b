"""What a run needs is looked for before its first stage."""

import json

import pytest
from transformers import LlamaConfig

from jobs.preflight import check_inputs
from pipeline.config import RunConfig
from pipeline.errors import DataError, ModelError
from pipeline.schemas import KNOWLEDGE
from pipeline.store import Store


@pytest.fixture
def tree(tmp_path):
    """A config all of whose files are there, none with any content that could be loaded."""
    model, encoder = tmp_path / "model", tmp_path / "encoder"
    LlamaConfig().save_pretrained(model)
    (model / "model.safetensors").touch()
    (model / "tokenizer.json").touch()
    encoder.mkdir()
    (encoder / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    (encoder / "model.safetensors").touch()
    for suffix in ("inter", "user", "item"):
        (tmp_path / f"ml-100k.{suffix}").touch()
    return {
        "run": "r",
        "artifacts": str(tmp_path / "artifacts"),
        "catalog": {"source": "movielens", "path": str(tmp_path)},
        "language_model": {"path": str(model)},
        "encoder": {"path": str(encoder), "max_tokens": 64},
    }


def check(tree, **sections):
    for name, changes in sections.items():
        is_section = isinstance(changes, dict)
        tree[name] = tree.get(name, {}) | changes if is_section else changes
    check_inputs(RunConfig.model_validate(tree))


def test_files_that_are_there_are_enough(tree, tmp_path):
    (tmp_path / "model" / "any.gguf").touch()
    draft = {"source": "model", "model": {"path": str(tmp_path / "model"), "gguf_file": "any.gguf"}}
    Store(tmp_path / "artifacts" / "monday").plan("knowledge", {}).write(KNOWLEDGE.empty_table())
    check(tree, drafts=draft, refresh={"previous": "monday"})


@pytest.mark.parametrize(
    ("section", "changes", "error", "complaint"),
    [
        ("catalog", {"path": "nowhere"}, DataError, "nowhere is no folder"),
        ("refresh", {"previous": "monday"}, DataError, "is monday, .* there are: none"),
        ("plain_run", "strict", DataError, "strict has no finished knowledge"),
        ("language_model", {"gguf_file": "no.gguf"}, ModelError, r"model/no\.gguf does not exist"),
        ("encoder", {"max_tokens": 65}, ModelError, "reads 64 tokens; lower it"),
    ],
)
def test_what_is_missing_is_named_with_its_setting(tree, section, changes, error, complaint):
    with pytest.raises(error, match=complaint):
        check(tree, **{section: changes})


@pytest.mark.parametrize("name", ["model", "encoder"])
def test_a_folder_without_weights_is_no_model(tree, tmp_path, name):
    (tmp_path / name / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=f"{name} holds no weights"):
        check(tree)


def test_a_missing_draft_model_is_blamed_on_its_own_section(tree, tmp_path):
    (tmp_path / "empty").mkdir()
    draft = {"source": "model", "model": {"path": str(tmp_path / "empty")}}
    with pytest.raises(ModelError, match=r"^drafts\.model\.path: .*empty holds no weights"):
        check(tree, drafts=draft)


def test_a_path_that_is_neither_folder_nor_hub_name_is_refused(tree, tmp_path):
    missing = {"path": str(tmp_path / "nowhere")}
    with pytest.raises(ModelError, match=r"encoder\.path .*nowhere"):
        check(dict(tree), encoder=missing)
    with pytest.raises(ModelError, match=r"language_model\.path .*nowhere"):
        check(tree, language_model=missing)
