"""Tokens as pieces of a text: nothing is lost, and a character is never cut in two."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from features.page.pieces import RELAXED, Piece, Splitter, origin_of


def byte_level(merges=()):
    """A vocabulary of bytes, as GPT-2's is, and of a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*alphabet, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocab, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback():
    """A vocabulary of words that says what it lacks byte by byte, as Llama's does."""
    vocab = {"<unk>": 0, "a": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def sentence_pieces():
    """A vocabulary whose words begin with a blank, which the first of a text loses."""
    vocab = [("\u2581a", 0.0), ("\u2581fine", 0.0), ("\u2581film", 0.0), ("s", 0.0), (".", 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocab))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def decoding(tokenizer):
    return lambda ids: tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)


def split(tokenizer, text):
    ids = tokenizer.encode(text).ids
    return Splitter(decoding(tokenizer)).split(ids), ids


def test_a_character_of_several_tokens_is_one_piece():
    pieces, ids = split(byte_level(), "a 电影!")
    assert len(ids) == 9
    assert pieces == [
        Piece("a", 1), Piece(" ", 1), Piece("电", 3), Piece("影", 3), Piece("!", 1)
    ]  # fmt: skip


def test_a_character_that_is_said_byte_by_byte_is_one_piece_too():
    pieces, ids = split(byte_fallback(), "a电🎬a")
    assert len(ids) == 9
    assert pieces == [Piece("a", 1), Piece("电", 3), Piece("🎬", 4), Piece("a", 1)]


def test_a_token_with_half_a_character_takes_the_rest_of_it_along():
    tokenizer = byte_level([("Ġ", "ç")])  # a blank and the first byte of the character
    pieces, _ = split(tokenizer, "a 电b")
    assert pieces == [Piece("a", 1), Piece(" 电", 3), Piece("b", 1)]


def test_words_that_begin_with_a_blank_keep_it_but_for_the_first():
    tokenizer = sentence_pieces()
    pieces = Splitter(decoding(tokenizer)).split([1, 2, 3, 4, 1])
    assert [piece.text for piece in pieces] == ["fine", " film", "s", ".", " fine"]


def test_a_text_cut_within_a_character_ends_with_what_is_known_of_it():
    tokenizer = byte_level()
    ids = tokenizer.encode("ab电").ids[:-1]
    pieces = Splitter(decoding(tokenizer)).split(ids)
    assert pieces[:2] == [Piece("a", 1), Piece("b", 1)]
    assert pieces[2].tokens == 2
    assert set(pieces[2].text) == {"\N{REPLACEMENT CHARACTER}"}


def test_a_broken_byte_in_the_middle_does_not_swallow_what_follows():
    tokenizer = byte_level()
    half = tokenizer.encode("电").ids[0]
    ids = [*tokenizer.encode("a").ids, half, *tokenizer.encode("bcd").ids]
    pieces = Splitter(decoding(tokenizer)).split(ids)
    assert [piece.tokens for piece in pieces] == [1, 2, 1, 1]


def test_tokens_that_say_nothing_belong_to_a_neighbour():
    said = {1: "a", 2: "", 3: "b"}
    splitter = Splitter(lambda ids: "".join(said[int(token)] for token in ids))
    assert splitter.split([1, 2, 3, 2]) == [Piece("a", 1), Piece("b", 3)]
    assert splitter.split([2, 2]) == [Piece("", 2)]
    assert splitter.split([]) == []


def test_what_a_token_says_is_asked_once():
    asked = []

    def decode(ids):
        asked.append(ids.tolist())
        return "".join(f"{token} " for token in ids)

    splitter = Splitter(decode)
    for _ in range(10):
        splitter.split([5, 6, 7, 6])
    assert len(asked) == 10 + 10 + 3  # whole texts, their first tokens, then the anchor and two


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4))
def test_pieces_are_the_whole_text_and_all_tokens(texts):
    tokenizer = byte_level([("Ġ", "t"), ("ç", "Ķ")])
    splitter = Splitter(decoding(tokenizer))
    for text in texts:
        ids = tokenizer.encode(text).ids
        pieces = splitter.split(ids)
        assert "".join(piece.text for piece in pieces) == text
        assert sum(piece.tokens for piece in pieces) == len(ids)


@given(st.lists(st.integers(0, 255), max_size=12))
def test_any_bytes_give_pieces_of_the_whole(ids):
    decode = decoding(byte_level())
    pieces = Splitter(decode).split(ids)
    assert "".join(piece.text for piece in pieces) == decode(ids)
    assert sum(piece.tokens for piece in pieces) == len(ids)


@pytest.mark.parametrize(
    ("origins", "origin"),
    [([0], 0), ([3, 3], 3), ([0, 3 + RELAXED], 3 + RELAXED), ([3 + RELAXED, 1], 3 + RELAXED)],
)
def test_a_piece_has_the_origin_of_its_first_draft_and_is_relaxed_if_any_is(origins, origin):
    assert origin_of(origins) == origin
