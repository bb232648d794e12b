"""What steps cost can be measured with any model that the engine runs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.engine import profile
from pipeline.engine.profile import measure_costs
from pipeline.engine.runner import ModelRunner


@pytest.mark.parametrize("vocabulary", [2, 61])
def test_a_vocabulary_may_be_smaller_than_the_longest_chain(vocabulary):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
    )
    runner = ModelRunner(LlamaForCausalLM(config).eval(), 4, 128)
    told = []
    table = measure_costs(runner, 4, 1, told.append)
    assert (table.seconds > 0.0).all()
    assert (np.diff(table.seconds) >= 0.0).all()
    assert table.rows.tolist() == [1, 4]
    assert table.seconds.shape[:2] == (2, 2)
    assert told == [f"measuring step costs, {number} of 4" for number in (1, 2, 3, 4)]


def test_a_disturbed_measurement_is_seen_by_its_neighbours(monkeypatch):
    """Neither shorter contexts nor fewer rows cost more."""
    curves = iter([[9.0] * 3, [2.0] * 3, [1.0] * 3, [3.0] * 3])
    monkeypatch.setattr(profile, "_curve", lambda *_: (np.arange(3.0), next(curves)))
    monkeypatch.setattr(profile, "_extended", lambda _, curve, per_row: np.array(curve))
    runner = SimpleNamespace(cache=SimpleNamespace(max_length=128))
    table = measure_costs(runner, 4, 1)  # pyright: ignore[reportArgumentType]
    assert table.seconds[:, :, 0].tolist() == [[1.0, 2.0], [1.0, 3.0]]
