"""vLLM's custom proposer, called as its runner calls it: chains of the right pool, in its limits.

vLLM is not installed here. The stand-in does what its model runner does between two steps, as far
as a proposer can see: sampled tokens are appended to a row of one large array, rows move when
others end, and a row in the midst of its prompt has sampled nothing.
"""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.engine.types import DraftTree
from pipeline.errors import ConfigError, DataError
from pipeline.token_identity import key_of_ids
from retrieval_pools import vllm_proposer
from retrieval_pools.document import Document
from retrieval_pools.pool import build_pools
from retrieval_pools.pool_folder import save_pools
from retrieval_pools.vllm_proposer import GROUPS, PoolProposer, best_chain, save_groups

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY, MOST, LONGEST = 200, 6, 128
PROMPT = np.arange(100, 120, dtype=np.int32)  # whose words no text has


class Tokenizer:
    chat_template = None

    def __init__(self, words=VOCABULARY):
        self.words = words

    def get_vocab(self):
        return {f"w{number}": number for number in range(self.words)}


FINGERPRINT = vllm_proposer.tokenizer_fingerprint(Tokenizer())


def text_of(group):
    """What a group says: no word twice, and the same start as all others."""
    rng = np.random.default_rng(group + 1)
    return np.concatenate([[90, 91, 92], rng.permutation(90)[:37]]).astype(np.int32)


@pytest.fixture
def drafts(tmp_path):
    """Pools of two groups."""
    texts = {f"item/{group}": [Document(text_of(group))] * 2 for group in range(2)}
    save_pools(build_pools(texts, depth=24, max_bytes=10**6), tmp_path, FINGERPRINT)
    return tmp_path


@pytest.fixture
def make(drafts, monkeypatch):
    """A proposer as vLLM makes it."""

    def proposer(groups=None, words=VOCABULARY, **settings):
        monkeypatch.setattr(vllm_proposer, "_load_tokenizer", lambda _: Tokenizer(words))
        if groups is not None:
            keys = {key_of_ids(prompt): group for group, prompt in groups.items()}
            save_groups(drafts / GROUPS, keys, FINGERPRINT)
        return PoolProposer(
            SimpleNamespace(
                speculative_config=SimpleNamespace(num_speculative_tokens=MOST),
                model_config=SimpleNamespace(
                    max_model_len=LONGEST, tokenizer="tokenizer", model="model"
                ),
                additional_config={"laser": {"drafts": str(drafts)} | settings},
            )
        )

    return proposer


class Runner:
    """Greedy decoding of known texts, with drafts verified as chains."""

    def __init__(self, proposer, rows=8):
        self.proposer = proposer
        self.token_ids = np.zeros((rows, LONGEST), np.int32)
        self.lengths = np.zeros(rows, np.int32)
        self.answers, self.prompts, self.drafts = [], [], []
        self.steps = 0

    def admit(self, prompt, answer):
        row = len(self.answers)
        self.token_ids[row, : len(prompt)] = prompt
        self.lengths[row] = len(prompt)
        self.prompts.append(len(prompt))
        self.answers.append(answer)
        self.drafts.append([])

    def end(self, row):
        """The last row takes the place of one that has ended, as vLLM condenses its batch."""
        last = len(self.answers) - 1
        self.token_ids[row], self.lengths[row] = self.token_ids[last], self.lengths[last]
        for held in (self.answers, self.prompts, self.drafts):
            held[row] = held[last]
            held.pop()

    def step(self, in_prompt=()):
        """One forward pass; rows of `in_prompt` are not through with their prompts."""
        self.steps += 1
        sampled = []
        for row, (answer, start) in enumerate(zip(self.answers, self.prompts, strict=True)):
            left = answer[self.lengths[row] - start :].tolist()
            same = [a == b for a, b in zip(self.drafts[row], left, strict=False)]
            accepted = same.index(False) if False in same else len(same)
            new = [] if row in in_prompt else left[: accepted + 1]
            self.token_ids[row, self.lengths[row] : self.lengths[row] + len(new)] = new
            self.lengths[row] += len(new)
            sampled.append(new)
        self.drafts = self.proposer.propose(
            sampled, self.lengths, self.token_ids, slot_mappings=None
        )
        assert len(self.drafts) == len(sampled)
        return self.drafts

    def is_done(self, row):
        return self.lengths[row] - self.prompts[row] == len(self.answers[row])


def test_importing_and_making_one_needs_no_vllm():
    code = (
        "import sys, retrieval_pools.vllm_proposer\n"
        "print([name for name in ('vllm', 'transformers', 'ray') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_known_text_is_drafted_in_chains(make):
    runner = Runner(make())
    answer = text_of(0)
    runner.admit(PROMPT, answer)
    while not runner.is_done(0):
        [chain] = runner.step()
        assert all(type(token) is int for token in chain)
        assert len(chain) <= MOST
    assert runner.steps < len(answer) / 3
    assert runner.token_ids[0, len(PROMPT) :][: len(answer)].tolist() == answer.tolist()


def test_a_row_drafts_from_the_pool_of_its_group(make):
    """Both groups begin alike; only the mapping tells them apart."""
    prompts = {f"item/{group}": PROMPT + group for group in range(2)}
    runner = Runner(make(prompts))
    for group in range(2):
        runner.admit(prompts[f"item/{group}"], text_of(group))
    for group, chain in enumerate(runner.step()):
        assert chain == text_of(group)[1 : 1 + len(chain)].tolist()
        assert len(chain) > 2


def test_rows_are_known_again_wherever_they_move(make):
    prompts = {f"item/{group}": PROMPT + group for group in range(2)}
    proposer = make(prompts)
    runner = Runner(proposer)
    runner.admit(PROMPT + 7, np.arange(80, 60, -1, dtype=np.int32))
    runner.admit(prompts["item/0"], text_of(0))
    runner.admit(prompts["item/1"], text_of(1))
    runner.step()
    runner.end(0)  # the row of group 1 is first now
    runner.admit(prompts["item/0"], text_of(0))  # twice the same at once
    runner.step()
    groups = [row.request.group for held in proposer._drafts._rows.values() for row in held]
    assert sorted(groups) == ["", "item/0", "item/0", "item/1"]
    for row, group in enumerate([1, 0, 0]):
        begun = runner.lengths[row] - runner.prompts[row]
        chain = runner.drafts[row]
        assert chain == text_of(group)[begun : begun + len(chain)].tolist()


def test_rows_that_have_ended_are_forgotten(make):
    proposer = make()
    runner = Runner(proposer)
    runner.admit(PROMPT, text_of(0))
    runner.step()
    for _ in range(vllm_proposer._STALE):
        assert proposer.propose([], np.zeros(0, np.int32), runner.token_ids) == []
    assert not proposer._drafts._rows


def test_a_row_in_the_midst_of_its_prompt_gets_no_draft(make):
    runner = Runner(make())
    runner.admit(PROMPT, text_of(0))
    runner.admit(PROMPT, text_of(1))
    first, second = runner.step(in_prompt=[0])
    assert not first
    assert second
    assert runner.step()[0]


def test_no_draft_reaches_beyond_the_longest_row(make):
    proposer = make()
    prompt = np.resize(PROMPT, LONGEST - 5)
    runner = Runner(proposer)
    runner.admit(prompt, text_of(0)[:5])
    seen = []
    while not runner.is_done(0):
        [chain] = runner.step()
        seen.append((int(runner.lengths[0]), len(chain)))
    assert all(length + drafted < LONGEST for length, drafted in seen if drafted)
    assert seen[0][1] > 0


def test_a_long_answer_is_drafted_to_its_end(make, monkeypatch):
    monkeypatch.setattr(vllm_proposer, "_ROOM", 8)
    runner = Runner(make())
    runner.admit(PROMPT, text_of(0))
    while not runner.is_done(0):
        runner.step()
    assert runner.steps < len(text_of(0)) / 3


def test_lists_and_tensors_do_as_well(make):
    import torch

    tokens = np.zeros((1, LONGEST), np.int32)
    tokens[0, : len(PROMPT) + 3] = [*PROMPT, 90, 91, 92]
    lengths, sampled = np.array([len(PROMPT) + 3]), [[90, 91, 92]]
    chain = make().propose(sampled, lengths, tokens)
    assert make().propose(sampled, lengths.tolist(), tokens.tolist()) == chain
    assert make().propose(sampled, torch.tensor(lengths), torch.tensor(tokens)) == chain
    assert make().load_model(None) is None


def tree(tokens, parents, survival):
    i32, i8 = np.int32, np.int8
    size = len(tokens)
    return DraftTree(
        *(np.array(tokens, i32), np.array(parents, i32), np.array(survival, np.float32)),
        *(np.zeros(size, i8), np.zeros(size, i32)),
    )


def test_the_chain_is_the_path_with_the_most_tokens_to_be_expected():
    """0.6 + 0.1 is less than 0.4 + 0.35: the likelier child is not always the better start."""
    assert best_chain(tree([1, 2, 3, 4], [-1, -1, 0, 1], [0.6, 0.4, 0.1, 0.35])) == [2, 4]
    assert best_chain(tree([1, 2, 3], [-1, -1, 0], [0.6, 0.4, 0.1])) == [1, 3]
    assert best_chain(DraftTree.empty()) == []


def test_drafts_for_another_vocabulary_are_refused(make, drafts):
    with pytest.raises(DataError, match="holds token ids of tokenizer"):
        make(words=VOCABULARY + 1)
    make({"item/0": PROMPT})
    save_groups(drafts / GROUPS, {}, "another")
    with pytest.raises(
        DataError, match=r"groups.json is of prompts in tokens of tokenizer another"
    ):
        make()
    (drafts / GROUPS).write_text('{"tokenizer": 1}')
    with pytest.raises(DataError, match=r"groups.json is damaged .* run export_drafts again"):
        make()


@pytest.mark.parametrize(
    "settings",
    [
        *({"drafts": 7}, {"pool": "elsewhere"}),
        *({"floor": floor} for floor in (0.0, 1.0, "0.1", None, [0.1], True, float("nan"))),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, settings):
    with pytest.raises(ConfigError, match=r'must hold "laser": \{"drafts": <folder'):
        make(**settings)


def test_the_docs_name_what_there_is():
    page = (ROOT / "pipeline/docs/vllm.md").read_text()
    speculative, additional = (
        json.loads(text)
        for text in re.findall(r"-config '(\{.*?\})' *\\?\n(?=  --|```)", page, re.S)
    )
    module, _, name = speculative["model"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is PoolProposer
    assert speculative["method"] == "custom_class"
    assert additional[vllm_proposer.SECTION].keys() == {"drafts"}
