"""A made-up bookshop and a tiny random language model, so that a soak needs no download."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

_WORDS = ("river", "night", "stone", "garden", "letter", "winter", "crown", "silence", "harbour")
_GENRES = ("Crime", "Poetry", "History")
_JOBS = ("teacher", "nurse")
_READERS, _BOOKS, _RATINGS = 80, 60, 1600
_START, _STEP = 1_700_000_000, 60  # s
_VOCABULARY = 400
_SPREAD = 4.0  # times the usual weights: then no choice of a token hangs on rounding


def make_shop(folder: Path, seed: int) -> None:
    """Write `readers.csv`, `books.csv`, `ratings.csv` and `model/`; the same for a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tables(folder, np.random.default_rng(seed))
    _save_model(folder / "model", seed)


def _write_tables(folder: Path, random: np.random.Generator) -> None:
    books = [
        (f"b{n:03d}", f"The {_WORDS[n % 9]} of {_WORDS[(n * 4 + 1) % 9]}, {n}", _GENRES[n % 3])
        for n in range(_BOOKS)
    ]
    readers = [(f"r{n:03d}", _JOBS[n % 2]) for n in range(_READERS)]
    ratings = []
    for step in range(_RATINGS):
        reader, book = int(random.integers(_READERS)), int(random.integers(_BOOKS))
        liked = (reader + book) % 3 == 0
        stars = int(random.choice([4, 5] if liked else [1, 2, 3]))
        ratings.append((f"r{reader:03d}", f"b{book:03d}", stars, _START + step * _STEP))
    _write(folder / "books.csv", ("isbn", "name", "genre"), books)
    _write(folder / "readers.csv", ("card", "job"), readers)
    _write(folder / "ratings.csv", ("card", "isbn", "stars", "when"), ratings)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def _save_model(folder: Path, seed: int) -> None:
    """A random Llama of two layers, as a Hugging Face folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    texts = [" ".join(_WORDS) * 3, "Describe this book for a recommender. Cover: genre, author."]
    vocabulary = save_tokenizer(folder, texts, _VOCABULARY)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.02 * _SPREAD,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def save_tokenizer(folder: Path, texts: Sequence[str], size: int) -> int:
    """Write a byte-level tokenizer made from `texts`; returns how many tokens it knows."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    return len(tokenizer)
