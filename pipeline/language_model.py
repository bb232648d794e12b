"""The language model and its tokenizer: loading, chat prompts.

Nothing executable is loaded from a model's folder (`trust_remote_code` stays off).
"""

import logging
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from pipeline.decoding_config import LanguageModelSettings
from pipeline.engine.compatibility import require_length, sliding_windows
from pipeline.errors import ModelError
from pipeline.fetched import local_copy
from pipeline.gguf_cache import converted_folder, is_converted, tokenizer_in
from pipeline.half_characters import without_half_character
from pipeline.hub import require_reachable_weights, small_files, whole_model
from pipeline.locations import is_remote
from pipeline.model_folder import require_model_folder
from pipeline.model_identity import model_fingerprint, no_gguf_file
from pipeline.token_identity import tokenizer_fingerprint

log = logging.getLogger(__name__)

_BRACKETED = re.compile(r"[^\w\s].*\w.*[^\w\s]")  # as <think>
_NOTHING = r"(?!)"


@dataclass(frozen=True)
class ChatTokenizer:
    """Turns one user message into prompt token ids, and output ids into text."""

    tokenizer: Any
    fingerprint: str

    def encode(self, message: str) -> np.ndarray:
        """Token ids of a chat with one user message, ready for the answer: (tokens,) int32.

        Marks written in the message are broken up, so that text from a catalog cannot end the turn
        or open another. A tokenizer without a chat template gets the bare message.
        """
        return self.encode_all([message])[0]

    def encode_all(self, messages: list[str]) -> list[np.ndarray]:
        """As `encode`, for several messages on all cores."""
        broken = [self._marks.sub(lambda mark: " ".join(mark[0]), one) for one in messages]
        if not self.has_turns:
            encoded = self.tokenizer(broken)
        else:
            encoded = self.tokenizer([self._chat(one) for one in broken], add_special_tokens=False)
        return [np.array(ids, np.int32) for ids in encoded["input_ids"]]

    def _chat(self, message: str) -> str:
        chat = [{"role": "user", "content": message}]
        return self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)

    def encode_exactly(self, text: str) -> np.ndarray:
        """Token ids of a text as it stands, with nothing put around it: (tokens,) int32."""
        return np.array(self.tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)

    @property
    def has_turns(self) -> bool:
        """Whether it knows a chat; a model of one that does not goes on from the bare message."""
        return self.tokenizer.chat_template is not None

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        """Special tokens, and others that look like some: not all templates mark turns by specials.

        A run of blanks or a word that was added to a vocabulary is text like any other.
        """
        marks = set(self.tokenizer.all_special_tokens)
        for token in self.tokenizer.added_tokens_decoder.values():
            if token.special or _BRACKETED.fullmatch(token.content):
                marks.add(token.content)
        longest_first = sorted(filter(None, marks), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or _NOTHING)

    def decode(self, token_ids: np.ndarray, is_cut: bool = False) -> str:
        """Text of output ids, without special tokens and without white space at its ends.

        One that was cut ends before a character of which only some tokens were written.
        """
        text = self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=True)
        return (without_half_character(text) if is_cut else text).strip()

    def decode_exactly(self, token_ids: np.ndarray) -> str:
        """All that output ids say: special tokens by their names, and every white space."""
        return self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False)


def load_tokenizer(settings: LanguageModelSettings) -> ChatTokenizer:
    """Load the tokenizer that belongs to the configured model.

    Raises:
        ModelError: there is no usable tokenizer at `language_model.path`.
    """
    tokenizer = _load(AutoTokenizer, settings)
    return ChatTokenizer(tokenizer, tokenizer_fingerprint(tokenizer))


def load_model(settings: LanguageModelSettings) -> PreTrainedModel:
    """Load the causal LM, in evaluation mode, on its device.

    Raises:
        ModelError: there is no usable model at `language_model.path`.
    """
    dtype = getattr(torch, settings.dtype)
    model = _load(AutoModelForCausalLM, settings, dtype=dtype)
    return model.to(device_of(settings)).eval()


def stop_ids_of(model: PreTrainedModel) -> frozenset[int]:
    """Tokens that end an answer; ids that no token has, such as -1 for none, are left out.

    Raises:
        ModelError: the model names none; its rows would all run to their length limit.
    """
    generation: Any = model.generation_config
    stop = generation.eos_token_id if generation else model.config.eos_token_id
    embeddings: Any = model.get_input_embeddings()
    vocabulary = embeddings.weight.shape[0]
    named = [stop] if isinstance(stop, int) else stop or []
    known = frozenset(token for token in named if 0 <= token < vocabulary)
    if not known:
        raise ModelError(
            f"the model's generation_config names eos_token_id {stop}, no token of its vocabulary "
            f"of {vocabulary}; set it to the token that ends an answer"
        )
    return known


def check_language_model(settings: LanguageModelSettings) -> None:
    """Refuse a model the engine cannot run, from its configuration alone.

    Raises:
        ModelError: the reason is named.
    """
    sliding_windows(_load(AutoConfig, settings))


def load_config(settings: LanguageModelSettings) -> PreTrainedConfig:
    """The configuration that a model has once it is loaded, without its weights.

    Raises:
        ModelError: there is none at `language_model.path`.
    """
    return _load(AutoConfig, settings, dtype=getattr(torch, settings.dtype))


def loads_at_once(settings: LanguageModelSettings) -> bool:
    """Whether a model loads as it is; a GGUF file is converted first, once."""
    if settings.gguf_file is None:
        return True
    file = local_copy(settings.path) / settings.gguf_file
    return is_converted(file, model_fingerprint(settings))


def quick_tokenizer(settings: LanguageModelSettings) -> ChatTokenizer:
    """As `load_tokenizer`, without converting a GGUF file.

    Raises:
        ModelError: there is no usable tokenizer at `language_model.path`.
    """
    if settings.gguf_file is None or loads_at_once(settings):
        return load_tokenizer(settings)
    tokenizer = tokenizer_in(local_copy(settings.path) / settings.gguf_file)
    return ChatTokenizer(tokenizer, tokenizer_fingerprint(tokenizer))


def model_folder(settings: LanguageModelSettings) -> Path:
    """Where the files of a GGUF model lie as an ordinary folder, made if need be.

    Raises:
        ModelError: there is no such file.
    """
    assert settings.gguf_file is not None, "other models are loaded by their path"
    file = local_copy(settings.path) / settings.gguf_file
    if not file.is_file():
        raise ModelError(no_gguf_file(file, "language_model"))
    return converted_folder(file, settings.dtype, model_fingerprint(settings))


def require_context(settings: LanguageModelSettings, max_length: int) -> None:
    """Refuse rows longer than the positions of a model that `loads_at_once`.

    Raises:
        ModelError: see `require_length`.
    """
    if loads_at_once(settings):
        require_length(_load(AutoConfig, settings), max_length)


def require_model_files(settings: LanguageModelSettings, section: str) -> None:
    """Refuse a model that is not there, from the names of its files; `section` is of the config.

    A hub name is asked for its configuration, which is fetched once, and whether it can be had.

    Raises:
        ModelError: the GGUF file, the weights, the tokenizer or the configuration are missing.
    """
    folder = local_copy(settings.path)
    if settings.gguf_file is not None:
        if not (folder / settings.gguf_file).is_file():
            raise ModelError(no_gguf_file(folder / settings.gguf_file, section))
        return
    if folder.is_dir():
        require_model_folder(folder, section)
        check_language_model(settings)
    else:
        check_language_model(settings)
        require_reachable_weights(settings.path, section)


def _load(kind: Any, settings: LanguageModelSettings, **options: Any) -> Any:
    transformers_logging.disable_progress_bar()  # a conversion has bars of its own
    folder = local_copy(settings.path)
    path = str(folder) if is_remote(settings.path) else settings.path
    if settings.gguf_file is not None:
        path = str(model_folder(settings))
    elif not folder.exists():
        fetch = whole_model if kind is AutoModelForCausalLM else small_files
        path = str(fetch(settings.path, "language_model"))
    try:
        # Unsaid, it would mean a question on a terminal.
        return kind.from_pretrained(path, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"language_model.path {settings.path!r} cannot be loaded as {kind.__name__}: {error}"
        ) from error
    except UnpicklingError as error:  # torch's words tell how to run what is in there
        raise ModelError(
            f"language_model.path {settings.path!r} cannot be loaded: a weight file holds more "
            "than tensors, and is not run; save the model as safetensors"
        ) from error


def device_of(settings: LanguageModelSettings) -> torch.device:
    """Where the model is put."""
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)
