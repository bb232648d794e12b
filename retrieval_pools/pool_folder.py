"""Pools in a folder: memory-mapped arrays and a manifest; no pickle.

A folder holds `tokens.npy` (all texts), `group_suffixes.npy` (the sorted suffixes of every group,
one slice after the other), `global_suffixes.npy` (those of all groups), for both of these the
`..._marks.npy` of suffixes of relaxed texts, and `pools.json`. Nothing is copied on opening: all
processes of a machine share the pages.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import DataError
from retrieval_pools.marks import num_words
from retrieval_pools.pool import ARRAYS, Pool, PoolSet
from retrieval_pools.suffix_array import SEPARATOR

_FORMAT = 2
_MANIFEST = "pools.json"
_REMEDY = "move the folder away and run `laser pools` again"


def save_pools(
    pools: PoolSet, folder: Path, tokenizer_fingerprint: str, model_fingerprint: str = ""
) -> None:
    """Write pools into an existing folder, the manifest last.

    The model is the one that wrote the texts, "" if none did. It is for the record: what another
    model wrote are drafts too, as long as tokens mean the same.
    """
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", getattr(pools, name), allow_pickle=False)
    manifest = {
        "format": _FORMAT,
        "tokenizer": tokenizer_fingerprint,
        "model": model_fingerprint,
        "depth": pools.depth,
        "num_documents": pools.num_documents,
        "num_relaxed": pools.num_relaxed,
        "num_tokens": pools.num_tokens,
        "bytes_per_token": round(pools.bytes_per_token, 3),
        "groups": {name: asdict(pool) for name, pool in pools.groups.items()},
        "sha256": {name: _file_checksum(folder / f"{name}.npy") for name in ARRAYS},
    }
    manifest["checksum"] = _checksum(manifest)
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def open_pools(folder: Path, tokenizer_fingerprint: str) -> PoolSet:
    """Map the pools of a folder.

    Raises:
        DataError: a file is missing, damaged or not ours, or the pools hold token ids of another
            tokenizer than the one of `tokenizer_fingerprint`.
    """
    path = folder / _MANIFEST
    manifest = _read_manifest(path)
    if manifest["tokenizer"] != tokenizer_fingerprint:
        raise DataError(
            f"{path} holds token ids of tokenizer {manifest['tokenizer']}, the language model has "
            f"{tokenizer_fingerprint}; {_REMEDY}"
        )
    try:
        pools = PoolSet(
            depth=manifest["depth"],
            groups={name: Pool(**pool) for name, pool in manifest["groups"].items()},
            **{name: _map(folder / f"{name}.npy", manifest["sha256"][name]) for name in ARRAYS},
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} lacks or adds an entry ({error}); {_REMEDY}") from error
    if not _is_sound(pools):
        raise DataError(f"{path} and its arrays do not fit each other; {_REMEDY}")
    return pools


def _is_sound(pools: PoolSet) -> bool:
    """Whether kernels, which check no bounds, can be let loose on the arrays."""
    arrays = [getattr(pools, name) for name in ARRAYS]
    kinds = [np.int32] * 3 + [np.int64] * 2
    if any(one.ndim != 1 or one.dtype != kind for one, kind in zip(arrays, kinds, strict=True)):
        return False
    places = len(pools.tokens) - 1
    edges = [0, *(edge for pool in pools.groups.values() for edge in (pool.first, pool.last))]
    return (
        isinstance(pools.depth, int)
        and pools.depth >= 2
        and places >= 0
        and pools.tokens[-1] == SEPARATOR
        and len(pools.group_suffixes) == places
        and edges == sorted(edges)
        and edges[-1] == places
        and all(
            _are_places(suffixes, places) and len(marks) in (0, num_words(len(suffixes)))
            for suffixes, marks in (
                (pools.group_suffixes, pools.group_marks),
                (pools.global_suffixes, pools.global_marks),
            )
        )
    )


def _are_places(suffixes: np.ndarray, places: int) -> bool:
    return not len(suffixes) or bool(0 <= suffixes.min() <= suffixes.max() < places)


def _map(path: Path, checksum: str) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"{path} is missing; {_REMEDY}")
    if _file_checksum(path) != checksum:
        raise DataError(f"{path} is damaged: its checksum differs; {_REMEDY}")
    # A plain ndarray on the mapped pages: kernels take longer to recognise the subclass.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {_REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}; {_REMEDY}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise DataError(f"{path} is not a manifest of pools in format {_FORMAT}; {_REMEDY}")
    if manifest.pop("checksum", None) != _checksum(manifest):
        raise DataError(f"{path} is damaged: its checksum differs; {_REMEDY}")
    return manifest


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
