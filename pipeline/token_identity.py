"""What makes token ids mean the same."""

import hashlib
from typing import Any

import numpy as np


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Of a tokenizer of transformers: hash of its vocabulary and its chat template."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    told = repr((vocabulary, tokenizer.chat_template))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def key_of_ids(token_ids: np.ndarray) -> str:
    """Hash of a prompt's token ids."""
    return hashlib.sha256(token_ids.astype("<i4").tobytes()).hexdigest()[:16]
