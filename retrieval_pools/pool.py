"""Pools of earlier knowledge: one per group and a global one, as memory-mapped arrays.

A folder holds `tokens.npy` (all texts), `group_suffixes.npy` (the sorted suffixes of every group,
one slice after the other), `global_suffixes.npy` (those of all groups) and `pools.json`. Nothing
is copied on opening: all processes of a machine share the pages.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import DataError
from retrieval_pools.compiled import read_only
from retrieval_pools.suffix_array import join, sort_suffixes

log = logging.getLogger(__name__)

_FORMAT = 1
_MANIFEST = "pools.json"
_ARRAYS = ("tokens", "group_suffixes", "global_suffixes")
_REMEDY = "move the folder away and run the job build_pools again"
_MAX_PLACES = np.iinfo(np.int32).max  # suffixes are int32


@dataclass(frozen=True)
class Pool:
    """One group's slice of the group suffixes, and what it holds."""

    first: int
    last: int  # exclusive
    num_documents: int
    num_tokens: int


@dataclass(frozen=True)
class PoolSet:
    """All pools of a wave, frozen: read-only int32 arrays, see `suffix_array`."""

    depth: int  # tokens that suffixes are sorted by
    groups: Mapping[str, Pool]
    tokens: np.ndarray  # (tokens + documents + 1,)
    group_suffixes: np.ndarray  # (tokens + documents,)
    global_suffixes: np.ndarray  # (tokens + documents,), fewer where `max_tokens` bounds it

    @property
    def num_documents(self) -> int:
        """Documents in all groups."""
        return sum(pool.num_documents for pool in self.groups.values())

    @property
    def num_tokens(self) -> int:
        """Tokens of text in all groups."""
        return sum(pool.num_tokens for pool in self.groups.values())

    @property
    def bytes_per_token(self) -> float:
        """Size of all arrays per token of text: 12, and 12 per document; 0 if there is no text."""
        size = sum(getattr(self, name).nbytes for name in _ARRAYS)
        return size / self.num_tokens if self.num_tokens else 0.0

    @staticmethod
    def empty() -> "PoolSet":
        """Pools without any text."""
        return build_pools({}, depth=2, max_tokens=1)

    def save(self, folder: Path, tokenizer_fingerprint: str) -> None:
        """Write the pools into an existing folder, the manifest last."""
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)
        manifest = {
            "format": _FORMAT,
            "tokenizer": tokenizer_fingerprint,
            "depth": self.depth,
            "num_documents": self.num_documents,
            "num_tokens": self.num_tokens,
            "bytes_per_token": round(self.bytes_per_token, 3),
            "groups": {name: asdict(pool) for name, pool in self.groups.items()},
            "sha256": {name: _file_checksum(folder / f"{name}.npy") for name in _ARRAYS},
        }
        manifest["checksum"] = _checksum(manifest)
        (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")

    @staticmethod
    def open(folder: Path, tokenizer_fingerprint: str) -> "PoolSet":
        """Map the pools of a folder.

        Raises:
            DataError: a file is missing, damaged or not ours, or the pools hold token ids of
                another tokenizer than the one of `tokenizer_fingerprint`.
        """
        manifest = _read_manifest(folder / _MANIFEST)
        if manifest["tokenizer"] != tokenizer_fingerprint:
            raise DataError(
                f"{folder / _MANIFEST} holds token ids of tokenizer {manifest['tokenizer']}, the "
                f"language model has {tokenizer_fingerprint}; {_REMEDY}"
            )
        return PoolSet(
            depth=manifest["depth"],
            groups={name: Pool(**pool) for name, pool in manifest["groups"].items()},
            **{name: _map(folder / f"{name}.npy", manifest["sha256"][name]) for name in _ARRAYS},
        )


def build_pools(
    documents_by_group: Mapping[str, Sequence[np.ndarray]], depth: int, max_tokens: int
) -> PoolSet:
    """Pool the documents (token ids without stop token) of every group, given oldest first.

    Suffixes are sorted by `depth` tokens. A group keeps its latest documents up to `max_tokens`
    tokens. The global pool has the same bound, and every group its share of it.

    Raises:
        DataError: a document is not a list of token ids, or all pools together are too large.
    """
    kept = {
        name: _keep_latest(name, _checked(name, documents_by_group[name]), max_tokens)
        for name in sorted(documents_by_group)
    }
    sizes = np.array([sum(map(len, documents)) for documents in kept.values()], np.int64)
    places = sizes + np.array([len(documents) for documents in kept.values()], np.int64)
    if places.sum() >= _MAX_PLACES:
        raise DataError(
            f"all pools together hold {sizes.sum()} tokens, more than {_MAX_PLACES}; lower "
            "pools.max_tokens"
        )
    tokens = join([document for documents in kept.values() for document in documents])
    suffixes = sort_suffixes(tokens, depth)
    edges = np.concatenate([[0], np.cumsum(places)])  # a group's texts stand side by side
    owner = np.searchsorted(edges, suffixes, side="right") - 1
    shares = max_tokens * sizes // max(int(sizes.sum()), max_tokens)
    first_kept = edges[1:] - [
        _num_places(_latest(documents, share))
        for documents, share in zip(kept.values(), shares, strict=True)
    ]
    return PoolSet(
        depth=depth,
        groups={
            name: Pool(int(edges[number]), int(edges[number + 1]), len(kept[name]), int(size))
            for number, (name, size) in enumerate(zip(kept, sizes, strict=True))
        },
        tokens=read_only(tokens),
        group_suffixes=read_only(suffixes[np.argsort(owner, kind="stable")]),
        global_suffixes=read_only(suffixes[suffixes >= first_kept[owner]]),
    )


def _checked(name: str, documents: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The documents as int32 arrays, without empty ones."""
    checked = []
    for number, document in enumerate(documents):
        array = np.asarray(document)
        if array.ndim != 1 or (array.size and (array.dtype.kind not in "iu" or array.min() < 0)):
            raise DataError(f"pool {name}: document {number} is not a list of token ids (>= 0)")
        if array.size:
            checked.append(array.astype(np.int32))
    return checked


def _keep_latest(name: str, documents: list[np.ndarray], max_tokens: int) -> list[np.ndarray]:
    kept = _latest(documents, max_tokens)
    if len(kept) < len(documents):
        log.info(
            "pool %s: the oldest %d of %d texts left out, over %d tokens",
            name,
            len(documents) - len(kept),
            len(documents),
            max_tokens,
        )
    return kept


def _latest(documents: list[np.ndarray], max_tokens: int) -> list[np.ndarray]:
    """The longest tail of the documents that has at most `max_tokens` tokens."""
    from_end = np.cumsum([len(document) for document in reversed(documents)])
    count = int(np.searchsorted(from_end, max_tokens, side="right"))
    return documents[len(documents) - count :]


def _num_places(documents: list[np.ndarray]) -> int:
    """Places in the joined text: the tokens, and a separator before each document."""
    return sum(map(len, documents)) + len(documents)


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
    except ValueError as error:
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
