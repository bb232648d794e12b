"""Texts cut between two tokens of one character end before it, whatever the vocabulary."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.half_characters import HALF, without_half_character
from pipeline.language_model import ChatTokenizer


def byte_level():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback():
    vocab = {"<unk>": 0, "a": 1, " ": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


@pytest.mark.parametrize("vocabulary", [byte_level, byte_fallback])
@pytest.mark.parametrize(("whole", "last"), [("a", "\u7535"), ("a", "\U0001f3ac"), ("", "\u7535")])
def test_a_text_that_was_cut_ends_before_a_character_that_was_not_written_whole(
    vocabulary, whole, last
):
    made = vocabulary()
    tokenizer = ChatTokenizer(PreTrainedTokenizerFast(tokenizer_object=made), "")
    ids = np.array(made.encode(f"{whole} {last}").ids, np.int32)
    parts = len(last.encode())
    for missing in range(1, parts):
        assert HALF in tokenizer.decode(ids[:-missing])  # ended by itself: as the model wrote it
        assert tokenizer.decode(ids[:-missing], is_cut=True) == whole
    assert tokenizer.decode(ids, is_cut=True) == f"{whole} {last}".strip()
    assert tokenizer.decode(ids[:-parts], is_cut=True) == whole


def test_only_the_end_of_a_text_is_mended():
    assert without_half_character(f"a{HALF}b{HALF}") == f"a{HALF}b"
    assert without_half_character(f"a{HALF}b") == f"a{HALF}b"
    assert without_half_character(f"a{HALF * 5}") == f"a{HALF * 2}"  # more than one character's
    assert without_half_character("") == ""
