"""Language models as recommenders, against plain passes of the language model itself."""

import re
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    FalconMambaConfig,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from pipeline.errors import ModelError
from pipeline.generative.beam_engine import BeamEngine
from pipeline.generative.beams import Draft, Level, root_beams, score_tree
from pipeline.generative.drafters import ExhaustiveDraft, NoDraft, Requests
from pipeline.generative.head_beams import HeadBeams
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.packed_placeholders import pack
from pipeline.generative.placeholder_head import make_placeholder_head
from pipeline.generative.pretrained_stack import backbone_fingerprint, new_recommender
from pipeline.generative.recommender import load_recommender
from pipeline.generative.session import Histories, Session
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative.verification import StrictTopK
from pipeline.generative_config import RecommenderSettings

LEVELS, CODES, ITEMS = 3, 4, 40
LENGTHS = [3, 0, 2]
FAMILIES = ["llama", "qwen2", "gpt_neox", "gemma3", "gpt2"]
WORDS = ["<s>", "what", "next", "?"]
PROMPT = "what next ?"


def settings(folder, prompt=PROMPT):
    return RecommenderSettings(backbone=str(folder), prompt=prompt, history_length=4)


@pytest.fixture(scope="module")
def backbone(tiny_model, tmp_path_factory):
    """Folder of a tiny language model by family, with a tokenizer."""

    def save(family):
        folder = tmp_path_factory.mktemp(family)
        model = tiny_model(family)
        if family == "gemma3":
            model.config.sliding_window = 64
        model.save_pretrained(folder)
        vocabulary = {word: number + 5 for number, word in enumerate(WORDS)}
        words = Tokenizer(WordLevel(vocabulary, unk_token="<s>"))
        words.pre_tokenizer = Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>").save_pretrained(folder)
        return folder

    return save


def batch(codes):
    most = max(LENGTHS)
    tokens = np.full((len(LENGTHS), 1 + most * LEVELS), LEVELS * CODES)
    for user, length in enumerate(LENGTHS):
        own = codes[user * 5 : user * 5 + length] + np.arange(LEVELS) * CODES
        tokens[user, 1 : 1 + length * LEVELS] = own.ravel()
    spans = torch.tensor([1 + length * LEVELS for length in LENGTHS])
    return Histories(torch.from_numpy(tokens), spans)


def ids():
    every = np.stack(np.unravel_index(np.arange(CODES**LEVELS), [CODES] * LEVELS), 1)
    return np.random.default_rng(0).permutation(every)[:ITEMS]


def plain_passes(model, folder):
    """Last hidden states by ordinary passes of the language model as it lies in its folder."""
    lm = AutoModelForCausalLM.from_pretrained(folder).eval()
    words = AutoTokenizer.from_pretrained(folder)
    ids = [words.bos_token_id, *words(PROMPT, add_special_tokens=False)["input_ids"]]
    prompt = lm.get_input_embeddings()(torch.tensor([ids]))

    def run(tokens):
        embedded = torch.cat([prompt, model.tokens(tokens[None])], 1)
        return lm.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state[0, -1]

    return run


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_trees_are_scored_as_by_ordinary_passes(family, backbone):
    folder = backbone(family)
    model, codes = new_recommender(settings(folder), LEVELS, CODES, seed=0), ids()
    histories = batch(codes)
    session = Session(model, histories)
    session.ask_for_placeholders()
    beams = root_beams(len(LENGTHS), LEVELS, model.device)
    first, second = ([0, 2, 3], [0, 0, 0]), ([1, 3, 0, 2], [2, 0, 0, 1])
    draft = Draft([a_level(*first), a_level(*second)])
    scores = score_tree(session, beams, draft)
    session.forget_nodes()  # the history stays, prompt and all
    again = score_tree(session, beams, draft)
    plain = plain_passes(model, folder)
    branches = [[], *[[code] for code in first[0]]]
    branches += [[first[0][parent], code] for code, parent in zip(*second, strict=True)]
    for user, length in enumerate(histories.lengths.tolist()):
        for found in (scores, again):
            got = torch.cat([level[user] for level in found.log_probs])
            for branch, log_probs in zip(branches, got, strict=True):
                own = torch.tensor([code + place * CODES for place, code in enumerate(branch)])
                tokens = torch.cat([histories.tokens[user, :length], own.long()])
                hidden = plain(tokens)
                wanted = torch.log_softmax(model.heads[len(branch)] @ hidden, 0)
                torch.testing.assert_close(log_probs, wanted, atol=2e-4, rtol=1e-3)
        chain = torch.cat([histories.tokens[user, :length], torch.tensor([*model.placeholders])])
        hidden = plain(chain)
        torch.testing.assert_close(session.placeholders[user, -1], hidden, atol=2e-4, rtol=1e-3)


def a_level(codes, parents):
    users = len(LENGTHS)
    own = torch.tensor([codes] * users)
    return Level(own, torch.tensor([parents] * users), own, torch.ones_like(own).bool())


@pytest.mark.parametrize(
    ("family", "prompt"), [("llama", ""), *((family, PROMPT) for family in FAMILIES)]
)
def test_a_saved_recommender_needs_no_language_model(family, prompt, backbone, tmp_path):
    folder = backbone(family)
    model, codes = new_recommender(settings(folder, prompt), LEVELS, CODES, seed=0), ids()
    assert bool(len(model.prompt)) == bool(prompt)
    model.save(tmp_path / "own")
    shutil.rmtree(folder)
    trie = ItemTrie(np.arange(ITEMS), codes, np.ones(ITEMS, bool))
    edges = trie_tensors(trie, CODES, "cpu")
    asked = Requests(batch(codes), torch.zeros(3, 0), torch.arange(3))
    head = make_placeholder_head(LEVELS, CODES, model.width, 0)
    lists = []
    for one in (model, load_recommender(tmp_path / "own")):
        lists += [
            BeamEngine(one, edges, drafter, StrictTopK(), 6).search(asked)
            for drafter in (NoDraft(), ExhaustiveDraft(30))
        ]
        lists.append(HeadBeams(one, head, edges, 6).search(asked))
    for before, after in zip(lists[:3], lists[3:], strict=True):
        assert torch.equal(before.codes, after.codes)
        assert torch.equal(before.scores, after.scores)
    assert torch.equal(lists[0].codes, lists[1].codes)
    assert not (tmp_path / "own" / "model.safetensors").stat().st_size > 4 * 1.1 * sum(
        own.numel() for own in model.parameters()
    )


def test_it_trains_end_to_end_and_the_prompt_stays(backbone):
    model = new_recommender(settings(backbone("llama")), LEVELS, CODES, seed=0).train()
    histories = batch(ids())
    packed = pack(model, histories.tokens[:1], torch.tensor(LENGTHS[:1]), torch.tensor([[0, 2]]))
    states = packed.run(model)
    head = make_placeholder_head(LEVELS, CODES, model.width, 0)
    head.loss(states.ends, states.placeholders, packed.codes).backward()
    without = {name for name, own in model.named_parameters() if own.grad is None}
    assert without == {"heads", "stack.embed_tokens.weight"}  # the LM loss's, and no one's
    assert not model.prompt.requires_grad


def test_codes_begin_at_the_scale_of_words(backbone):
    folder = backbone("llama")
    table: Any = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings()
    words = table.weight.detach()
    model = new_recommender(settings(folder), 4, 500, seed=0)
    tokens = model.tokens.weight.detach()
    torch.testing.assert_close(tokens.std(0), words.std(0), rtol=0.1, atol=0)
    torch.testing.assert_close(tokens.mean(0), words.mean(0), rtol=0, atol=0.1 * float(words.std()))
    assert torch.equal(tokens, new_recommender(settings(folder), 4, 500, seed=0).tokens.weight)


def test_the_files_of_a_backbone_have_a_fingerprint(backbone):
    llama, qwen = (settings(backbone(family)) for family in ("llama", "qwen2"))
    assert backbone_fingerprint(llama) == backbone_fingerprint(settings(backbone("llama")))
    assert backbone_fingerprint(llama) != backbone_fingerprint(qwen)
    assert backbone_fingerprint(RecommenderSettings()) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BloomConfig(vocab_size=61, hidden_size=32, n_layer=1, n_head=4), "ALiBi"),
        (FalconMambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1), "recurrent"),
        (T5Config(vocab_size=61, d_model=16, d_ff=16, num_layers=1, num_heads=2), "loaded"),
    ],
)
def test_what_cannot_attend_along_a_tree_is_refused(config, reason, tmp_path):
    is_t5 = isinstance(config, T5Config)
    model = (
        T5ForConditionalGeneration(config) if is_t5 else AutoModelForCausalLM.from_config(config)
    )
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason) as caught:
        new_recommender(settings(tmp_path, ""), LEVELS, CODES, seed=0)
    assert "recommender.backbone" in str(caught.value)
    assert "language_model.path" not in str(caught.value)


def test_a_history_longer_than_the_model_attends_to_is_refused(backbone):
    asked = settings(backbone("mistral")).model_copy(update={"history_length": 10})
    with pytest.raises(ModelError, match=r"38 tokens, but .* attends to 12 at most"):
        new_recommender(asked, LEVELS, CODES, seed=0)


def test_a_folder_without_a_model_or_a_tokenizer_is_refused(backbone, tmp_path):
    with pytest.raises(ModelError, match=re.escape("recommender.backbone")):
        new_recommender(settings(tmp_path), LEVELS, CODES, seed=0)
    folder = backbone("llama")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match=re.escape("recommender.backbone")):
        new_recommender(settings(folder), LEVELS, CODES, seed=0)


def test_a_model_that_ignores_the_mask_is_refused(backbone, monkeypatch):
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **_: None)
    with pytest.raises(ModelError, match="something else than on each branch alone"):
        new_recommender(settings(backbone("llama")), LEVELS, CODES, seed=0)


def test_a_prompt_needs_a_backbone():
    with pytest.raises(ValidationError, match="set backbone"):
        RecommenderSettings(prompt=PROMPT)
