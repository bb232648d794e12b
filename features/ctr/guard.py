"""What features must show before they are joined to CTR rows: whose they are, what they have seen.

It fails closed: what does not say that it is of the past is refused. How far that goes depends on
the protocol of the split. With `global_time` one clock parts the past from all CTR rows, so every
vector must be of before the first of them. With `per_user_prefix` a user's past may be later than
another's CTR row, so a mean over the texts of others is not safe in time, nor is an item's text:
there a user's own text is held to that user's own rows, and nothing else is.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.ctr.data import CtrData
from pipeline.errors import DataError
from pipeline.knowledge import entities
from pipeline.schemas import PROVENANCE, VECTOR_SOURCES
from pipeline.times import with_date

_SAID = ("source", *PROVENANCE)
_AGAIN = "move the folder of `features` away and run `laser encode` again"

_LEAKY_LISTS = (
    "so the check would leak; set recommender.until: knowledge and recommendation.history: past, "
    "and run recommend again"
)


def require_rows(data: CtrData, features: pa.Table, knowledge: pa.Table) -> None:
    """Check that every entity of the catalog has one row, and every own vector its knowledge.

    Raises:
        DataError: an entity has no row or several, a row does not say what it has seen, or an own
            vector has no row in knowledge.
    """
    if not features.num_rows:
        raise DataError("features holds no row; run `laser generate` and `laser encode`")
    _require_columns(features)
    repeated = features.num_rows - len(pc.unique(entities(features)))
    if repeated:
        raise DataError(f"features holds {repeated} rows of entities that have another row")
    for kind, ids in (("user", data.user_ids), ("item", data.item_ids)):
        rows = features.filter(pc.equal(features["kind"], kind))
        lacking = ids.filter(pc.invert(pc.is_in(ids, value_set=rows["entity_id"])))
        if len(lacking):
            raise DataError(
                f"features has no row of {len(lacking)} {kind}s of the catalog, such as "
                f"{lacking[:3].to_pylist()}; run `laser generate` and `laser encode` again"
            )
    own = _own(features)
    is_orphan = pc.invert(pc.is_in(entities(own), value_set=entities(knowledge)))
    _refuse(own, is_orphan, f"have no row in knowledge; {_AGAIN}")


def require_provenance(features: pa.Table, knowledge: pa.Table) -> None:
    """Check that what features have seen is possible, and of own ones what their knowledge says.

    Raises:
        DataError: provenance is impossible, or is not that of the row in knowledge.
    """
    is_known = pc.is_in(features["source"], value_set=pa.array(VECTOR_SOURCES))
    _refuse(features, pc.invert(is_known), f"have a source out of {VECTOR_SOURCES}; {_AGAIN}")
    _refuse(features, pc.less(features["asof"], 0), f"are as of a time before 1970; {_AGAIN}")
    is_odd = pc.greater(features["latest_source"], features["asof"])
    _refuse(features, is_odd, f"have seen what is later than they are as of; {_AGAIN}")
    is_odd = pc.and_(
        pc.greater(features["source_events"], 0), pc.equal(features["latest_source"], 0)
    )
    _refuse(features, is_odd, f"have seen interactions of no time; {_AGAIN}")
    is_own, has_prompt = (
        pc.equal(features["source"], "own"),
        pc.not_equal(features["prompt_hash"], ""),
    )
    _refuse(
        features,
        pc.and_(has_prompt, pc.invert(is_own)),
        f"answer a prompt, and are not called their own; {_AGAIN}",
    )
    own = _own(features)
    _refuse(own, pc.equal(own["prompt_hash"], ""), f"do not say of which prompt; {_AGAIN}")
    place = pc.index_in(entities(own), value_set=entities(knowledge))
    for name in PROVENANCE:
        is_other = pc.not_equal(own[name], knowledge[name].take(place))
        words = f"have another {name} than their row in knowledge; {_AGAIN}"
        _refuse(own, pc.fill_null(is_other, True), words)


def require_past_only(data: CtrData, features: pa.Table, protocol: str) -> None:
    """Check that no vector has seen what the CTR rows are about, as far as the protocol allows.

    `global_time`: every vector, means included, is as of before the first CTR row of all; equal
    times are refused, since one clock puts ties on one side. `per_user_prefix`: no user's own text
    saw an interaction later than that user's first CTR row; equal times pass, since there ties may
    fall on both sides. Means are not held to it, see above.

    Raises:
        DataError: some did; up to 3 are named.
    """
    if protocol == "global_time":
        first = int(data.timestamps.min())
        known = features.filter(pc.not_equal(features["source"], "none"))
        words = (
            f"are as of {with_date(first)} or later, when CTR rows begin, so the check would leak; "
        )
        remedy = "run `laser catalog` and all stages after it again"
        _refuse(known, pc.greater_equal(known["asof"], first), words + remedy)
        return
    begins = _first_rows(data)
    own = _own(features)
    rows = own.filter(pc.equal(own["kind"], "user"))
    owners = pc.index_in(rows["entity_id"], value_set=data.user_ids.combine_chunks())
    rows, owners = rows.filter(pc.is_valid(owners)), owners.drop_null().to_numpy()
    late = rows["latest_source"].to_numpy() > begins[owners]
    if late.any():
        names = rows["entity_id"].filter(pa.array(late)).to_pylist()[:3]
        raise DataError(
            f"knowledge of {late.sum()} users, such as {names}, saw interactions later than "
            "their first CTR row, so the check would leak; prompts may use split knowledge only"
        )


def require_past_lists(
    data: CtrData, lists: pa.Table, splits: Sequence[str], protocol: str
) -> None:
    """Check that every user has one row of RECOMMENDATIONS, and that none has seen a CTR row.

    They must be made of interactions of the split `knowledge` alone, by histories and by the model
    that was trained. With `global_time` they are as of before the first CTR row of all; with
    `per_user_prefix` the user's own latest one is not later than that user's first CTR row.

    Raises:
        DataError: a user has no row or several, or a list would leak.
    """
    ids = lists["user_id"]
    if len(pc.unique(ids)) < len(ids):
        raise DataError("recommendations holds users who stand twice; run recommend again")
    lacking = data.user_ids.filter(pc.invert(pc.is_in(data.user_ids, value_set=ids)))
    if len(lacking):
        raise DataError(
            f"recommendations has no row of {len(lacking)} users of the catalog, such as "
            f"{lacking[:3].to_pylist()}; run recommend again"
        )
    if list(splits) != ["knowledge"]:
        raise DataError(f"recommendations know the splits {list(splits)}, {_LEAKY_LISTS}")
    latest, asof = (lists[name].to_numpy() for name in ("latest_source", "asof"))
    if (latest > asof).any() or (asof < 0).any():
        raise DataError("recommendations have seen what is later than they are as of; run again")
    if protocol == "global_time":
        is_late = asof >= data.timestamps.min()
    else:
        is_late = latest > _first_rows(data)[_places_of(ids, data)]
    if is_late.any():
        names = ids.filter(pa.array(is_late))[:3].to_pylist()
        raise DataError(
            f"recommendations of {is_late.sum()} users, such as {names}, are as of when the CTR "
            f"rows have begun, {_LEAKY_LISTS}"
        )


def _first_rows(data: CtrData) -> np.ndarray:
    """Time of the first CTR row of every user, the end of time where there is none: (users,)."""
    begins = np.full(len(data.user_ids), np.iinfo(np.int64).max)
    np.minimum.at(begins, data.users, data.timestamps)
    return begins


def _places_of(ids: pa.ChunkedArray, data: CtrData) -> np.ndarray:
    places = pc.index_in(ids, value_set=data.user_ids.combine_chunks())
    if places.null_count:
        raise DataError("recommendations name users that the catalog lacks; run recommend again")
    return places.to_numpy()


def _require_columns(features: pa.Table) -> None:
    lacking = [name for name in _SAID if name not in features.column_names]
    if lacking:
        raise DataError(f"features has no column {', '.join(lacking)}; {_AGAIN}")
    for name in _SAID:
        _refuse(features, pc.is_null(features[name]), f"do not say their {name}; {_AGAIN}")


def _own(features: pa.Table) -> pa.Table:
    return features.filter(pc.equal(features["source"], "own"))


def _refuse(features: pa.Table, is_wrong: pa.ChunkedArray, words: str) -> None:
    """Raise DataError if anything is wrong, and name up to 3 entities."""
    wrong = features.filter(is_wrong)
    if wrong.num_rows:
        first = wrong.slice(0, 3).select(["kind", "entity_id"]).to_pylist()
        names = [f"{row['kind']}/{row['entity_id']}" for row in first]
        raise DataError(f"features of {wrong.num_rows} entities, such as {names}, {words}")
