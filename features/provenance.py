"""What it takes to make a run again: its stages, datasets, settings and environment."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.runs import is_refresh
from pipeline.schemas import SPLITS
from pipeline.store import Manifest, Store

REQUIRED = ("users", "items", "interactions", "embeddings", "groups", "knowledge", "features")
OPTIONAL = ("comparison", "quality", "ctr")

_VECTORS = {  # what stands for each of VECTOR_SOURCES
    "own": "own vectors",
    "group": "means of their group",
    "default": "means of their kind",
    "none": "zero vectors",
}
_UNITS = {
    "fits": "models",
    "pools": "tokens",
    "ctr": "test rows",
    "report": "datasets",
    "recommender": "model",
    "aligned_drafter": "model",
    "retriever": "item vectors",
    "generative_benchmark": "lines",
}
_PACKAGES = (
    "faiss-cpu",
    "faiss-gpu",
    "laser-knowledge",
    "numba",
    "numpy",
    "pyarrow",
    "ray",
    "scikit-learn",
    "sentence-transformers",
    "torch",
    "torch-geometric",
    "transformers",
)


def stages(
    store: Store,
    tables: Mapping[str, pa.Table],
    comparison: Mapping[str, Any] | None,
    ctr: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """The stages of the data flow in order, the comparison last: what each made, and its seconds.

    The section of a `comparison` or a `ctr` has its facts.
    """
    pools = _manifests(store, wave_datasets(store, "pools"))
    passes = _manifests(store, wave_datasets(store, "knowledge"))
    features = tables["features"]["source"]
    fits = {f"{name} rows": number for name, number in ctr["rows"].items()} if ctr else {}
    arms = {arm["arm"] for arm in comparison["arms"]} if comparison else set()
    rows = {"rows": comparison["rows"], "arms": len(arms)} if comparison else {}
    compared = _manifests(store, ["comparison"] if comparison else [])
    return [
        # The three tables of the catalog are made together; the last one took the whole time.
        _stage("catalog", _manifests(store, REQUIRED[2:3]), _catalog_counts(tables)),
        _stage(
            "embeddings",
            _manifests(store, ["embeddings"]),
            {"vectors": tables["embeddings"].num_rows},
        ),
        _stage("groups", _manifests(store, ["groups"]), _group_counts(tables["groups"])),
        _stage("pools", pools, {"versions": len(pools)}),
        _stage(
            "knowledge",
            [*passes, *_manifests(store, ["knowledge"])],
            _knowledge_counts(tables["knowledge"], is_refresh(store)),
        )
        | {"is_whole": _is_whole(passes)},
        _stage(
            "features",
            _manifests(store, ["features"]),
            {words: _count(features, source) for source, words in _VECTORS.items()}
            | _malformed(store),
        )
        | {"is_whole": _is_whole(_manifests(store, ["features"]))},
        _check_stage(store, fits) if ctr else _stage("check", [], {}),
        _stage("comparison", compared, rows) | {"facts": {}, "is_whole": _is_whole(compared)},
    ]


def datasets(store: Store) -> list[dict[str, Any]]:
    """Settings, inputs and fingerprints of every dataset of the run."""
    waves = wave_datasets(store, "pools") + wave_datasets(store, "knowledge")
    waves.sort(key=lambda name: int(name.split("/")[1]))  # stable: the pools of a wave come first
    check = [name for name in _check_datasets(store) if name not in OPTIONAL]
    names = [*REQUIRED[:5], *waves, *REQUIRED[5:], *OPTIONAL[:2], *check, *OPTIONAL[2:]]
    return [
        {
            "dataset": manifest.dataset,
            "rows": manifest.num_rows,
            "unit": unit_of(manifest.dataset),
            "fingerprint": manifest.fingerprint,
            "created": manifest.created,
            "schema_version": manifest.schema_version,
            "inputs": manifest.inputs,
            "settings": manifest.settings,
            "facts": manifest.facts,
        }
        for manifest in _manifests(store, names)
    ]


def language_model_of(report: Mapping[str, Any]) -> str:
    """Its name, by the comparison or the config; else what the waves know it by, "" if nothing."""
    if report["speed"]:
        return report["speed"]["model"]
    config = report.get("config") or {}
    path = config.get("language_model", {}).get("path", "")
    waves = [one["settings"] for one in report["datasets"] if one["dataset"].startswith("waves/")]
    known = [one["model"] for one in waves if isinstance(one.get("model"), str)]
    return path.rstrip("/").rpartition("/")[2] or next(iter(known), "")


def unit_of(dataset: str) -> str:
    """What the `num_rows` of a dataset counts."""
    return _UNITS.get(dataset.rpartition("/")[2], "rows")


def wave_datasets(store: Store, table: str) -> list[str]:
    """`waves/<n>/<table>` of the waves that `knowledge` was made from, in the order of n.

    Waves of an earlier, larger `generation.waves` may still lie beside them.
    """
    used = (name.split("/") for name in store.require("knowledge").inputs)
    numbers = sorted(int(parts[1]) for parts in used if parts[0] == "waves")
    names = [f"waves/{number}/{table}" for number in numbers]
    return [name for name in names if store.manifest(name) is not None]


def environment() -> dict[str, Any]:
    """Python, machine and the packages that decide results and speed."""
    packages: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "packages": packages,
    }


def _catalog_counts(tables: Mapping[str, pa.Table]) -> dict[str, int]:
    counts = {name: tables[name].num_rows for name in ("users", "items", "interactions")}
    splits = tables["interactions"]["split"]
    return counts | {f"rows in {name}": _count(splits, name) for name in SPLITS}


def _group_counts(groups: pa.Table) -> dict[str, int]:
    return {
        "groups": groups.group_by(["kind", "group_id"]).aggregate([]).num_rows,
        "entities by behaviour": _count(groups["route"], "collaborative"),
        "entities by attributes": _count(groups["route"], "attribute"),
    }


def _knowledge_counts(knowledge: pa.Table, is_refresh: bool) -> dict[str, int]:
    """Of a refresh, kept and written rows apart."""
    waves = knowledge["wave"].to_numpy()
    failed = int((knowledge["error"].to_numpy() != "").sum())
    kept = int((waves == 0).sum()) if is_refresh else 0
    texts = {"texts": len(waves) - failed}
    if is_refresh:
        texts = {"texts kept": kept, "texts written now": len(waves) - kept - failed}
    return texts | {"error rows": failed, "waves": len(np.unique(waves))}


def _malformed(store: Store) -> dict[str, int]:
    """Answers that were encoded whole, of a framework that asks for a form."""
    counts = store.require("features").facts.get("malformed")
    return {"malformed answers": sum(counts.values())} if counts else {}


def _stage(name: str, manifests: list[Manifest], counts: dict[str, int]) -> dict[str, Any]:
    return {
        "stage": name,
        "is_done": bool(manifests),
        "counts": counts,
        "seconds": sum(manifest.seconds for manifest in manifests) if manifests else None,
        "facts": manifests[-1].facts if manifests else {},
    }


def _check_stage(store: Store, counts: dict[str, int]) -> dict[str, Any]:
    """Most of its time goes into the fits and the controls, which may have had several tries."""
    parts = _manifests(store, _check_datasets(store))
    tries = [manifest for manifest in parts if manifest.dataset != "ctr"]
    return _stage("check", parts, counts) | {"facts": {}, "is_whole": _is_whole(tries)}


def _check_datasets(store: Store) -> list[str]:
    """`ctr`, and what was made for it alone, in the order of the flow."""
    fits = store.manifest("fits")
    encoded = [name for name in fits.inputs if name.startswith("controls/")] if fits else []
    return [*encoded, "fits", "ctr"]


def _is_whole(manifests: list[Manifest]) -> bool | None:
    """Whether datasets took the seconds that their manifests say, or their last tries did.

    Each tells how many of its rows the last try wrote; None if one is of an older program.
    """
    known = [manifest.facts.get("steps", manifest.facts) for manifest in manifests]
    written = [facts.get("rows_written") for facts in known]
    pairs = list(zip(written, manifests, strict=True))
    if any(rows is not None and rows < manifest.num_rows for rows, manifest in pairs):
        return False
    return None if None in written else True


def _manifests(store: Store, names: list[str] | tuple[str, ...]) -> list[Manifest]:
    found = [store.manifest(name) for name in names]
    return [manifest for manifest in found if manifest is not None]


def _count(column: pa.ChunkedArray, value: str) -> int:
    return int((column.to_numpy() == value).sum())
