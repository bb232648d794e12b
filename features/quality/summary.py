"""The quality of a run's texts, per kind, as plain JSON.

KNOWLEDGE is taken table by table, and what compares texts with each other takes a sample of at
most `MOST_COMPARED` rows of a kind, so memory is bounded but for the keys of the entities.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.build import count_malformed
from features.frameworks.framework import Read
from features.measures import ratio
from features.quality.agreement import CatalogFacts
from features.quality.counts import LOOP, count_texts, shares_of, with_text
from features.quality.ngrams import count_shared
from pipeline.schemas import KINDS, KNOWLEDGE

MOST_COMPARED = 20_000
_SAMPLED = ["kind", "entity_id", "prompt_hash", "text", "token_ids", "relaxed_tokens", "error"]
COLUMNS = [*_SAMPLED, "finish_reason", "relaxed_cost", "drafted_by_source", "accepted_by_source"]


@dataclass(frozen=True)
class TextMeasures:
    """What one run's texts are like, and the rows that are compared with others."""

    kinds: dict[str, dict[str, Any]]
    sample: pa.Table  # of KNOWLEDGE, in the order of the rows asked for


def choose_rows(kinds: pa.ChunkedArray, seed: int, most: int = MOST_COMPARED) -> np.ndarray:
    """Row numbers of at most `most` rows of each kind, ascending; `kinds` is KNOWLEDGE's column."""
    rng = np.random.default_rng(seed)
    rows = [np.flatnonzero(pc.equal(kinds, kind).to_numpy()) for kind in KINDS]
    chosen = [some if len(some) <= most else rng.choice(some, most, replace=False) for some in rows]
    return np.sort(np.concatenate(chosen))


def measure_texts(
    tables: Iterable[pa.Table],
    chosen: np.ndarray,
    facts: Mapping[str, CatalogFacts],
    read: Read | None,
) -> TextMeasures:
    """Measure one run's texts.

    Args:
        tables: KNOWLEDGE with `COLUMNS`, in parts.
        chosen: numbers of the rows that are compared with others, over all parts.
        facts: of the catalog's users and items, by kind.
        read: how the framework reads an answer, None where it asks for no form.
    """
    sums: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    order = np.argsort(chosen, kind="stable")
    ascending, start = chosen[order], 0
    kept = [KNOWLEDGE.empty_table().select(_SAMPLED)]
    for table in tables:
        for kind in KINDS:
            rows = table.filter(pc.equal(table["kind"], kind))
            sums[kind] += count_texts(rows)
            sums[kind] += facts[kind].count(rows)
            if read is not None:
                sums[kind]["malformed"] += count_malformed(rows, read)[kind]
        stop = start + table.num_rows
        places = ascending[(ascending >= start) & (ascending < stop)] - start
        kept.append(table.select(_SAMPLED).take(pa.array(places)))
        start = stop
    sample = pa.concat_tables(kept).take(pa.array(np.argsort(order)))
    return TextMeasures(
        {kind: _of_kind(kind, sums[kind], sample, facts[kind], read is not None) for kind in KINDS},
        sample,
    )


def _of_kind(
    kind: str, sums: Counter[str], sample: pa.Table, facts: CatalogFacts, has_form: bool
) -> dict[str, Any]:
    rows = with_text(sample.filter(pc.equal(sample["kind"], kind)))
    shared, ngrams = count_shared(rows["token_ids"], LOOP)
    return (
        shares_of(sums)
        | {"malformed_share": ratio(sums["malformed"], sums["texts"]) if has_form else None}
        | {"shared_of_texts": rows.num_rows, "shared_share": ratio(shared, ngrams)}
        | {"catalog": facts.agreement(sums)}
    )


def summarise(
    ours: TextMeasures,
    plain: TextMeasures | None = None,
    similarity: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, Any]]:
    """One summary per kind: our texts, the plain ones, and how near they are."""
    return {
        kind: {
            "texts": ours.kinds[kind],
            "plain": plain.kinds[kind] if plain else None,
            "similarity": similarity[kind] if similarity else None,
        }
        for kind in KINDS
    }
