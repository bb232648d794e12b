"""What a model's files say of itself."""

import pytest

from pipeline.errors import ModelError
from pipeline.language_model import stop_ids_of

VOCAB = 61


@pytest.mark.parametrize(
    ("named", "stop_ids"),
    [(2, {2}), ([2, 5], {2, 5}), ([2, -1], {2}), ([2, VOCAB], {2}), ([0, VOCAB - 1], {0, 60})],
)
def test_stop_ids_are_tokens_of_the_vocabulary(named, stop_ids, tiny_model):
    model = tiny_model("llama")
    model.generation_config.eos_token_id = named
    assert stop_ids_of(model) == stop_ids


@pytest.mark.parametrize("named", [None, [], -1, [VOCAB, -1]])
def test_a_model_that_names_no_token_to_stop_at_is_refused(named, tiny_model):
    model = tiny_model("llama")
    model.generation_config.eos_token_id = named
    with pytest.raises(ModelError, match="names eos_token_id"):
        stop_ids_of(model)
