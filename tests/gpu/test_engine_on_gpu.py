"""The engine on a CUDA device: the same exactness as on a CPU.

In float32, whose attention is masked there too; for half precision see test_cascade_on_gpu.py.
"""

import numpy as np
import pytest
import torch

from pipeline.config import EngineSettings
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Strict
from pipeline.engine.stops import Stops
from pipeline.engine.types import Request
from pipeline.reference_decoding import transformers_generate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

STOPS, NEW = Stops([2]), 20
PROCESSORS = Processors(STOPS.ids, repetition_penalty=1.2)


@pytest.fixture
def full_precision():
    """Without TF32, float32 matrix products are float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3"])
@pytest.mark.usefixtures("full_precision")
def test_strict_equals_greedy_generate_on_cuda(family, tiny_model, noise_drafter):
    random = np.random.default_rng(1)
    prompts = [random.integers(3, 61, size).astype(np.int32) for size in (5, 40, 17, 80, 33)]
    requests = [Request(str(i), prompt, NEW) for i, prompt in enumerate(prompts)]
    truth = transformers_generate(tiny_model(family).cuda(), requests, 1, PROCESSORS)
    settings = EngineSettings(batch_rows=3, max_length=128, prefill_tokens=24, draft_nodes=8)
    engine = Engine(tiny_model(family).cuda(), settings, STOPS, PROCESSORS)
    engine.use(noise_drafter(), Strict())
    results = {done.key: done.token_ids.tolist() for done in engine.generate(requests)}
    assert results == {key: ids.tolist() for key, ids in truth.items()}
