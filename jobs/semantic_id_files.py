"""The dataset `semantic_ids`: ids, the codebooks they are of, and who has left with which id.

Also the run whose ids go on holding, `semantic_ids.from_run` of the config.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.generative.kept_ids import GivenIds
from pipeline.generative.semantic_ids import ItemTokenizer, load_tokenizer
from pipeline.generative_config import SemanticIdSettings
from pipeline.parts import append_part, list_parts, read_parts
from pipeline.runs import open_run
from pipeline.schemas import SEMANTIC_IDS
from pipeline.store import Store

DATASET = "semantic_ids"
CODEBOOKS = "codebooks.npz"
LEFT = "left"  # folder of SEMANTIC_IDS of the items that have left the catalog
_FREE = {"from_run", "rq_vae"}  # settings that do not matter to codebooks that are there
_UNTIL = "train"  # who is warm where a manifest does not say: there was no choice


def write_ids(folder: Path, ids: GivenIds, left: GivenIds | None, tokenizer: ItemTokenizer) -> None:
    """Fill the folder of the dataset."""
    append_part(folder, _as_table(ids), SEMANTIC_IDS, DATASET)
    tokenizer.save(folder / CODEBOOKS)
    if left is not None and len(left.codes):
        (folder / LEFT).mkdir()
        append_part(folder / LEFT, _as_table(left), SEMANTIC_IDS, DATASET)


def read_ids(store: Store) -> GivenIds:
    """All ids that are given: those of the catalog first, in its order, then of who has left.

    Raises:
        DataError: the dataset is missing or damaged.
    """
    listed = store.read(DATASET)
    left = read_parts(list_parts(store.files.local(DATASET) / LEFT), SEMANTIC_IDS)
    table = pa.concat_tables([listed, left])
    codes = table["codes"].combine_chunks()
    length = len(codes[0]) if len(codes) else 1
    return GivenIds(
        table["item_id"].combine_chunks(),
        codes.flatten().to_numpy().reshape(-1, length),
        table["is_warm"].to_numpy(),
        table["collides"].to_numpy(),
        np.arange(table.num_rows) < listed.num_rows,
    )


def read_tokenizer(store: Store) -> ItemTokenizer:
    """The codebooks of a run's ids.

    Raises:
        DataError: they are missing or damaged.
    """
    return load_tokenizer(store.files.local(DATASET) / CODEBOOKS)


def who_is_warm(config: RunConfig) -> dict[str, str]:
    """Latest split that makes an item warm, as a setting; the default is left out."""
    until = config.recommender.until
    return {} if until == _UNTIL else {"until": until}


def open_earlier(config: RunConfig) -> Store | None:
    """The run of `semantic_ids.from_run`, None if there is none. Looks at its manifest only.

    Raises:
        DataError: it has no semantic IDs.
        ConfigError: ids of another kind are asked for than it has.
    """
    name = config.semantic_ids.from_run
    if name is None:
        return None
    earlier = open_run(config.artifacts, name)
    manifest = earlier.manifest(DATASET)
    if manifest is None:
        raise DataError(
            f"semantic_ids.from_run is {name}, but {earlier.files.address} has no finished "
            f"{DATASET}; make that run's first (`make semantic-ids`), or leave "
            "semantic_ids.from_run out"
        )
    theirs = SemanticIdSettings(**manifest.settings["semantic_ids"])
    names = [name for name in SemanticIdSettings.model_fields if name not in _FREE]
    wanted = {name: getattr(theirs, name) for name in names}
    ours = config.semantic_ids
    differing = [
        f"{name} {wanted[name]!r}" for name in names if getattr(ours, name) != wanted[name]
    ]
    until = manifest.settings.get("until", _UNTIL)
    if until != config.recommender.until:
        differing.append(f"recommender.until {until!r}")
    if differing:
        raise ConfigError(
            f"semantic_ids.from_run is {name}, whose ids were made with other settings than these: "
            f"{', '.join(differing)}; set the same, or leave semantic_ids.from_run out to fit anew "
            "(and train the recommender anew)"
        )
    return earlier


def require_same_content(
    earlier: Store, made: Mapping[str, Any], width: int, tokenizer: ItemTokenizer
) -> None:
    """Check that the codebooks of `earlier` can encode vectors `made` so.

    Raises:
        ConfigError: they were fitted on vectors of another encoder, or of other texts.
    """
    theirs = earlier.require(DATASET).facts.get("content_made_with", {})
    names = sorted(theirs.keys() | made.keys())
    differing = [name for name in names if theirs.get(name) != made.get(name)]
    if tokenizer.scaling.widths[0] != width:
        differing.append(f"width {tokenizer.scaling.widths[0]}, now {width}")
    if differing:
        raise ConfigError(
            f"semantic_ids.from_run: the codebooks of {earlier.files.address} are of content "
            f"vectors that were made otherwise ({', '.join(differing)}), so they say nothing of "
            "these; encode as that run did, or leave semantic_ids.from_run out to fit anew (and "
            "train the recommender anew)"
        )


def _as_table(ids: GivenIds) -> pa.Table:
    """SEMANTIC_IDS."""
    flat = pa.array(ids.codes.ravel(), pa.int32())
    offsets = pa.array(np.arange(len(ids.codes) + 1) * ids.codes.shape[1], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, flat)
    columns = [ids.item_ids, lists, pa.array(ids.is_warm), pa.array(ids.collides)]
    return pa.table(dict(zip(SEMANTIC_IDS.names, columns, strict=True)))
