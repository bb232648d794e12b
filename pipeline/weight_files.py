"""The files that hold a model's weights, told from their names."""

import json
from fnmatch import fnmatch
from pathlib import Path

from pipeline.errors import ModelError

WEIGHTS = ("*.safetensors", "*.bin")  # in a folder of a model, and what its identity is made of
# Of those, what a model is loaded from: a trainer leaves an optimizer and its arguments there, too.
LOADED = ("model*.safetensors", "pytorch_model*.bin")

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def is_weights(file: Path) -> bool:
    """Whether a file is named as weights are that a model is loaded from."""
    return any(fnmatch(file.name, pattern) for pattern in LOADED)


def holds_weights(folder: Path) -> bool:
    """Whether a folder holds any file of weights."""
    return any(is_weights(file) for file in folder.iterdir())


def missing_shards(folder: Path) -> list[str]:
    """Files of weights that an index names and that are not there.

    Raises:
        ModelError: the index is damaged.
    """
    for name in _INDEXES:
        if not (folder / name).is_file():
            continue
        try:
            named = set(json.loads((folder / name).read_text("utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"{folder / name} is damaged ({error}); fetch it again") from error
        return sorted(file for file in named if not (folder / file).is_file())
    return []
