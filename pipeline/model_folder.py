"""What a folder with a language model must hold, told from the names of its files."""

from fnmatch import fnmatch
from pathlib import Path

from pipeline.errors import ModelError
from pipeline.weight_files import LOADED, holds_weights, missing_shards

# A tokenizer of any kind has such a file, and others beside it that are none without it.
_TOKENIZER = ("*token*", "*vocab*", "*.model", "*.tiktoken", "tekken.json")
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "*.py")


def require_model_folder(folder: Path, section: str) -> None:
    """Refuse a folder without weights, with a part of them only, or without a tokenizer.

    Raises:
        ModelError: the reason is named; `section` is of the config.
    """
    if not holds_weights(folder):
        raise ModelError(
            f"{section}.path: {folder} holds no weights ({', '.join(LOADED)}); for a GGUF file "
            f"set {section}.gguf_file"
        )
    if missing := missing_shards(folder):
        raise ModelError(
            f"{section}.path: {folder} lacks {len(missing)} files of its weights, e.g. "
            f"{missing[0]}; fetch them"
        )
    if not any(_is_tokenizer(file.name) for file in folder.iterdir()):
        raise ModelError(
            f"{section}.path: {folder} holds no tokenizer (tokenizer.json or the like); copy the "
            "files of the one that the model was trained with"
        )


def _is_tokenizer(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _TOKENIZER) and not any(
        fnmatch(name, pattern) for pattern in _BESIDE
    )
