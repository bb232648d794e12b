"""A draft model changes speed only, and is left alone where it does not pay."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from pipeline.config import EngineSettings
from pipeline.engine.budget import CostTable
from pipeline.engine.chain_length import ChainLength
from pipeline.engine.draft_model import SOURCE, DraftModelDrafter
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Strict
from pipeline.engine.sampling import Sampled, Sampling
from pipeline.engine.stops import Stops
from pipeline.engine.types import DraftTree, NoDraft, Request, RowStatistics
from pipeline.errors import ModelError
from pipeline.schemas import SOURCES

VOCAB, STOP, NEW = 61, 2, 16
STOPS = Stops([STOP])
PROCESSORS = Processors(STOPS.ids, repetition_penalty=1.2)


def costs(seconds):
    """Any step takes `seconds`."""
    return CostTable(np.array([1]), np.array([1]), np.array([1, 4096]), np.full((1, 1, 2), seconds))


def sizes(rows):
    return EngineSettings(batch_rows=rows, max_length=96, prefill_tokens=24, draft_nodes=12)


def small_llama(seed=3, positions=512, vocab=VOCAB):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=positions,
    )
    return LlamaForCausalLM(config).eval()


def near(model):
    """The target with a little noise."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * parameter.std(correction=0) * torch.randn_like(parameter))
    return model


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2, n_positions=128)
    return GPT2LMHeadModel(config).eval()


def make_drafter(model, rows, tokens=4, target=1.0, own=1e-4, **options):
    return DraftModelDrafter(
        model, VOCAB, tokens, sizes(rows), PROCESSORS, costs(target), costs=costs(own), **options
    )


def make_requests(count=9, seed=1):
    """Ragged, with lengths of their own; every other one begins alike."""
    random = np.random.default_rng(seed)
    shared = random.integers(3, VOCAB, 30)
    prompts = [random.integers(3, VOCAB, int(random.integers(1, 40))) for _ in range(count)]
    return [
        Request(
            str(index),
            (np.concatenate([shared, own]) if index % 2 else own).astype(np.int32),
            int(random.integers(1, NEW + 1)) if index % 3 else NEW,
            seed=index,
        )
        for index, own in enumerate(prompts)
    ]


def generate(engine, drafter, requests):
    engine.use(drafter, Strict(), costs(1.0))
    return {done.key: done for done in engine.generate(requests)}


def texts(generations):
    return {key: done.token_ids.tolist() for key, done in generations.items()}


def engine_of(model, rows):
    return Engine(model, sizes(rows), STOPS, PROCESSORS, costs=costs(1.0))


def greedy(model, request):
    """Transformers' own greedy search, one row at a time."""
    prompt = torch.from_numpy(request.prompt_ids.astype(np.int64))[None]
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            repetition_penalty=1.2,
            eos_token_id=STOP,
            pad_token_id=0,
        )[0, prompt.shape[1] :].tolist()
    return output[: output.index(STOP)] if STOP in output else output


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("draft_model", ["same", "near", "other", "gpt2", "short context"])
def test_strict_with_a_draft_model_is_greedy_token_for_token(draft_model, rows, tiny_model):
    requests = make_requests()
    target = tiny_model("llama")
    truth = {request.key: greedy(target, request) for request in requests}
    drafting = {
        "same": lambda: tiny_model("llama"),
        "near": lambda: near(tiny_model("llama")),
        "other": small_llama,
        "gpt2": gpt2,
        "short context": lambda: small_llama(positions=40),
    }[draft_model]()
    engine = engine_of(target, rows)
    generations = generate(engine, make_drafter(drafting, rows), requests)
    assert texts(generations) == truth
    drafted = sum(done.statistics.drafted_by_depth for done in generations.values())
    assert drafted.sum() > 20
    if draft_model == "same":
        accepted = sum(done.statistics.accepted_by_depth for done in generations.values())
        stops = sum(done.finish_reason == "stop" for done in generations.values())
        assert drafted.sum() - accepted.sum() <= 4 * stops  # only drafts behind a stop are lost
        passes = sum(done.statistics.forward_passes for done in generations.values())
        assert passes < 0.4 * sum(map(len, truth.values()))


def test_a_draft_model_serves_one_job_after_another(tiny_model):
    """Keys come again, with other prompts; rows come and go between slots."""
    engine = engine_of(tiny_model("llama"), 3)
    drafter = make_drafter(near(tiny_model("llama")), 3)
    for seed in (1, 2):
        requests = make_requests(5, seed)
        plain = texts(generate(engine, NoDraft(), requests))
        assert texts(generate(engine, drafter, requests)) == plain


@pytest.mark.parametrize("sampling", [None, Sampling(0.7)])
def test_the_same_requests_again_are_new_rows(sampling, tiny_model):
    """What was drafted for them the first time is no part of the second."""
    requests = [replace(request, max_new_tokens=22) for request in make_requests(2)]
    engine = engine_of(tiny_model("llama"), 2)
    drafter = make_drafter(tiny_model("llama"), 2, sampling=sampling)
    engine.use(drafter, Sampled(sampling) if sampling else Strict(), costs(1.0))
    first, second = (
        {
            done.key: (done.token_ids.tolist(), done.statistics.forward_passes)
            for done in engine.generate(requests)
        }
        for _ in range(2)
    )
    assert first == second
    assert max(passes for _, passes in first.values()) > 2


@pytest.mark.parametrize("sampling", [None, Sampling()])
def test_a_draft_model_whose_numbers_are_none_costs_time_only(sampling, tiny_model):
    """Where nothing can be drawn the chain ends."""
    model = tiny_model("llama")
    drafter = Recorder(make_drafter(model, 2, sampling=sampling))
    with torch.no_grad():
        model.get_input_embeddings().weight[40:] = torch.nan
    engine = engine_of(tiny_model("llama"), 2)
    requests = [Request(str(i), np.array([3 + i], np.int32), NEW) for i in range(8)]
    engine.use(drafter, Strict(), costs(1.0))
    broken = {done.key: done for done in engine.generate(requests)}
    assert texts(broken) == texts(generate(engine, NoDraft(), requests))
    chains = [tree for _, _, tree in drafter.said]
    assert any(len(tree) for tree in chains)
    for tree in chains:
        if sampling and len(tree):
            assert tree.proposals.shape == (len(tree), VOCAB)
            assert tree.proposals.isfinite().all()


class Recorder:
    """Notes what a drafter says."""

    def __init__(self, drafter):
        self.drafter, self.said = drafter, []

    def propose(self, rows, max_nodes):
        trees = self.drafter.propose(rows, max_nodes)
        self.said += [
            (row.request, row.tokens.copy(), tree) for row, tree in zip(rows, trees, strict=True)
        ]
        return trees

    def observe(self, trees, outcomes):
        self.drafter.observe(trees, outcomes)


@torch.inference_mode()
def next_scores(model, tokens):
    """Scores of the token after `tokens` by the bare model, after the repetition penalty."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    scores = model(ids).logits[0, -1]
    seen = ids[0].unique()
    scores[seen] = torch.where(scores[seen] < 0, scores[seen] * 1.2, scores[seen] / 1.2)
    return scores


@pytest.mark.parametrize("sampling", [None, Sampling(0.7, 20, 0.95)])
def test_chains_are_the_draft_models_own_continuation(sampling, tiny_model):
    """Whatever was cached, taken back, moved or shared between slots before."""
    drafter = Recorder(make_drafter(near(tiny_model("llama")), 3, sampling=sampling))
    generate(engine_of(tiny_model("llama"), 3), drafter, make_requests())
    bare = near(tiny_model("llama"))
    chains = [(tokens, tree) for _, tokens, tree in drafter.said if len(tree)]
    assert len(chains) > 20
    for tokens, tree in chains:
        assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
        assert (tree.proposals is None) == (sampling is None)
        for node, token in enumerate(tree.token_ids):
            scores = next_scores(bare, np.concatenate([tokens, tree.token_ids[:node]]))
            if tree.proposals is None:
                assert token == scores.argmax()
            else:
                q = sampling.distribution(scores[None])[0]
                assert torch.allclose(tree.proposals[node], q, atol=1e-4)
                assert tree.proposals[node][token] > 0.0


def test_chains_end_before_the_last_token_and_within_the_draft_models_context(tiny_model):
    drafter = Recorder(make_drafter(small_llama(positions=40), 3))
    generate(engine_of(tiny_model("llama"), 3), drafter, make_requests())
    some, none = 0, 0
    for request, tokens, tree in drafter.said:
        last = len(request.prompt_ids) + request.max_new_tokens - 1
        assert len(tokens) + len(tree) <= max(last, len(tokens))
        assert len(tokens) + len(tree) <= max(40, len(tokens))
        some, none = some + (len(tree) > 0), none + (len(tokens) >= 40)
    assert some
    assert none


def test_rows_get_equal_survival_within_a_step(tiny_model):
    drafter = make_drafter(near(tiny_model("llama")), 4)
    engine = engine_of(tiny_model("llama"), 4)
    asked = []

    class Spy:
        def propose(self, rows, max_nodes):
            asked.append(drafter.propose(rows, max_nodes))
            return asked[-1]

        def observe(self, trees, outcomes):
            drafter.observe(trees, outcomes)

    generate(engine, Spy(), make_requests())
    several = [[tree for tree in trees if len(tree)] for trees in asked]
    assert any(len(trees) > 1 for trees in several)
    for trees in several:
        longest = max((tree.survival for tree in trees), key=len, default=np.empty(0))
        for tree in trees:
            assert tree.survival.tolist() == longest[: len(tree)].tolist()


def test_draws_depend_on_the_seed_and_the_place(tiny_model):
    request = make_requests()[0]

    class View:
        def __init__(self, seed, more):
            self.request = Request("a", request.prompt_ids, NEW, seed=seed)
            self.tokens = np.append(request.prompt_ids, more).astype(np.int32)

    def chain(seed, more=()):
        drafter = make_drafter(small_llama(), 1, sampling=Sampling())
        return drafter.propose([View(seed, list(more))], 12)[0].token_ids.tolist()

    assert chain(1) == chain(1)
    assert chain(1) != chain(2)
    assert chain(1, [5]) != chain(1, [5, 5])
    assert chain(2**300) == chain(2**300)  # seeds are as long as hashes


def test_another_vocabulary_is_refused():
    with pytest.raises(ModelError, match=r"drafts\.model has a vocabulary of 60 tokens.*61"):
        make_drafter(small_llama(vocab=60), 2)


def test_the_vocabulary_of_a_prepared_model_is_known(tiny_model):
    assert engine_of(tiny_model("llama"), 2).runner.vocabulary == VOCAB


def trees_of(lengths):
    def tree(size):
        nodes = np.arange(size, dtype=np.int32)
        return DraftTree(
            nodes, nodes - 1, np.ones(size, np.float32), np.zeros(size, np.int8), nodes
        )

    return [tree(size) for size in lengths]


def fed(most, target, draft, accepted, rounds=400):
    """A chain length that has seen `accepted` drafts of a full chain stay, again and again."""
    length = ChainLength(most, costs(target), costs(draft))
    for stay in np.resize(accepted, rounds):
        length.observe(trees_of([most]), [np.where(np.arange(most) < stay, 1, -1).astype(np.int8)])
    return length


def test_alphas_are_the_shares_of_rows_whose_first_drafts_all_stayed():
    length = fed(3, 1.0, 0.1, [0, 1, 1, 3])
    assert length.survival == pytest.approx([0.75, 0.25, 0.25], abs=0.05)
    assert ChainLength(3, costs(1.0), costs(0.1)).survival == pytest.approx([0.8, 0.64, 0.512])


def best_by_hand(survival, target, draft):
    gains = [(1 + sum(survival[:k])) / (target + k * draft) for k in range(len(survival) + 1)]
    return int(np.argmax(gains))


@pytest.mark.parametrize("draft", [0.01, 0.1, 0.2, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("accepted", [[4], [0], [0, 1, 2, 4], [2]])
def test_the_chain_is_as_long_as_pays_best(draft, accepted):
    length = fed(4, 1.0, draft, accepted)
    expected = best_by_hand(length.survival, 1.0, draft)
    assert length.choose(8, 16, 100, 100.0) == expected


def test_reading_a_long_prompt_for_a_few_tokens_does_not_pay():
    by_token = CostTable(
        np.array([1]), np.array([1, 64]), np.array([1, 4096]), np.array([[[0.01, 40.96]] * 2])
    )
    length = ChainLength(4, costs(1.0), by_token)
    assert length.choose(1, 1000, 2, 100.0) == 0
    assert length.choose(1, 1000, 500, 100.0) > 0
    assert length.choose(1, 2, 2, 100.0) > 0


def test_drafting_that_never_pays_is_tried_ever_more_seldom():
    length = ChainLength(4, costs(1.0), costs(5.0))
    tried = []
    for step in range(1000):
        assert length.choose(4, 8, 100, 100.0) == 0
        if length.is_trial():
            tried.append(step)
    starts = [step for step in tried if step - 1 not in tried]
    assert 3 <= len(starts) <= 6
    assert (np.diff(starts, 2) > 0).all()
    assert len(tried) == 8 * len(starts)


def test_a_useless_draft_model_soon_costs_nothing(tiny_model):
    """It is as slow as the target and never right: nearly all steps are plain."""
    engine = engine_of(tiny_model("llama"), 2)
    drafter = Recorder(make_drafter(small_llama(), 2, target=1e-3, own=1e-3))
    requests = [Request(str(i), np.array([3 + i], np.int32), 60) for i in range(6)]
    generations = generate(engine, drafter, requests)
    assert texts(generations) == texts(generate(engine, NoDraft(), requests))
    late = [len(tree) for _, _, tree in drafter.said[len(drafter.said) // 2 :]]
    assert np.mean(np.array(late) > 0) < 0.15


def test_the_expected_speedup_is_leviathans():
    """(1 + sum alpha_i) / (1 + rho K), here with all numbers known."""
    drafter = make_drafter(small_llama(), 4, tokens=2)
    account = drafter._account
    account.passes, account.short_passes, account.short_seconds = 20, 10, 1.0  # 0.1 s a pass
    account.target_seconds = 10.0  # ten steps of 1 s, K = 2, rho = 0.1
    for stay in (2, 1, 0, 2) * 10:
        account.observe([np.where(np.arange(2) < stay, 1, 0).astype(np.int8)])
    assert drafter.expected_speedup() == pytest.approx((1 + 0.75 + 0.5) / (1 + 0.1 * 2))


def test_an_unused_draft_model_promises_nothing():
    assert make_drafter(small_llama(), 4).expected_speedup() == 1.0


def test_drafts_of_a_model_are_counted_under_its_name():
    assert SOURCES[SOURCE] == "model"
    assert len(RowStatistics().drafted_by_source) == len(SOURCES)
