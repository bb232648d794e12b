"""What KNOWLEDGE says of its texts, as sums that add up over tables, and shares of these."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from features import acceptance
from features.build import usable_text
from features.measures import ratio
from features.quality.ngrams import count_distinct, count_looping

LOOP = 8  # tokens in a row that a text should not say twice
_VARIETY = 3
_POOLS = ("group", "global")  # of SOURCES


def with_text(knowledge: pa.Table) -> pa.Table:
    """Rows with a usable text."""
    return knowledge.filter(pc.not_equal(usable_text(knowledge), ""))


def count_texts(knowledge: pa.Table) -> Counter[str]:
    """Sums over rows of one kind; all but `rows` are over those with a usable text."""
    texts = with_text(knowledge)
    distinct, trigrams = count_distinct(texts["token_ids"], _VARIETY)
    return Counter(
        {
            "rows": knowledge.num_rows,
            "texts": texts.num_rows,
            "tokens": _sum(pc.list_value_length(texts["token_ids"])),
            "cut": _sum(pc.equal(texts["finish_reason"], "length")),
            "relaxed_tokens": _sum(texts["relaxed_tokens"]),
            "nats": _sum(pc.cast(texts["relaxed_cost"], pa.float64())),
            "looping": count_looping(texts["token_ids"], LOOP),
            "trigrams": trigrams,
            "distinct_trigrams": distinct,
            "pool_tokens": sum(
                row["accepted"] for row in acceptance.by_source(texts) if row["source"] in _POOLS
            ),
        }
    )


def shares_of(sums: Counter[str]) -> dict[str, Any]:
    """Counts, means and shares; a share of nothing is None."""
    texts, tokens = sums["texts"], sums["tokens"]
    return {
        "rows": sums["rows"],
        "texts": texts,
        "tokens": tokens,
        "tokens_per_text": ratio(tokens, texts),
        "cut_share": ratio(sums["cut"], texts),
        "nats_per_token": ratio(sums["nats"], tokens),
        "relaxed_share": ratio(sums["relaxed_tokens"], tokens),
        "looping_share": ratio(sums["looping"], texts),
        "distinct_trigram_share": ratio(sums["distinct_trigrams"], sums["trigrams"]),
        "pool_share": ratio(sums["pool_tokens"], tokens),
    }


def _sum(column: Any) -> Any:
    return pc.sum(column).as_py() or 0
