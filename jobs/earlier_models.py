"""Models of an earlier run that serve in this one: `recommender.from_run` of the config.

The key is the recommender's, and decides for the drafter and the retriever too: these were trained
beside one recommender, and are of no use with another. What was trained is copied, so a run does
not need the earlier one once its stages are done, and may itself be what a later one goes on from.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.semantic_id_files import read_ids
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.generative.codes_hash import CODES_HASH, codes_hash
from pipeline.generative.kept_ids import GivenIds
from pipeline.run_files import MANIFEST
from pipeline.runs import open_run
from pipeline.store import Manifest, Plan, Store

_RECOMMENDER = "recommender"
_REMEDY = "leave recommender.from_run out to train anew"
# Settings that are of a training only: what they did is in the weights.
_FREE = {
    *("from_run", "training", "dropout", "placeholder_groups"),
    *("alpha", "teacher_contexts", "teacher_beams"),
    *("temperature", "contrastive_weight", "ranking_weight"),
}


@dataclass(frozen=True)
class EarlierModel:
    """A finished dataset of an earlier run."""

    run: str
    store: Store
    manifest: Manifest
    settings: dict[str, Any]  # what the dataset that it becomes here depends on, besides inputs

    @property
    def folder(self) -> Path:
        """Its files."""
        return self.store.files.local(self.manifest.dataset)

    def plan(self, store: Store, inputs: list[str]) -> Plan:
        """The dataset of the same name in this run."""
        return store.plan(self.manifest.dataset, self.settings, inputs)

    def copy_to(self, folder: Path) -> None:
        """Have all its files in `folder`, which may exist."""
        ignored = shutil.ignore_patterns(MANIFEST)
        shutil.copytree(self.folder, folder, ignore=ignored, dirs_exist_ok=True)

    def facts(self) -> dict[str, Any]:
        """Its facts, with the run that they are from."""
        return self.manifest.facts | {"from_run": self.run}


def open_earlier_model(config: RunConfig, dataset: str) -> EarlierModel | None:
    """The dataset in the run of `recommender.from_run`, None without one. Looks at manifests only.

    Raises:
        DataError: it is not there, or was trained beside another recommender than that run has.
        ConfigError: the config asks for a model of another kind.
    """
    name = config.recommender.from_run
    if name is None:
        return None
    earlier = open_run(config.artifacts, name)
    manifest = earlier.manifest(dataset)
    if manifest is None:
        raise DataError(
            f"recommender.from_run is {name}, but {earlier.files.address} has no finished "
            f"{dataset}; make that run's first, or {_REMEDY}"
        )
    section = dataset.rpartition("/")[2]
    model = EarlierModel(name, earlier, manifest, _settings(config, section, name, manifest))
    if section != _RECOMMENDER:
        _require_beside(model)
    return model


def require_own_copy(store: Store, model: EarlierModel) -> None:
    """Check that this run has the recommender that `model` was trained beside.

    Raises:
        DataError: it has another one.
    """
    own = store.require(_RECOMMENDER).settings.get("earlier")
    if own != model.store.require(_RECOMMENDER).version:
        raise DataError(
            f"{store.files.address}/{_RECOMMENDER} is not what {model.run} has now "
            "(recommender.from_run); run `laser recommender` again"
        )


def require_same_ids(store: Store, model: EarlierModel) -> dict[str, str]:
    """Check that an item of both runs has the ID here by which the recommender `model` knows it.

    Items that have left count. Nor may the recommender be taken to know an item that is new, as it
    would where codebooks were fitted anew.

    Returns: facts that tell which IDs this run has, and which ones were trained on.

    Raises:
        DataError: an item has another one.
    """
    own, theirs = read_ids(store), read_ids(model.store)
    facts, name = model.manifest.facts, model.run
    if facts.get(CODES_HASH) != _hash(theirs):
        raise DataError(
            f"{model.store.files.address}/{_RECOMMENDER} was trained on other semantic IDs than "
            f"there are now; run `laser recommender` of {name} again, or {_REMEDY}"
        )
    differing = _differing(own, theirs)
    if len(differing):
        raise DataError(
            f"{store.files.address}/semantic_ids: {len(differing)} items, such as "
            f"{differing[:3].to_pylist()}, have not the semantic ID that {name} knows them by, "
            "where the recommender learnt what each means; set semantic_ids.from_run to "
            f"{name} and run `laser semantic-ids` again, or {_REMEDY}"
        )
    return {
        CODES_HASH: _hash(own),
        "trained_on": facts.get("trained_on", facts[CODES_HASH]),
    }


def _settings(config: RunConfig, section: str, name: str, manifest: Manifest) -> dict[str, Any]:
    """What the config asks for, which the earlier model has to be."""
    own = getattr(config, section)
    ours = own.model_dump(mode="json", exclude=_FREE)
    theirs = type(own)().model_dump(mode="json", exclude=_FREE)  # of before there was a choice
    theirs |= manifest.settings.get(section, {})
    differing = [f"{section}.{key} {theirs[key]!r}" for key in ours if ours[key] != theirs[key]]
    if differing:
        raise ConfigError(
            f"recommender.from_run is {name}, whose {manifest.dataset} is of other settings than "
            f"these: {', '.join(differing)}; set the same, or {_REMEDY}"
        )
    return {section: ours, "earlier": manifest.version}


def _require_beside(model: EarlierModel) -> None:
    used = model.manifest.inputs.get(_RECOMMENDER)
    if used != model.store.require(_RECOMMENDER).version:
        raise DataError(
            f"{model.store.files.address}/{model.manifest.dataset} was trained beside another "
            f"recommender than {model.run} has now; make it anew there, or {_REMEDY}"
        )


def _differing(own: GivenIds, theirs: GivenIds) -> pa.Array:
    """Items that do not have the ID by which they are known, or are not known and yet called so."""
    place = pc.index_in(own.item_ids, value_set=theirs.item_ids)
    is_new = pc.is_null(place).to_numpy(zero_copy_only=False)
    is_other = own.is_warm.copy()  # of new ones
    old, known = np.flatnonzero(~is_new), theirs.take(place.drop_null().to_numpy())
    is_other[old] = own.is_warm[old] != known.is_warm
    if own.codes.shape[1] != theirs.codes.shape[1]:
        is_other[old] = True
    else:
        is_other[old] |= (own.codes[old] != known.codes).any(axis=1)
    return own.item_ids.filter(pa.array(is_other))


def _hash(ids: GivenIds) -> str:
    """Of those in the catalog."""
    listed = ids.take(ids.is_listed)
    return codes_hash(listed.item_ids, listed.codes)
