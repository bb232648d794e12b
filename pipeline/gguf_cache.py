"""GGUF files as ordinary Hugging Face folders, converted once per machine.

transformers reads a GGUF file by parsing and de-quantising it in Python, half a minute for a small
model, and every worker of every wave would do so again. A converted folder loads in under a second.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.errors import ModelError, is_no_room
from pipeline.made_once import made_once

log = logging.getLogger(__name__)

_CACHE = Path(".cache/models")


def converted_folder(file: Path, dtype: str, identity: str) -> Path:
    """A Hugging Face folder with the model and tokenizer of a GGUF `file`, made if need be.

    `identity` is the fingerprint of the file's content and `dtype`.

    Raises:
        ModelError: the file does not exist or cannot be read.
    """
    return made_once(_folder(file, identity), partial(_fill, file, dtype))


def is_converted(file: Path, identity: str) -> bool:
    """Whether `converted_folder` has nothing to make."""
    return _folder(file, identity).is_dir()


def tokenizer_in(file: Path) -> Any:
    """The tokenizer of a GGUF file that need not be converted; takes some seconds.

    Raises:
        ModelError: the file cannot be read.
    """
    try:
        return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> ModelError:
    return ModelError(f"{file} cannot be read as a GGUF language model: {error}")


def _folder(file: Path, identity: str) -> Path:
    return _CACHE / f"{file.stem}-{identity}"


def _fill(file: Path, dtype: str, folder: Path) -> None:
    log.info("converting %s once, into %s", file, folder.parent)
    try:
        _convert(file, dtype, folder)
    except (OSError, ValueError) as error:
        if is_no_room(error):
            raise
        raise _unreadable(file, error) from error


def _convert(file: Path, dtype: str, folder: Path) -> None:
    source: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=getattr(torch, dtype))
    # The weights are plain numbers now; left in place, these would forbid saving them.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
