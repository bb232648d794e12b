"""CTR rows and feature vectors for other programs: FuxiCTR's npz, and Parquet for Feast.

`fuxictr/` is written in the format of a data set of FuxiCTR (2.3): `train|valid|test.npz` with an
array per feature, `feature_map.json`, `feature_vocab.json`, and vectors as `pretrained_*.npz` (key,
value), for its `FeatureMap.load` and `RankDataLoader(..., data_format="npz")`; its run script would
build the map anew from a config. Codes are those of the check. 0 is padding there, which stays the
zero vector and which pooling does not count; here it is "unknown", which begins as the zero vector
and is trained. `user_knowledge` and `item_knowledge` are 1 + the entity's place in the catalog, and
carry its vector, frozen: as the encoder gave it, or the mean over others where it has no text of
its own; the check standardises vectors and adds a column for "not its own". The vocabulary leads
back to ids.

`feast/` is written as a FileSource of Feast wants it: a file for each kind of entity (id,
event_timestamp, created, source, PROVENANCE as in FEATURES, vector) and the CTR rows to join them
to. `event_timestamp` is the latest interaction that the text, or any text averaged, had seen; what
saw none holds from the catalog's first interaction on. That is when the prompt was complete; pools
and groups, by which drafts are made, know all that is earlier than `asof`. Feast's file store drops
a row that is earlier than the text it asks for.

FuxiCTR 2.3.10 and Feast 0.67 read the files in `make test-peers`.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from features.ctr.data import CTR_SPLITS, LIKED, CtrData
from pipeline.errors import DataError
from pipeline.schemas import KINDS, PROVENANCE

FUXICTR, FEAST = "fuxictr", "feast"
FORMAT = 2  # of the files: under another number an export is made anew
LABEL = "label"
_MOST_ID_CHARS = 256
_PADDING, _UNKNOWN = "__PAD__", "__OOV__"  # FuxiCTR's, beside the ids in a vocabulary
_TIME = pa.timestamp("us", tz="UTC")
_POOLED = {"feature_encoder": "layers.MaskedAveragePooling()"}


def write_fuxictr(folder: Path, data: CtrData, features: pa.Table, dataset: str) -> None:
    """Write FuxiCTR's data set `dataset` into `folder`, which is made.

    Raises:
        DataError: two fields would have one name, or an id cannot be written.
    """
    folder.mkdir()
    columns = ctr_columns(data)
    specs = feature_map(data, _width(features))
    for split in CTR_SPLITS:
        rows = data.splits[split]
        arrays = {name: column[rows] for name, column in columns}
        np.savez(folder / f"{split}.npz", allow_pickle=False, **arrays)
    for kind in KINDS:
        keys, values = _vectors_of(features, kind)
        np.savez(folder / _pretrained(kind), key=keys, value=values)
    described = {
        "dataset_id": dataset,
        "num_fields": len(specs),
        "total_features": sum(
            spec["vocab_size"] for spec in specs.values() if "share_embedding" not in spec
        ),
        "input_length": sum(spec.get("max_len", 1) for spec in specs.values()),
        "labels": [LABEL],
        "features": [{name: spec} for name, spec in specs.items()],
    }
    _write_json(folder / "feature_map.json", described)
    _write_json(folder / "feature_vocab.json", _vocabularies(data))


def ctr_columns(data: CtrData) -> list[tuple[str, np.ndarray]]:
    """Every feature of the CTR rows and the label, by name, as the npz files hold them.

    Raises:
        DataError: two fields would have one name.
    """
    owners = {"user": data.users, "item": data.items}
    fields = {"user": data.user_fields, "item": data.item_fields}
    columns = [
        (name, fields[kind].codes[owners[kind], number])
        for kind in KINDS
        for number, name in enumerate(_field_names(data, kind))
    ]
    columns += [(f"{kind}_knowledge", owners[kind] + 1) for kind in KINDS]
    columns += [
        ("history_items", data.history_items),
        ("history_signals", data.history_signals),
        (LABEL, data.labels),
    ]
    names = [name for name, _ in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"export: several fields would be named {twice}; rename an attribute")
    return columns


def feature_map(data: CtrData, width: int) -> dict[str, dict[str, Any]]:
    """FuxiCTR's description of every feature, in the order of `ctr_columns`."""
    specs: dict[str, dict[str, Any]] = {}
    for kind, fields in (("user", data.user_fields), ("item", data.item_fields)):
        for name, size in zip(_field_names(data, kind), fields.sizes, strict=True):
            specs[name] = _categorical(kind, size)
    for kind, ids in (("user", data.user_ids), ("item", data.item_ids)):
        specs[f"{kind}_knowledge"] = _categorical(kind, len(ids) + 2) | {
            "oov_idx": len(ids) + 1,
            "pretrained_emb": _pretrained(kind),
            "pretrain_dim": width,
            "pretrain_usage": "init",
            "freeze_emb": True,
        }
    sequence = _POOLED | {"type": "sequence", "max_len": data.history_items.shape[1]}
    items = specs["item_id"]["vocab_size"]
    specs["history_items"] = _categorical("user", items) | sequence | {"share_embedding": "item_id"}
    specs["history_signals"] = _categorical("user", LIKED + 1) | sequence
    return specs


def write_feast(
    folder: Path,
    data: CtrData,
    features: pa.Table,
    interactions: pa.Table,
    created: str,
) -> None:
    """Write `user_knowledge.parquet`, `item_knowledge.parquet` and `ctr_rows.parquet`.

    Args:
        folder: is made.
        data: the CTR rows.
        features: FEATURES.
        interactions: INTERACTIONS, of which the first timestamp is read.
        created: when the features were made, ISO 8601.
    """
    folder.mkdir()
    first = pc.min(interactions["timestamp"]).as_py()
    for kind in KINDS:
        table = feast_table(features, kind, first, created)
        pq.write_table(table, folder / f"{kind}_knowledge.parquet", compression="zstd")
    pq.write_table(_feast_rows(data), folder / "ctr_rows.parquet", compression="zstd")


def feast_table(features: pa.Table, kind: str, first: int, created: str) -> pa.Table:
    """The features of a kind with the columns that a Feast FileSource wants.

    Args:
        features: FEATURES.
        kind: user or item.
        first: timestamp from which on a text holds that has seen no interaction.
        created: ISO 8601.
    """
    rows = features.filter(pc.equal(features["kind"], kind))
    latest = rows["latest_source"]
    seconds = pc.if_else(pc.equal(latest, 0), pa.scalar(first, pa.int64()), latest)
    vectors = rows["vector"].cast(pa.list_(pa.float32()))
    made = pa.array([created] * rows.num_rows, pa.string())
    return pa.table(
        {
            f"{kind}_id": rows["entity_id"],
            "event_timestamp": _as_time(seconds),
            "created": pc.strptime(made, "%Y-%m-%dT%H:%M:%SZ", "us").cast(_TIME),
            "source": rows["source"],
            **{name: rows[name] for name in PROVENANCE},
            "vector": vectors,
        }
    )


def _feast_rows(data: CtrData) -> pa.Table:
    """What Feast joins features to: whose row, when, and the label."""
    rows = np.concatenate([data.splits[split] for split in CTR_SPLITS])
    lengths = [len(data.splits[split]) for split in CTR_SPLITS]
    return pa.table(
        {
            "user_id": data.user_ids.take(pa.array(data.users[rows])),
            "item_id": data.item_ids.take(pa.array(data.items[rows])),
            "event_timestamp": _as_time(pa.array(data.timestamps[rows], pa.int64())),
            LABEL: pa.array(data.labels[rows].astype(np.int32)),
            "split": pa.array(np.repeat(CTR_SPLITS, lengths), pa.string()),
        }
    )


def _as_time(seconds: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return seconds.cast(pa.timestamp("s", tz="UTC")).cast(_TIME)


def _field_names(data: CtrData, kind: str) -> Iterator[str]:
    """Names of the fields of a kind, such as user_id and item_genre; torch takes no dots."""
    fields = data.user_fields if kind == "user" else data.item_fields
    return (f"{kind}_" + re.sub(r"\W", "_", name) for name in fields.names)


def _categorical(source: str, vocabulary: int) -> dict[str, Any]:
    return {"source": source, "type": "categorical", "padding_idx": 0, "vocab_size": vocabulary}


def _pretrained(kind: str) -> str:
    return f"pretrained_{kind}_knowledge.npz"


def _width(features: pa.Table) -> int:
    return features.schema.field("vector").type.list_size


def _vectors_of(features: pa.Table, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids (entities,) and vectors (entities, width) of the entities of a kind that have one."""
    is_usable = pc.and_(pc.equal(features["kind"], kind), pc.not_equal(features["source"], "none"))
    rows = features.filter(is_usable)
    _require_usable(rows["entity_id"], kind)
    values = rows["vector"].combine_chunks().flatten().to_numpy().reshape(-1, _width(features))
    return np.array(rows["entity_id"].to_pylist(), np.str_), values


def _require_usable(ids: pa.ChunkedArray, kind: str) -> None:
    """An array of strings gives each the room of the longest, and drops a NUL at the end.

    Raises:
        DataError: one is too long, or holds a NUL.
    """
    _refuse(ids, pc.match_substring(ids, "\0"), kind, "holds a NUL character; remove it")
    too_long = pc.greater(pc.utf8_length(ids), _MOST_ID_CHARS)
    _refuse(ids, too_long, kind, f"has more than {_MOST_ID_CHARS} characters; shorten it")


def _refuse(ids: pa.ChunkedArray, is_bad: pa.ChunkedArray, kind: str, what: str) -> None:
    bad = ids.filter(is_bad)
    if len(bad):
        first = bad[0].as_py()[:40]
        raise DataError(f"export: the {kind} id that begins with {first!r} {what} in the catalog")


def _vocabularies(data: CtrData) -> dict[str, dict[str, int]]:
    """The code of every entity; FuxiCTR looks up the keys of the vectors in it."""
    vocabularies = {}
    for kind, ids in (("user", data.user_ids), ("item", data.item_ids)):
        taken = pc.is_in(ids, value_set=pa.array([_PADDING, _UNKNOWN]))
        _refuse(ids, taken, kind, "is FuxiCTR's own word; give another")
        tokens = [_PADDING, *ids.to_pylist(), _UNKNOWN]
        vocabularies[f"{kind}_knowledge"] = {token: code for code, token in enumerate(tokens)}
    return vocabularies


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
