"""The prompts of a catalog that are likely to be the longest, and how many tokens they may be."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.frameworks import templates_for
from pipeline.catalog import Catalog
from pipeline.config import PromptSettings
from pipeline.prompts import TITLE_CHARS, Prompt, Prompts

# Characters of a token, for whoever has no tokenizer at hand: a small English vocabulary cuts
# most characters of other scripts into their bytes.
_PER_TOKEN_ASCII, _TOKENS_OTHER = 3.5, 2.5


def longest_prompts(
    catalog: Catalog, framework: str, settings: PromptSettings, count: int
) -> dict[str, list[Prompt]]:
    """So many prompts of users and of items: of the longest past, title and attributes."""
    templates = templates_for(framework, settings)
    prompts = Prompts(catalog.users, catalog.items, catalog.interactions, settings, templates)
    past = catalog.interactions.filter(pc.equal(catalog.interactions["split"], "knowledge"))
    events = past["user_id"].value_counts()
    place = pc.index_in(
        catalog.users["user_id"], value_set=pc.struct_field(events, "values")
    ).to_numpy(zero_copy_only=False)
    numbers = pc.struct_field(events, "counts").to_numpy()
    known = np.isfinite(place.astype(np.float64))
    sizes = np.zeros(catalog.users.num_rows, np.int64)
    sizes[known] = np.minimum(numbers[place[known].astype(np.int64)], settings.history_limit)
    bytes_of = _bytes_of(catalog.items)
    return {
        "user": prompts.take("user", _largest(sizes * 1000 + _bytes_of(catalog.users), count)),
        "item": prompts.take("item", _largest(bytes_of, count)),
    }


def likely_tokens(text: str) -> int:
    """About how many tokens a prompt is, rather too many."""
    plain = sum(character.isascii() for character in text)
    return round(plain / _PER_TOKEN_ASCII + (len(text) - plain) * _TOKENS_OTHER)


def _bytes_of(entities: pa.Table) -> np.ndarray:
    """Bytes of the title and the attributes of each: (entities,)."""
    sizes = np.zeros(entities.num_rows, np.int64)
    if "title" in entities.column_names:
        shown = pc.utf8_slice_codeunits(entities["title"], 0, TITLE_CHARS)
        sizes += pc.binary_length(shown).to_numpy()
    row = 0
    for chunk in entities["attributes"].chunks:
        lengths = pc.binary_length(chunk.items).to_numpy(zero_copy_only=False)
        ends = np.append(0, np.cumsum(lengths))
        offsets = chunk.offsets.to_numpy() - chunk.offsets[0].as_py()
        sizes[row : row + len(chunk)] += np.diff(ends[offsets]).astype(np.int64)
        row += len(chunk)
    return sizes


def _largest(sizes: np.ndarray, count: int) -> np.ndarray:
    """Places of the largest, in order: (count,) int64."""
    return np.sort(np.argsort(-sizes, kind="stable")[:count])
