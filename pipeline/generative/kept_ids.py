"""Semantic IDs of a catalog that has changed: old items keep theirs, new ones get one beside them.

A recommender has learnt what each id means, so an item keeps its own whatever becomes of its text
or of what users do: with other codes the model would take it for another item. Its id may be less
true to it over time; that is seen in the health report, and mended by new codebooks and a new
training together. For the same reason the id of an item that has left is given to no other (but
for `bucket`, where an id means whoever is like that), and is its own again should it come back.

New items are encoded by content alone, as cold items are when codebooks are fitted: LightGCN
vectors of two trainings have no axis in common, so those of today say nothing to old codebooks.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.generative.collisions import Policy, resolve
from pipeline.generative.health import codebook_health, collisions, sampled, seen_prefixes
from pipeline.generative.item_vectors import ItemVectors
from pipeline.generative.semantic_ids import ItemContents, ItemTokenizer

_SAMPLE = 100_000  # items that an error is averaged over


@dataclass(frozen=True)
class GivenIds:
    """Items that have an id, in any order."""

    item_ids: pa.Array
    codes: np.ndarray  # (n, length of an id) int32
    is_warm: np.ndarray  # (n,) bool, when the codebooks were fitted: what the model has trained on
    collides: np.ndarray  # (n,) bool
    is_listed: np.ndarray  # (n,) bool, in the catalog; the others have left it

    def take(self, rows: np.ndarray) -> "GivenIds":
        """Some of them; `rows` are numbers or a mask."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        own = (self.codes, self.is_warm, self.collides, self.is_listed)
        return GivenIds(self.item_ids.take(pa.array(rows)), *(array[rows] for array in own))


@dataclass(frozen=True)
class ChangedCatalog:
    """Ids of all items of a catalog, in its order, and of those that have left it."""

    ids: GivenIds
    left: GivenIds
    is_new: np.ndarray  # (n,) bool
    nearest: np.ndarray  # (n, levels) int32, codes before the collision policy; of old items those
    # of their id
    items: ItemContents  # by content alone, warm as the codebooks know it
    vectors: ItemVectors


def assign_beside(
    item_ids: pa.Array,
    items: ItemContents,
    earlier: GivenIds,
    tokenizer: ItemTokenizer,
    policy: Policy,
) -> ChangedCatalog:
    """Ids of the items of a catalog, by the codebooks that those of `earlier` are of.

    Raises:
        ConfigError: more new items collide than there are counters or free codes.
    """
    place = pc.index_in(item_ids, value_set=earlier.item_ids)
    is_new = pc.is_null(place).to_numpy(zero_copy_only=False)
    kept = earlier.take(place.drop_null().to_numpy())
    old = np.flatnonzero(~is_new)
    is_warm, collides = np.zeros(len(items), bool), np.zeros(len(items), bool)
    is_warm[old], collides[old] = kept.is_warm, kept.collides
    items = _by_content(items, is_warm, tokenizer)
    vectors = tokenizer.vectors(items)
    new = vectors.take(is_new)
    quantizer = tokenizer.quantizer
    nearest = np.empty((len(items), tokenizer.levels), np.int32)
    nearest[old], nearest[is_new] = kept.codes[:, : tokenizer.levels], quantizer.encode(new)
    codes = np.empty((len(items), earlier.codes.shape[1]), np.int32)
    codes[old] = kept.codes
    codes[is_new] = resolve(
        policy,
        nearest[is_new],
        is_warm[is_new],
        tokenizer.codebook_size,
        lambda rows: quantizer.last_level_choices(new.take(rows)),
        earlier.codes,
    )
    collides |= collisions(nearest)[0]
    has_left = pc.invert(pc.is_in(earlier.item_ids, value_set=item_ids))
    left = earlier.take(has_left.to_numpy(zero_copy_only=False))
    ids = GivenIds(item_ids, codes, is_warm, collides, np.ones(len(items), bool))
    return ChangedCatalog(ids, left, is_new, nearest, items, vectors)


def changed_health(found: ChangedCatalog, tokenizer: ItemTokenizer, seed: int) -> dict[str, Any]:
    """Figures of a manifest: those of `codebook_health`, and what has changed.

    Usage and error by level are over old items, the error by the codes they keep. `content_error`
    is the share of the old items' variance that a first code chosen by content leaves over. Above
    the old items' figure, new ones are unlike what the codebooks were fitted on. (Later codes were
    fitted closely to old items, and leave over more of any other.)
    """
    is_new = found.is_new
    old = np.flatnonzero(~is_new)
    facts = codebook_health(found.items, tokenizer, found.vectors, found.nearest, seed, old)
    known = [(found.ids.codes, found.ids.is_warm), (found.left.codes, found.left.is_warm)]
    warm = np.concatenate([codes[own, : tokenizer.levels] for codes, own in known])
    both = np.concatenate([warm, found.nearest[is_new]])
    return facts | {
        "kept": len(old),
        "new": int(is_new.sum()),
        "left": int(found.left.is_listed.sum()),
        "reserved": len(found.left.codes),
        "new_prefix_seen": seen_prefixes(both, np.arange(len(both)) < len(warm)),
        "content_error": {
            "old": _content_error(found, tokenizer, old, seed),
            "new": _content_error(found, tokenizer, np.flatnonzero(is_new), seed),
        },
    }


def _by_content(items: ItemContents, is_warm: np.ndarray, tokenizer: ItemTokenizer) -> ItemContents:
    nothing = np.zeros((len(items), tokenizer.scaling.widths[1]), np.float32)
    nobody = np.zeros(len(items), bool)
    return replace(items, collaborative=nothing, has_collaborative=nobody, is_warm=is_warm)


def _content_error(
    found: ChangedCatalog, tokenizer: ItemTokenizer, rows: np.ndarray, seed: int
) -> float | None:
    """Over the items with a text of `rows`; None if there are none."""
    rows = sampled(rows[found.items.has_content[rows]], _SAMPLE, seed)
    old = sampled(np.flatnonzero(~found.is_new & found.items.has_content), _SAMPLE, seed)
    if not len(rows):
        return None
    vectors = found.vectors.take(rows)
    codes = tokenizer.quantizer.encode(vectors)[:, :1]
    width = vectors.widths[0]
    left = vectors.values - tokenizer.quantizer.reconstruct(codes)
    variance = found.vectors.values[old if len(old) else rows, :width].var(axis=0).sum()
    mean = np.square(left[:, :width]).sum(axis=1).mean()
    return round(float(mean / max(variance, 1e-12)), 4)
