"""Strict decoding is greedy `generate`, token by token, whatever is drafted and however rows come.

That stop strings end rows where transformers ends them is tested with the stops.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import EngineSettings
from pipeline.engine.budget import FREE
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Strict
from pipeline.engine.stops import Stops
from pipeline.engine.types import ROOT, DraftTree, NoDraft, Request
from retrieval_pools.document import Document
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.pool import build_pools

VOCAB = 61
STOP = 2
NEW = 20
PENALTY = 1.2


@dataclass(frozen=True)
class Options:
    """What the oracle and the engine are both told."""

    penalty: float = PENALTY
    ngram: int = 0
    least: int = 0
    stop_ids: tuple[int, ...] = (STOP,)
    strings: tuple[str, ...] = ()

    @property
    def processors(self):
        return Processors(frozenset(self.stop_ids), self.penalty, self.ngram, self.least)

    @property
    def stops(self):
        return Stops(self.stop_ids, self.strings, letters)


def letters(ids):
    """A text in which every token is one of eight letters."""
    return "".join("abcdefgh"[token % 8] for token in ids)


def engine_of(model, options=Options(), rows=4, length=128, chunk=24, nodes=12):
    sizes = EngineSettings(
        batch_rows=rows, max_length=length, prefill_tokens=chunk, draft_nodes=nodes
    )
    return Engine(model, sizes, options.stops, options.processors, costs=FREE)


def make_prompts(count, seed=1):
    """Ragged; every other one begins with what they share, some are longer than a chunk."""
    random = np.random.default_rng(seed)
    shared = random.integers(3, VOCAB, 30)
    prompts = []
    for index in range(count):
        own = random.integers(3, VOCAB, [1, 4, 17, 45][index // 2 % 4])
        prompts.append(np.concatenate([shared, own]) if index % 2 else own)
    return [prompt.astype(np.int32) for prompt in prompts]


def greedy(model, prompts, options=Options(), new=NEW):
    """The oracle: transformers' own greedy search over prompts of one length, without padding."""
    by_length = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_length[len(prompt)].append(index)
    texts = {}
    for length, members in by_length.items():
        ids = torch.from_numpy(np.stack([prompts[index] for index in members]).astype(np.int64))
        with torch.inference_mode():
            outputs = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=options.least or None,
                do_sample=False,
                repetition_penalty=options.penalty,
                no_repeat_ngram_size=options.ngram,
                eos_token_id=list(options.stop_ids),
                pad_token_id=STOP,
            )[:, length:].numpy()
        for index, output in zip(members, outputs, strict=True):
            ends = np.flatnonzero(np.isin(output, options.stop_ids))
            texts[index] = output[: ends[0]] if len(ends) else output
    return [texts[index] for index in range(len(prompts))]


def requests_for(prompts, new=NEW):
    return [Request(str(index), prompt, new) for index, prompt in enumerate(prompts)]


def texts_of(generations, count):
    """Output ids in the order of the requests, each of which must have come once."""
    generations = list(generations)
    by_key = {generation.key: generation for generation in generations}
    assert len(by_key) == len(generations) == count
    return [by_key[str(index)].token_ids.tolist() for index in range(count)]


def lists(texts):
    return [text.tolist() for text in texts]


@pytest.fixture
def drafter(noise_drafter, oracle_drafter):
    """By name; the oracle and the pool are told the truth first."""

    def build(name, truth):
        return {
            "none": lambda: NoDraft(),
            "noise": lambda: noise_drafter(),
            "oracle": lambda: oracle_drafter({str(i): ids for i, ids in enumerate(truth)}),
            "pool": lambda: PoolDrafter(
                build_pools({"": [Document(text) for text in truth]}, 12, 10**6), 12
            ),
        }[name]()

    return build


@pytest.fixture(scope="module")
def reference(tiny_model):
    """A model that no engine takes over."""
    return tiny_model("llama")


@pytest.fixture(scope="module")
def sixteen(reference):
    """Prompts and what they go on with; some stop, some run to their limit."""
    prompts = make_prompts(16)
    truth = greedy(reference, prompts)
    lengths = [len(text) for text in truth]
    assert min(lengths) < NEW == max(lengths)
    return prompts, truth


@pytest.mark.parametrize(
    ("rows", "drafts"),
    [(1, "noise"), (1, "pool")]
    + [(rows, drafts) for rows in (4, 16) for drafts in ("none", "noise", "oracle", "pool")],
)
def test_any_batch_size_and_any_drafts(rows, drafts, sixteen, tiny_model, drafter):
    prompts, truth = sixteen
    engine = engine_of(tiny_model("llama"), rows=rows)
    engine.use(drafter(drafts, truth), Strict(), FREE)
    results = {done.key: done for done in engine.generate(requests_for(prompts))}
    assert texts_of(results.values(), 16) == lists(truth)
    for index, expected in enumerate(truth):
        reason = "length" if len(expected) == NEW else "stop"
        assert results[str(index)].finish_reason == reason
    if drafts in ("oracle", "pool"):
        passes = sum(done.statistics.forward_passes for done in results.values())
        tokens = sum(map(len, truth))
        assert tokens > (2.5 if drafts == "oracle" else 1.5) * passes  # drafts are really used


@pytest.mark.parametrize("family", ["mistral", "gemma3", "gpt_neox"])
def test_other_families(family, tiny_model, drafter):
    """Mistral and Gemma attend to the last 12 tokens only; prompts are longer than that."""
    prompts = make_prompts(8, seed=2)
    truth = greedy(tiny_model(family), prompts)
    engine = engine_of(tiny_model(family))
    for drafts in ("noise", "oracle"):
        engine.use(drafter(drafts, truth), Strict(), FREE)
        assert texts_of(engine.generate(requests_for(prompts)), 8) == lists(truth)


OPTIONS = {
    "no penalty": Options(1.0),
    "strong penalty": Options(2.0),
    "bigrams once": Options(1.0, ngram=2),
    "trigrams once": Options(1.0, ngram=3),
    "at least 6": Options(least=6, stop_ids=(2, 11, 23, 40)),
    "several stops": Options(stop_ids=(2, 11, 23, 40)),
    "all together": Options(1.1, ngram=2, least=3, stop_ids=(2, 30)),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_is_that_of_generate(options, sixteen, reference, tiny_model, drafter):
    prompts, default = sixteen[0][:9], sixteen[1][:9]
    truth = greedy(reference, prompts, options)
    assert lists(truth) != lists(default)  # the option matters here
    engine = engine_of(tiny_model("llama"), options)
    for drafts in ("noise", "oracle"):
        engine.use(drafter(drafts, truth), Strict(), FREE)
        assert texts_of(engine.generate(requests_for(prompts)), 9) == lists(truth)


@pytest.mark.parametrize("new", [1, 2, 3, 5])
def test_length_limit_inside_a_draft(new, sixteen, tiny_model, oracle_drafter):
    prompts, truth = sixteen
    engine = engine_of(tiny_model("llama"))
    engine.use(oracle_drafter({str(i): ids for i, ids in enumerate(truth)}), Strict(), FREE)
    expected = [text[:new].tolist() for text in truth]
    assert texts_of(engine.generate(requests_for(prompts, new)), 16) == expected


@pytest.mark.parametrize("drafts", ["noise", "oracle"])
def test_rows_join_and_leave_while_others_are_in_flight(drafts, sixteen, tiny_model, drafter):
    """Three batches of requests, each submitted while rows of the one before are decoded."""
    prompts, truth = sixteen
    limits = [1 + 7 * index % NEW for index in range(16)]
    requests = [Request(str(i), prompts[i], limits[i]) for i in range(16)]
    engine = engine_of(tiny_model("llama"))
    engine.use(drafter(drafts, truth), Strict(), FREE)
    done = []
    for generation in engine.generate(requests[0::3]):
        done.append(generation)
        if len(done) in (1, 2):
            engine.submit(requests[len(done) :: 3])
    expected = [text[:limit].tolist() for text, limit in zip(truth, limits, strict=True)]
    assert texts_of(done, 16) == expected


@pytest.mark.parametrize("drafts", ["noise", "oracle"])
@pytest.mark.parametrize("length", [48, 512])
def test_prompt_and_drafts_end_exactly_at_the_limit(length, drafts, reference, tiny_model, drafter):
    """Of a slot of the cache, and of the model: drafts must not run over into the next row."""
    random = np.random.default_rng(4)
    prompts = [random.integers(3, VOCAB, length - NEW).astype(np.int32) for _ in range(3)]
    options = Options(least=NEW)
    truth = greedy(reference, prompts, options)
    engine = engine_of(tiny_model("llama"), options, rows=2, length=length, chunk=256, nodes=40)
    engine.use(drafter(drafts, truth), Strict(), FREE)
    assert texts_of(engine.generate(requests_for(prompts)), 3) == lists(truth)


class Liar:
    """Mixes truth with nonsense: stops, edges of the vocabulary, twins; all of it for certain."""

    def __init__(self, truth, stop_ids, seed):
        self._truth = truth
        self._random = np.random.default_rng(seed)
        self._lures = [*stop_ids, 0, VOCAB - 1]

    def propose(self, rows, max_nodes):
        return [self._tree(row, max_nodes) for row in rows]

    def observe(self, trees, outcomes):
        for tree, outcome in zip(trees, outcomes, strict=True):
            assert len(tree) == len(outcome)
            assert (outcome[np.isin(tree.parents, np.flatnonzero(outcome != 1))] == -1).all()

    def _tree(self, row, max_nodes):
        done = len(row.tokens) - len(row.request.prompt_ids)
        coming = [*self._truth[int(row.request.key)][done:], *self._lures]
        tokens, parents, depths = [], [], {ROOT: 0}
        for node in range(int(self._random.integers(0, max_nodes + 1))):
            parent = int(self._random.integers(max(node - 3, 0) - 1, node))
            depths[node] = depths[parent] + 1
            kind = self._random.integers(4)
            if kind == 0:
                token = self._random.choice(self._lures)
            elif kind == 1 and tokens:
                token, parent = tokens[-1], parents[-1]  # the same again, as a sibling
                depths[node] = depths[node - 1]
            else:
                token = coming[min(depths[node], len(coming)) - 1]
            tokens.append(int(token))
            parents.append(parent)
        size = len(tokens)
        return DraftTree(
            np.array(tokens, np.int32),
            np.array(parents, np.int32),
            np.ones(size, np.float32),
            np.zeros(size, np.int8),
            np.zeros(size, np.int32),
        )


class Breaker:
    """The truth as a chain, one array of which breaks the law of trees from some node on."""

    def __init__(self, truth, name, break_at):
        self._truth = truth
        self._name = name
        self._break_at = break_at
        self.seen = set()  # sizes of the trees that were verified

    def propose(self, rows, max_nodes):
        return [self._tree(row, max_nodes) for row in rows]

    def observe(self, trees, outcomes):
        self.seen |= set(map(len, trees))

    def _tree(self, row, max_nodes):
        done = len(row.tokens) - len(row.request.prompt_ids)
        tokens = self._truth[int(row.request.key)][done : done + min(max_nodes, 5)]
        size = len(tokens)
        arrays = {
            "token_ids": tokens.astype(np.int32),
            "parents": np.arange(-1, size - 1, dtype=np.int32),
            "survival": np.ones(size, np.float32),
            "sources": np.zeros(size, np.int8),
            "buckets": np.zeros(size, np.int32),
        }
        arrays[self._name] = self._break_at(arrays[self._name])
        return DraftTree(**arrays)


def _from_third(value):
    """Nodes 0 and 1 stay as they are."""
    return lambda array: np.concatenate([array[:2], np.full(len(array[2:]), value, array.dtype)])


# What is wrong -> the array, what becomes of it, and how many nodes are left.
FLAWS = {
    "a token below the vocabulary": ("token_ids", _from_third(-1), 2),
    "a token above the vocabulary": ("token_ids", _from_third(VOCAB), 2),
    "tokens between two": ("token_ids", lambda ids: ids + 0.5, 0),
    "a parent below the root": ("parents", _from_third(-5), 2),
    "a parent ahead": ("parents", _from_third(4), 2),
    "every node its own parent": ("parents", lambda parents: parents + 1, 0),
    "a parent missing": ("parents", lambda parents: parents[:-1], 0),
    "an unknown source": ("sources", _from_third(5), 2),
    "a source below all": ("sources", _from_third(-1), 2),
    "sources in floating point": ("sources", lambda sources: sources.astype(np.float32), 0),
    "a claim missing": ("survival", lambda survival: survival[:-1], 0),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_malformed_tree_is_cut_before_the_node_that_breaks_it(flaw, reference, tiny_model):
    name, break_at, most = FLAWS[flaw]
    prompts = make_prompts(4)
    truth = greedy(reference, prompts)
    engine = engine_of(tiny_model("llama"))
    breaker = Breaker(truth, name, break_at)
    engine.use(breaker, Strict(), FREE)
    assert texts_of(engine.generate(requests_for(prompts)), 4) == lists(truth)
    assert max(breaker.seen) == most


@settings(max_examples=25)
@given(
    options=st.builds(
        Options,
        penalty=st.sampled_from([1.0, 1.1, 1.5]),
        ngram=st.integers(0, 3),
        least=st.integers(0, 5),
        stop_ids=st.sampled_from([(2,), (2, 11, 23, 40)]),
        strings=st.sampled_from([(), ("ab",), ("ed", "gga", "bc")]),
    ),
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 5),
    chunk=st.sampled_from([16, 40]),
    count=st.integers(1, 6),
)
def test_any_drafter_changes_speed_only(
    tiny_model, noise_drafter, options, seed, rows, chunk, count
):
    """Property: neither lies nor noise nor sizes change a row's text or why it ends."""
    new = 8
    prompts = make_prompts(count, seed=seed)
    engine = engine_of(tiny_model("mistral"), options, rows, length=96, chunk=chunk, nodes=9)
    outcomes, truth = [], []
    for drafts in ("none", "liar", "noise"):
        liar = Liar(truth, options.stop_ids, seed)
        drafter = {"none": NoDraft(), "liar": liar, "noise": noise_drafter(seed=seed)}[drafts]
        engine.use(drafter, Strict(), FREE)
        done = {row.key: row for row in engine.generate(requests_for(prompts, new))}
        truth = truth or [done[str(index)].token_ids for index in range(count)]
        assert sum(row.statistics.relaxed_cost for row in done.values()) == 0.0
        outcomes.append(
            {key: (row.token_ids.tolist(), row.finish_reason) for key, row in done.items()}
        )
    assert outcomes[0] == outcomes[1] == outcomes[2]
