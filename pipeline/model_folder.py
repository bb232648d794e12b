"""What a folder with a language model must hold, told from the names of its files."""

import json
from pathlib import Path

from pipeline.errors import ModelError
from pipeline.hub import WEIGHTS, holds_weights

# A tokenizer of any kind has such a file.
_TOKENIZER = ("*token*", "*vocab*", "*.model", "*.tiktoken", "tekken.json")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def require_model_folder(folder: Path, section: str) -> None:
    """Refuse a folder without weights, with a part of them only, or without a tokenizer.

    Raises:
        ModelError: the reason is named; `section` is of the config.
    """
    if not holds_weights(folder):
        raise ModelError(
            f"{section}.path: {folder} holds no weights ({', '.join(WEIGHTS)}); for a GGUF file "
            f"set {section}.gguf_file"
        )
    if missing := _missing_shards(folder):
        raise ModelError(
            f"{section}.path: {folder} lacks {len(missing)} files of its weights, e.g. "
            f"{missing[0]}; fetch them"
        )
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZER):
        raise ModelError(
            f"{section}.path: {folder} holds no tokenizer (tokenizer.json or the like); copy the "
            "files of the one that the model was trained with"
        )


def _missing_shards(folder: Path) -> list[str]:
    """Files of weights that an index names and that are not there."""
    for name in _INDEXES:
        if not (folder / name).is_file():
            continue
        try:
            named = set(json.loads((folder / name).read_text("utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{folder / name} is damaged ({error}); fetch it again") from error
        return sorted(file for file in named if not (folder / file).is_file())
    return []
