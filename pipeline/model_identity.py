"""Which model it is: told from its files, wherever they lie."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pipeline.decoding_config import LanguageModelSettings
from pipeline.errors import ModelError
from pipeline.fetched import local_copy
from pipeline.hub import small_files, weight_hashes
from pipeline.locations import is_remote
from pipeline.weight_files import WEIGHTS

_CONFIGURATION = ("config.json", "generation_config.json")
_MODEL_FILES = (*WEIGHTS, "*.gguf", *_CONFIGURATION)


def model_fingerprint(settings: LanguageModelSettings) -> str:
    """Identity of the model: content of its weight and configuration files, and the dtype.

    A hub name has that of a folder with the files that are loaded.

    Raises:
        ModelError: a file is missing, or a hub name is not in the cache and cannot be had.
    """
    folder = local_copy(settings.path)
    if settings.gguf_file and not (folder / settings.gguf_file).is_file():
        raise ModelError(no_gguf_file(folder / settings.gguf_file, "language_model"))
    hashes: dict[str, str] = {}
    if settings.gguf_file:
        files = [folder / settings.gguf_file]
    elif folder.is_dir():
        files = _files_of(folder, _MODEL_FILES)
    else:
        hashes = weight_hashes(settings.path, "language_model")
        files = _files_of(small_files(settings.path, "language_model"), _CONFIGURATION)
    for file in files:
        with file.open("rb") as stream:
            hashes[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    digest = hashlib.sha256(f"{settings.dtype}".encode())
    for name, content in sorted(hashes.items()):
        digest.update(name.encode() + bytes.fromhex(content))
    return digest.hexdigest()[:16]


def pinned(settings: LanguageModelSettings) -> LanguageModelSettings:
    """The same model for other processes and machines, whose caches may have another `main`.

    Raises:
        ModelError: a hub name is not in the cache, and cannot be had.
    """
    path = settings.path
    if settings.gguf_file or is_remote(path) or "@" in path or Path(path).is_dir():
        return settings
    commit = small_files(path, "language_model").name
    return settings.model_copy(update={"path": f"{path}@{commit}"})


def no_gguf_file(file: Path, section: str) -> str:
    """What to tell where a config names a GGUF file that is not there."""
    return (
        f"{section}: {file} does not exist; run `make assets`, or set {section}.path and "
        f"{section}.gguf_file to a model you have"
    )


def _files_of(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [file for pattern in patterns for file in folder.glob(pattern)]
