"""Where decodings part; and that in 16 bits nothing but rounding parts them."""

import numpy as np
import pytest
import torch

from pipeline.config import EngineSettings
from pipeline.divergence import Divergence, first_divergences
from pipeline.engine.budget import FREE
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Strict
from pipeline.engine.stops import Stops
from pipeline.engine.types import NoDraft, Request

STOP = 2
STOPS = Stops([STOP])
PLAIN = Processors(STOPS.ids)
SETTINGS = EngineSettings(batch_rows=8, max_length=64, prefill_tokens=64, draft_nodes=16)


def ids(*tokens):
    return np.array(tokens, np.int32)


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model("llama")


def logits_after(model, *tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1]


def parted(model, expected, got, processors=PLAIN, new=9):
    requests = [Request(key, ids(5, 6, 7), new) for key in expected]
    return first_divergences(model, requests, expected, got, processors)


def test_the_first_difference_and_the_gap_of_its_two_tokens(model):
    expected = {"a": ids(8, 9, 10, 11), "b": ids(8, 9), "c": ids(12)}
    got = {"a": ids(8, 9, 13, 14), "b": ids(8, 9), "c": ids(15)}
    found = parted(model, expected, got)
    assert [(row.key, row.position) for row in found] == [("a", 2), ("c", 0)]
    after_a, after_c = logits_after(model, 5, 6, 7, 8, 9), logits_after(model, 5, 6, 7)
    assert found[0].gap == pytest.approx(float(after_a[10] - after_a[13]), rel=1e-4)
    assert found[1].gap == pytest.approx(float(after_c[12] - after_c[15]), rel=1e-4)


@pytest.mark.parametrize("is_longer", [True, False])
def test_the_shorter_output_is_taken_to_stop(model, is_longer):
    texts = [{"a": ids(8, 9)}, {"a": ids(8)}]
    (found,) = parted(model, *(texts if is_longer else reversed(texts)))
    logits = logits_after(model, 5, 6, 7, 8)
    gap = float(logits[9] - logits[STOP])
    assert found == Divergence("a", 1, pytest.approx(gap if is_longer else -gap, rel=1e-4))


def test_of_several_stop_tokens_it_is_the_most_probable(model):
    logits = logits_after(model, 5, 6, 7)
    best = int(logits.argmax())
    (found,) = parted(model, {"a": ids(best)}, {"a": ids()}, Processors(frozenset([STOP, 20, 30])))
    expected = float(logits[best] - logits[[STOP, 20, 30]].max())
    assert found.gap == pytest.approx(expected, rel=1e-4)


def test_scores_are_those_after_processors(model):
    """8 was said before, so it is penalised; 9 was not."""
    (found,) = parted(model, {"a": ids(8, 8)}, {"a": ids(8, 9)}, Processors(STOPS.ids, 1.7))
    logits = logits_after(model, 5, 6, 7, 8)
    penalised = logits[8] * 1.7 if logits[8] < 0 else logits[8] / 1.7
    assert found.gap == pytest.approx(float(penalised - logits[9]), rel=1e-4)


def noisy_divergences(model, reference, noise_drafter, count):
    """Strict decoding of some rows with noise drafts against the same engine without drafts."""
    random = np.random.default_rng(0)
    sizes = random.integers(1, 30, count)
    prompts = [random.integers(3, 61, size).astype(np.int32) for size in sizes]
    requests = [Request(str(number), prompt, 32) for number, prompt in enumerate(prompts)]
    processors = Processors(STOPS.ids, 1.2)
    engine = Engine(model, SETTINGS, STOPS, processors, costs=FREE)
    texts = []
    for drafter in (NoDraft(), noise_drafter()):
        engine.use(drafter, Strict())
        texts.append({done.key: done.token_ids for done in engine.generate(requests)})
    return first_divergences(reference, requests, *texts, processors)


def test_drafts_change_nothing_in_float32(tiny_model, noise_drafter):
    assert not noisy_divergences(tiny_model("llama"), tiny_model("llama"), noise_drafter, 10)


def test_in_bfloat16_only_nearly_equal_tokens_change_places(tiny_model, noise_drafter):
    rounded = tiny_model("llama").bfloat16()
    exact = tiny_model("llama").bfloat16().float()  # the same weights, computed exactly
    with torch.inference_mode():
        logits = exact(torch.arange(3, 61)[None]).logits
    step = 2.0**-7 * float(logits.abs().max())  # bfloat16 keeps 8 bits of a number
    best_two = logits.topk(2).values
    assert float((best_two[..., 0] - best_two[..., 1]).median()) > 8 * step  # most are far apart
    found = noisy_divergences(rounded, exact, noise_drafter, 40)
    assert len(found) < 10
    assert max((abs(row.gap) for row in found), default=0.0) <= 4 * step
