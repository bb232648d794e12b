"""What the engine does around decoding; that it decodes exactly is tested in test_exactness."""

import time

import numpy as np
import pytest
import torch

from pipeline.config import EngineSettings
from pipeline.engine.budget import FREE, CostTable
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Relaxed, Strict, TopKFloor
from pipeline.engine.stops import Stops
from pipeline.engine.types import Generation, NoDraft, Request
from pipeline.errors import ModelError

STOP = 2
STOPS = Stops([STOP])
PENALTY = 1.2
NEW = 20
SETTINGS = EngineSettings(batch_rows=4, max_length=128, prefill_tokens=24, draft_nodes=12)


def make_engine(model, sizes=SETTINGS, penalty=PENALTY):
    return Engine(model, sizes, STOPS, Processors(STOPS.ids, penalty), costs=FREE)


def make_prompts(count=9, seed=1, longest=60):
    """Ragged prompts; two families share a prefix, some are longer than a prefill chunk."""
    random = np.random.default_rng(seed)
    shared = random.integers(3, 61, 30)
    prompts = []
    for index in range(count):
        own = random.integers(3, 61, int(random.integers(1, longest)))
        prompts.append(np.concatenate([shared, own]) if index % 2 else own)
    return [prompt.astype(np.int32) for prompt in prompts]


def greedy(model, prompt, new=NEW, penalty=PENALTY):
    """The oracle: transformers' own greedy search, one row at a time."""
    with torch.inference_mode():
        output = model.generate(
            torch.from_numpy(prompt.astype(np.int64))[None],
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new,
            do_sample=False,
            repetition_penalty=penalty,
            eos_token_id=STOP,
            pad_token_id=0,
        )[0, len(prompt) :].numpy()
    stops = np.flatnonzero(output == STOP)
    return output[: stops[0]] if len(stops) else output


def requests_for(prompts, new=NEW):
    return [Request(str(i), prompt, new) for i, prompt in enumerate(prompts)]


def run(engine, requests) -> dict[str, Generation]:
    generations = list(engine.generate(requests))
    assert len({g.key for g in generations}) == len(generations) == len(requests)
    return {g.key: g for g in generations}


@pytest.mark.parametrize("rule", ["strict", "relaxed"])
def test_stop_token_inside_a_draft_ends_the_row_there(rule, tiny_model, oracle_drafter):
    """The drafter proposes the stop token where it comes and goes on behind it."""
    model = tiny_model("llama")
    prompt, expected = next(
        (prompt, ids)
        for prompt in make_prompts(40, seed=5)
        if 3 < len(ids := greedy(model, prompt)) < NEW - 4
    )
    beyond = np.concatenate([expected, [STOP], expected])
    engine = make_engine(tiny_model("llama"))
    rules = {"strict": Strict(), "relaxed": Relaxed(TopKFloor(5, 0.0), STOPS)}
    engine.use(oracle_drafter({"0": beyond}), rules[rule], FREE)
    result = run(engine, requests_for([prompt]))["0"]
    assert result.token_ids.tolist() == expected.tolist()
    assert result.finish_reason == "stop"
    assert result.statistics.accepted_by_source.sum() <= len(expected) + 1


def test_tokens_are_counted_as_they_are_written(tiny_model, oracle_drafter):
    """Those of rows in flight too, and drafted ones that stay; tokens that end a row are none."""
    prompts = make_prompts(9)
    texts = {str(n): greedy(tiny_model("llama"), prompt) for n, prompt in enumerate(prompts)}
    engine = make_engine(tiny_model("llama"))
    engine.use(oracle_drafter(texts), Strict(), FREE)
    engine.submit(requests_for(prompts))
    finished, seen = [], [0]
    while len(finished) < len(prompts):
        finished += engine.step()
        seen.append(engine.statistics.tokens)
        assert seen[-1] >= sum(len(one.token_ids) for one in finished)
    assert (np.diff(seen) >= 0).all()
    assert seen[-1] == sum(map(len, texts.values()))


def test_one_empty_and_one_over_long_prompt_fail_alone(tiny_model):
    prompts = make_prompts(5)
    truth = [greedy(tiny_model("llama"), prompt) for prompt in prompts]
    prompts.insert(2, np.empty(0, np.int32))
    prompts.insert(4, np.full(120, 7, np.int32))
    truth.insert(2, None)
    truth.insert(4, None)
    results = run(make_engine(tiny_model("llama")), requests_for(prompts))
    for index, expected in enumerate(truth):
        result = results[str(index)]
        if expected is None:
            assert result.finish_reason == "error"
            assert not len(result.token_ids)
        else:
            assert result.token_ids.tolist() == expected.tolist()
    assert "empty" in results["2"].error
    assert "max_length" in results["4"].error


def test_shared_prefixes_are_computed_once(tiny_model):
    random = np.random.default_rng(3)
    shared = random.integers(3, 61, 40)
    prompts = [np.append(shared, [index + 3]).astype(np.int32) for index in range(6)]
    engine = make_engine(tiny_model("llama"))
    results = run(engine, requests_for(prompts, 1))
    assert engine.statistics.packed_tokens <= 41 + 5 * 2
    for index, prompt in enumerate(prompts):
        assert (
            results[str(index)].token_ids.tolist()
            == greedy(tiny_model("llama"), prompt, 1).tolist()
        )


def test_every_use_pays_for_its_own_prefill(tiny_model):
    """Or a comparison of drafters would favour the later one."""
    engine = make_engine(tiny_model("llama"))
    packed = []
    for _ in range(2):
        engine.use(NoDraft(), Strict(), FREE)
        before = engine.statistics.packed_tokens
        run(engine, requests_for(make_prompts(4)))
        packed.append(engine.statistics.packed_tokens - before)
    assert packed[0] == packed[1]


def test_a_model_we_would_decode_wrongly_is_refused(tiny_model):
    """Stands for a model that does more to its logits than its output layer."""
    model = tiny_model("llama")
    model.lm_head.register_forward_hook(
        lambda _, __, logits: logits * 2.0 if logits.dim() == 3 else logits
    )
    with pytest.raises(ModelError, match="computes its logits in a way"):
        make_engine(model)


def test_a_busy_engine_takes_rows_by_submit_only(tiny_model):
    engine = make_engine(tiny_model("llama"))
    flow = engine.generate(requests_for(make_prompts(6)))
    next(flow)
    with pytest.raises(RuntimeError, match="submit"):
        next(engine.generate(requests_for(make_prompts(1))))
    with pytest.raises(RuntimeError, match="in flight"):
        engine.use(NoDraft(), Strict())
    flow.close()
    assert len(run(engine, requests_for(make_prompts(3)))) == 3  # nothing was left behind


def test_two_rows_of_one_key_are_refused(tiny_model):
    engine = make_engine(tiny_model("llama"))
    twice = [Request("a", prompt, 3) for prompt in make_prompts(2)]
    with pytest.raises(ValueError, match="key 'a'"):
        list(engine.generate(twice))
    assert len(list(engine.generate(twice[:1]))) == 1  # nothing of the refused call is left


def test_an_unknown_token_id_is_one_error_row(tiny_model):
    prompts = [*make_prompts(2), np.array([5, 61], np.int32)]
    results = run(make_engine(tiny_model("llama")), requests_for(prompts))
    assert results["2"].finish_reason == "error"
    assert "vocabulary of 61" in results["2"].error
    assert results["0"].finish_reason != "error"


def test_logits_that_are_no_numbers_end_their_row_alone(tiny_model):
    """One token's embedding is broken; neighbours, and rows that come later, are not."""
    prompts = [prompt[prompt != 7] for prompt in make_prompts(7)]
    truth = [greedy(tiny_model("llama"), prompt).tolist() for prompt in prompts]
    model = tiny_model("llama")
    engine = make_engine(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    bad = np.append(prompts[0], 7).astype(np.int32)
    results = run(engine, [Request("bad", bad, NEW), *requests_for(prompts)])
    assert results["bad"].finish_reason == "error"
    assert "finite" in results["bad"].error
    for index, expected in enumerate(truth):
        if 7 not in expected:
            assert results[str(index)].token_ids.tolist() == expected


def test_a_model_serves_one_engine(tiny_model):
    model = tiny_model("llama")
    make_engine(model)
    with pytest.raises(ModelError, match="another engine"):
        make_engine(model)


@pytest.mark.parametrize("vocabulary", [61, 90])
def test_drafts_of_another_vocabulary_change_nothing(vocabulary, tiny_model, noise_drafter):
    prompts = make_prompts(4)
    truth = [greedy(tiny_model("llama"), prompt).tolist() for prompt in prompts]
    engine = make_engine(tiny_model("llama"))
    engine.use(noise_drafter(vocabulary), Strict(), FREE)
    results = run(engine, requests_for(prompts))
    assert [results[str(n)].token_ids.tolist() for n in range(len(prompts))] == truth
    drafted = sum(done.statistics.drafted_by_depth.sum() for done in results.values())
    assert drafted > 0


class ForgetfulDrafter(NoDraft):
    """Raises whenever it should learn."""

    def observe(self, trees, outcomes):
        raise LookupError("nothing is learned")


def test_a_drafter_that_raises_costs_no_finished_row(tiny_model):
    """For callers of `step`, who may go on: rows come as soon as no exception is in their way."""
    prompts = make_prompts(6)
    requests = [Request(str(n), prompt, 1 + n) for n, prompt in enumerate(prompts)]
    engine = make_engine(tiny_model("llama"))
    truth = {key: done.token_ids.tolist() for key, done in run(engine, requests).items()}
    engine.use(ForgetfulDrafter(), Strict(), FREE)
    engine.submit(requests)
    texts, raised = {}, 0
    for _ in range(60):
        try:
            texts |= {done.key: done.token_ids.tolist() for done in engine.step()}
        except LookupError:
            raised += 1
    assert texts == truth
    assert raised > 6


class SlowDrafter(NoDraft):
    """Takes its time to find nothing."""

    def propose(self, rows, max_nodes):
        time.sleep(0.02)
        return super().propose(rows, max_nodes)


def test_the_time_of_drafting_is_no_part_of_what_a_step_costs(tiny_model):
    """It is spent before the budget decides; in the table it would be reckoned again."""
    milliseconds = CostTable(
        np.array([1]), np.array([1]), np.array([1, 4096]), np.full((1, 1, 2), 1e-3)
    )
    model = tiny_model("llama")
    engine = Engine(model, SETTINGS, STOPS, Processors(STOPS.ids, PENALTY), costs=milliseconds)
    engine.use(SlowDrafter(), Strict())
    list(engine.generate([Request("a", np.array([5, 6], np.int32), 60)]))
    assert engine.statistics.draft > 0.02 * 40
    assert engine.costs.step_seconds(1, np.array([1]), 10)[0] < 0.015


def test_generate_finishes_what_was_submitted_before(tiny_model):
    engine = make_engine(tiny_model("llama"))
    early, late = requests_for(make_prompts(2), 3)
    engine.submit([early])
    assert {done.key for done in engine.generate([late])} == {"0", "1"}


def test_a_draft_that_makes_numbers_that_are_none_costs_a_step_not_the_row(
    tiny_model, noise_drafter
):
    """Only drafts hold the token whose embedding is broken."""
    prompts = [prompt[prompt != 7] for prompt in make_prompts(5)]
    truth = [greedy(tiny_model("llama"), prompt).tolist() for prompt in prompts]
    prompts = [prompt for prompt, text in zip(prompts, truth, strict=True) if 7 not in text]
    truth = [text for text in truth if 7 not in text]
    model = tiny_model("llama")
    engine = make_engine(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    engine.use(noise_drafter(8), Strict(), FREE)  # every eighth node is the broken token
    results = run(engine, requests_for(prompts))
    assert len(truth) > 2
    assert [results[str(n)].token_ids.tolist() for n in range(len(truth))] == truth


def test_a_row_that_has_begun_waits_for_nobody(tiny_model):
    """It cannot take over a prefix any more, so waiting for one would only cost steps."""
    random = np.random.default_rng(8)
    short, shared = random.integers(3, 61, 20), random.integers(3, 61, 80)
    prompts = [short, *(np.append(shared, token) for token in (3, 4))]
    engine = make_engine(tiny_model("llama"), SETTINGS.model_copy(update={"prefill_tokens": 40}))
    requests = [
        Request(str(n), prompt.astype(np.int32), 1 if n == 0 else 8)
        for n, prompt in enumerate(prompts)
    ]
    truth = [greedy(tiny_model("llama"), one.prompt_ids, one.max_new_tokens) for one in requests]
    results = run(engine, requests)
    assert all(np.array_equal(results[str(n)].token_ids, text) for n, text in enumerate(truth))
    assert engine.statistics.steps <= 14
