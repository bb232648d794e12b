"""Models as people have them: a name of the hub in the cache, shards, no chat template, no padding.

And what is said where one cannot be had.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub import constants, errors
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from features.encoder import TextEncoder, require_weights
from jobs import writers
from pipeline.config_file import load_config
from pipeline.decoding_config import DraftSettings, LanguageModelSettings
from pipeline.errors import ModelError
from pipeline.hub import commit_of, require_reachable_weights, small_files, unreachable
from pipeline.language_model import (
    check_language_model,
    load_model,
    load_tokenizer,
    require_model_files,
    stop_ids_of,
)
from pipeline.model_identity import model_fingerprint, pinned

ROOT = Path(__file__).resolve().parents[2]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCAB = {token: number for number, token in enumerate(["<s>", "</s>", *LETTERS])}
REVISION = "0123456789012345678901234567890123456789"


def save_tokenizer(folder, **specials):
    """One token for each byte; without a chat template, and without padding."""
    tokenizer = Tokenizer(models.BPE(VOCAB, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = {"bos_token": "<s>", "eos_token": "</s>"} | specials
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def save_llm(folder, shard="1GB"):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=len(VOCAB), **sizes, **heads, bos_token_id=0, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=shard)
    save_tokenizer(folder)
    return folder


def save_encoder(folder, **specials):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = BertConfig(
        vocab_size=len(VOCAB), **sizes, num_attention_heads=2, max_position_embeddings=64
    )
    BertModel(config).save_pretrained(folder)
    save_tokenizer(folder, **specials)
    return folder


def settings_of(folder):
    return LanguageModelSettings(path=str(folder), device="cpu")


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return save_llm(tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = save_llm(tmp_path_factory.mktemp("shards"), shard="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def test_shards_are_one_model(llm, shards):
    require_model_files(settings_of(shards), "language_model")
    whole, parts = (load_model(settings_of(folder)) for folder in (llm, shards))
    assert whole.state_dict().keys() == parts.state_dict().keys()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, parts.state_dict()[name])


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_weights_that_are_not_all_there_are_refused_before_any_work(shards, tmp_path, damage):
    folder = shutil.copytree(shards, tmp_path / "model")
    shard, said = (
        sorted(folder.glob("*.safetensors"))[1],
        "lacks 1 files of its weights, e.g. model-",
    )
    shard.unlink()
    if damage == "damaged":
        (folder / "model.safetensors.index.json").write_text("[]")
        said = "index.json is damaged"
    with pytest.raises(ModelError, match=said):
        require_model_files(settings_of(folder), "language_model")


def test_a_folder_without_a_tokenizer_is_refused_before_any_work(llm, tmp_path):
    folder = shutil.copytree(llm, tmp_path / "model")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"^drafts\.model\.path: .*holds no tokenizer"):
        require_model_files(settings_of(folder), "drafts.model")


@pytest.mark.parametrize(
    "left", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokens.py"]
)
def test_what_lies_beside_a_tokenizer_is_none(llm, tmp_path, left):
    folder = shutil.copytree(llm, tmp_path / "model")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    (folder / left).write_text("{}")
    with pytest.raises(ModelError, match="holds no tokenizer"):
        require_model_files(settings_of(folder), "language_model")


@pytest.mark.parametrize("left", ["training_args.bin", "optimizer.bin", "scheduler.bin"])
def test_what_a_trainer_leaves_is_no_model(llm, tmp_path, left):
    folder = shutil.copytree(llm, tmp_path / "model")
    (folder / "model.safetensors").rename(folder / left)
    with pytest.raises(ModelError, match="holds no weights"):
        require_model_files(settings_of(folder), "language_model")
    with pytest.raises(ModelError, match="holds no weights"):
        require_weights(folder)


def test_a_base_model_without_a_chat_template_gets_the_bare_prompt(llm):
    """It has no token to pad with either, which nothing here needs."""
    tokenizer = load_tokenizer(settings_of(llm))
    assert not tokenizer.has_turns
    short, long = tokenizer.encode_all(["Ab", "Ab cde"])
    assert tokenizer.decode(short) == "Ab"
    assert len(long) == 6
    assert stop_ids_of(load_model(settings_of(llm))) == {1}


def test_an_encoder_without_a_padding_token_encodes_texts_of_any_lengths(tmp_path):
    texts = ["a", "a long text", "", "another"]
    padded = TextEncoder(str(save_encoder(tmp_path / "padded", pad_token="</s>")), "cpu", 32)
    bare = TextEncoder(str(save_encoder(tmp_path / "bare")), "cpu", 32)
    assert np.abs(bare.encode(texts) - padded.encode(texts)).max() < 1e-6
    alone = np.concatenate([bare.encode([text]) for text in texts])
    assert np.abs(bare.encode(texts) - alone).max() < 1e-5
    assert bare.is_truncated(["a" * 40, "a"]).tolist() == [True, False]


def test_an_encoder_without_any_token_to_fill_up_with_is_refused(tmp_path):
    folder = save_encoder(tmp_path / "bare", eos_token=None)
    with pytest.raises(ModelError, match=r"bare has no token to fill up texts with; set pad_token"):
        TextEncoder(str(folder), "cpu", 32)


LOOK = """
import json, sys
from features.encoder import TextEncoder
from pipeline.decoding_config import LanguageModelSettings
from pipeline.errors import ModelError
from pipeline.language_model import (
    load_model, load_tokenizer, require_model_files,
)
from pipeline.model_identity import model_fingerprint
found = {}
for name in ("tiny/llm", "tiny/shards", "tiny/part", "tiny/configured", "tiny/none"):
    settings = LanguageModelSettings(path=name, device="cpu")
    try:
        require_model_files(settings, "language_model")
        weights = sum(one.numel() for one in load_model(settings).parameters())
        found[name] = [weights, load_tokenizer(settings).encode("Ab").tolist()]
    except ModelError as error:
        found[name] = str(error)
found["identity"] = model_fingerprint(LanguageModelSettings(path="tiny/llm"))
try:
    model_fingerprint(LanguageModelSettings(path="tiny/none"))
except ModelError as error:
    found["no identity"] = str(error)
found["tiny/encoder"] = TextEncoder("tiny/encoder", "cpu", 32).encode(["a"]).shape
try:
    TextEncoder("tiny/none", "cpu", 32)
except ModelError as error:
    found["no encoder"] = str(error)
print(json.dumps(found))
"""


def test_names_of_the_hub_that_are_in_the_cache_need_no_network(llm, shards, tmp_path):
    def cached(name, folder):
        place = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(REVISION)
        return shutil.copytree(folder, place / "snapshots" / REVISION)

    cached("tiny/llm", llm)
    cached("tiny/shards", shards)
    max(cached("tiny/part", shards).glob("*.safetensors")).unlink()  # as after a broken download
    (cached("tiny/configured", llm) / "model.safetensors").unlink()  # as after a look at it only
    cached("tiny/encoder", save_encoder(tmp_path / "encoder"))
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=ROOT,
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tiny/llm"] == found["tiny/shards"]
    assert found["tiny/llm"][1] == [VOCAB["A"], VOCAB["b"]]
    assert found["tiny/encoder"] == [1, 16]
    assert len(found["identity"]) == 16
    for name, section in {
        "tiny/part": "language_model.path 'tiny/part'",
        "tiny/configured": "language_model.path 'tiny/configured'",
        "tiny/none": "language_model.path 'tiny/none'",
        "no identity": "language_model.path 'tiny/none'",
        "no encoder": "encoder.path 'tiny/none'",
    }.items():
        assert found[name].startswith(f"{section} is no folder, and not in the hub's cache")
        assert "HF_HUB_OFFLINE" in found[name]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub cache of our own, and no hub; fill it with commits of tiny/llm, as the hub's client."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch_from(tmp_path / "hub", {}))
    place = tmp_path / "hub" / "models--tiny--llm"

    def commit(revision, folder, but=()):
        small_files.cache_clear()  # a process of its own
        (place / "refs").mkdir(parents=True, exist_ok=True)
        (place / "blobs").mkdir(exist_ok=True)
        (place / "refs" / "main").write_text(revision)
        snapshot = place / "snapshots" / revision
        snapshot.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            is_large = file.suffix == ".safetensors"
            algorithm = hashlib.sha256 if is_large else hashlib.sha1
            blob = place / "blobs" / algorithm(file.read_bytes()).hexdigest()
            shutil.copy(file, blob)
            if file.name not in but and not (snapshot / file.name).exists():
                (snapshot / file.name).symlink_to(blob)
        return snapshot

    yield commit
    small_files.cache_clear()


def fetch_from(hub, upstream):
    """What snapshot_download does, from `upstream`: folders by commit, the last one is `main`."""

    def fetch(name, revision=None, allow_patterns=(), ignore_patterns=()):
        revision = revision or list(upstream)[-1]
        folder = hub / f"models--{name.replace('/', '--')}" / "snapshots" / revision
        if revision not in upstream:
            if not folder.is_dir():
                raise errors.LocalEntryNotFoundError("neither here nor there")
            return str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for file in upstream[revision].iterdir():
            if any(fnmatch(file.name, one) for one in allow_patterns):
                shutil.copy(file, folder)
        return str(folder)

    return fetch


NAMED = LanguageModelSettings(path="tiny/llm", device="cpu")


@pytest.mark.parametrize("broken", [b"\xff\xfe", b"x" * 5000, b"..", b"a\0b", b""])
def test_a_broken_cache_has_no_commit(cache, tmp_path, llm, broken):
    cache(REVISION, llm)
    (tmp_path / "hub" / "models--tiny--llm" / "refs" / "main").write_bytes(broken)
    assert commit_of("tiny/llm") == ""


def test_a_hub_name_is_known_by_its_files_as_a_folder_is(cache, llm, tmp_path):
    """So a README that is edited upstream makes no text stale."""
    cache(REVISION, llm)
    first = model_fingerprint(NAMED)
    assert first == model_fingerprint(settings_of(llm))
    edited = shutil.copytree(llm, tmp_path / "edited")
    (edited / "README.md").write_text("# Edited")
    cache(REVISION[::-1], edited)
    assert commit_of("tiny/llm") == REVISION[::-1]
    assert model_fingerprint(NAMED) == first
    assert model_fingerprint(NAMED.model_copy(update={"dtype": "bfloat16"})) != first


def test_what_else_was_fetched_beside_a_model_does_not_count(cache, llm, tmp_path):
    cache(REVISION, llm)
    first = model_fingerprint(NAMED)
    more = shutil.copytree(llm, tmp_path / "more")
    for name in ("pytorch_model.bin", "model.Q4.gguf", "consolidated.safetensors"):
        (more / name).write_bytes(b"as of others")
    cache(REVISION, more)
    assert model_fingerprint(NAMED) == first


@pytest.mark.parametrize("changed", ["weights", "configuration"])
def test_a_model_that_was_updated_on_the_hub_is_another_model(cache, llm, tmp_path, changed):
    cache(REVISION, llm)
    first = model_fingerprint(NAMED)
    other = shutil.copytree(llm, tmp_path / "other")
    if changed == "weights":
        weights = other / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    else:
        (other / "generation_config.json").write_text('{"eos_token_id": 2}')
    cache(REVISION[::-1], other)
    assert model_fingerprint(NAMED) != first
    cache(REVISION, llm)  # and back
    assert model_fingerprint(NAMED) == first


def test_gigabytes_are_not_read_to_tell_a_model(cache, llm, monkeypatch):
    snapshot = cache(REVISION, llm)
    (weights,) = snapshot.glob("*.safetensors")
    first = model_fingerprint(NAMED)
    weights.resolve().chmod(0)
    monkeypatch.setattr("hashlib.file_digest", no_large_file(hashlib.file_digest))
    assert model_fingerprint(NAMED) == first


def no_large_file(digest):
    def small_only(stream, algorithm):
        assert not stream.name.endswith("safetensors")
        return digest(stream, algorithm)

    return small_only


def test_what_is_loaded_is_the_commit_that_was_told(cache, llm, tmp_path):
    """Though another program moves the cache's `main` meanwhile, or a worker starts elsewhere."""
    cache(REVISION, llm)
    (fixed, first) = pinned(NAMED), model_fingerprint(NAMED)
    assert fixed.path == f"tiny/llm@{REVISION}"
    assert pinned(fixed) == fixed
    other = tmp_path / "other"
    torch.manual_seed(1)
    model = load_model(settings_of(llm))
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(other)
    save_tokenizer(other, pad_token="</s>")
    cache(REVISION[::-1], other)
    assert model_fingerprint(NAMED) != first
    assert load_model(NAMED).lm_head.weight.abs().sum() == 0
    assert load_tokenizer(NAMED).tokenizer.pad_token == "</s>"
    assert model_fingerprint(fixed) == first
    assert load_model(fixed).lm_head.weight.abs().sum() > 0
    assert load_tokenizer(fixed).tokenizer.pad_token is None
    assert pinned(settings_of(llm)) == settings_of(llm)


def test_a_process_stays_with_the_commit_it_met_first(cache, llm, tmp_path):
    cache(REVISION, llm)
    first = model_fingerprint(NAMED)
    main = tmp_path / "hub" / "models--tiny--llm" / "refs" / "main"
    (main.parents[1] / "snapshots" / REVISION[::-1]).mkdir()
    main.write_text(REVISION[::-1])  # by another program
    assert load_model(NAMED).lm_head.weight.abs().sum() > 0
    assert model_fingerprint(NAMED) == first


def test_actors_get_models_with_their_commits(cache, llm):
    cache(REVISION, llm)
    drafts = DraftSettings(source="model", model=NAMED)
    demo = load_config(ROOT / "conf" / "demo.yaml")
    config = demo.model_copy(update={"language_model": NAMED, "drafts": drafts})
    sent = writers._pinned(config)
    assert sent.language_model.path == sent.drafts.model.path == f"tiny/llm@{REVISION}"
    assert config.language_model.path == "tiny/llm"


def test_weights_that_are_not_here_are_told_by_the_hub_and_fetched_when_loaded(
    cache, llm, tmp_path, monkeypatch
):
    """A dry run fetches no gigabytes, and the run after it is of the same model."""
    snapshot = cache(REVISION, llm, but=["model.safetensors"])
    content = hashlib.sha256((llm / "model.safetensors").read_bytes()).hexdigest()
    tree = [
        SimpleNamespace(path="onnx"),
        SimpleNamespace(path="config.json", lfs=None),
        SimpleNamespace(path="model.safetensors", lfs=SimpleNamespace(sha256=content)),
    ]
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_tree", lambda *_, **__: tree)
    hub = fetch_from(tmp_path / "hub", {REVISION: llm})
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    first = model_fingerprint(NAMED)
    assert not (snapshot / "model.safetensors").exists()
    assert first == model_fingerprint(settings_of(llm))
    assert load_model(NAMED).lm_head.weight.abs().sum() > 0
    assert (snapshot / "model.safetensors").exists()
    assert model_fingerprint(NAMED) == first


def test_a_model_of_which_nothing_is_here_is_the_latest_of_the_hub(
    cache, llm, tmp_path, monkeypatch
):
    upstream = {REVISION: tmp_path / "none", REVISION[::-1]: llm}
    hub = fetch_from(tmp_path / "hub", upstream)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    assert small_files("tiny/llm", "language_model").name == REVISION[::-1]
    assert load_model(NAMED).lm_head.weight.abs().sum() > 0
    assert model_fingerprint(NAMED) == model_fingerprint(settings_of(llm))


def test_weights_that_cannot_be_had_are_said_to_lack(cache, shards, monkeypatch):
    lost = max(shards.glob("*.safetensors")).name
    cache(REVISION, shards, but=[lost])
    with pytest.raises(ModelError, match=r"'tiny/llm': .* lacks weights; run `hf download tiny/ll"):
        load_model(NAMED)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def fail(*_, **__):
        raise errors.OfflineModeIsEnabled

    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_tree", fail)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE keeps from asking"):
        model_fingerprint(NAMED)


def test_a_commit_of_which_nothing_is_here_is_none(cache, llm, tmp_path):
    cache(REVISION, llm)
    shutil.rmtree(tmp_path / "hub" / "models--tiny--llm" / "snapshots")
    assert commit_of("tiny/llm") == ""
    assert commit_of(f"tiny/llm@{REVISION}") == REVISION
    for name in ("tiny/none", "none", "models/of/mine", "./mine", "owner name"):
        assert commit_of(name) == ""


def test_a_cached_model_without_all_of_its_shards_has_to_be_fetched(cache, shards, monkeypatch):
    asked = []

    def ask(*_, **__):
        asked.append(1)
        raise ConnectionError

    snapshot = cache(REVISION, shards)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", ask)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    require_reachable_weights("tiny/llm", "language_model")
    assert asked == []
    max(snapshot.glob("*.safetensors")).unlink()
    with pytest.raises(ModelError, match="the hub does not answer"):
        require_reachable_weights("tiny/llm", "language_model")


def raised_by_transformers(cause):
    """As it wraps what the hub says."""
    try:
        try:
            raise cause
        except BaseException as error:
            raise OSError("pages of advice") from error
    except OSError as error:
        return error


@pytest.mark.parametrize(
    ("path", "cause", "said"),
    [
        ("owner/name", errors.GatedRepoError, "is gated: accept its terms at https://.*HF_TOKEN"),
        (
            "owner/nam",
            errors.RepositoryNotFoundError,
            "the hub has no such model, or it is private",
        ),
        (
            "owner/name",
            errors.LocalEntryNotFoundError,
            "the hub does not answer.*hf download owner",
        ),
        ("owner/name", errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE keeps from asking"),
        ("owner name", errors.HFValidationError, "no name of the hub, which reads owner/name"),
        (
            "models/of/mine",
            errors.HFValidationError,
            "is no folder of this machine; correct the path",
        ),
        ("./mine", errors.HFValidationError, "is no folder of this machine; correct the path"),
        ("owner/name", KeyError, "cannot be loaded: pages of advice"),
    ],
)
def test_a_model_that_cannot_be_had_says_what_to_do(path, cause, said, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    error = raised_by_transformers(cause.__new__(cause))
    for section in ("language_model", "encoder"):
        with pytest.raises(ModelError, match=rf"^{section}\.path '{path}' .*{said}"):
            raise unreachable(path, section, error)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ModelError, match=said):
        check_language_model(settings_of(path))
