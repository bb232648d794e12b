"""Who has no text of their own gets a mean over others' vectors, with what those have seen."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.build import feature_rows
from features.fallback import Means, owed_rows
from pipeline.errors import DataError
from pipeline.schemas import FEATURES, PROVENANCE, with_vector_width

WIDTH = 3
GROUPS = pa.table(
    {
        "kind": ["user"] * 5 + ["item"] * 2,
        "entity_id": ["a", "b", "c", "cold", "alone", "a", "x"],
        "group_id": ["g", "g", "h", "g", "nobody else", "g", "g"],
    }
)


def own(ids, vectors, asof=9, latest=None, events=None):
    """Own rows of users, or of (kind, id) pairs."""
    keys = [one if isinstance(one, tuple) else ("user", one) for one in ids]
    table = pa.table({"kind": [k for k, _ in keys], "entity_id": [e for _, e in keys]})
    zeros = [0] * len(keys)
    seen = (pa.repeat(asof, len(keys)), latest or zeros, events or zeros, ["asked"] * len(keys))
    vectors = np.asarray(vectors, np.float32).reshape(len(keys), WIDTH)
    return feature_rows(
        table, np.repeat("own", len(keys)), dict(zip(PROVENANCE, seen, strict=True)), vectors
    )


def rows_of(means, *keys):
    members = pa.table({"kind": [k for k, _ in keys], "entity_id": [e for _, e in keys]})
    return means.features_of(members)


def random_vectors(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)


def test_a_cold_user_gets_exactly_the_mean_of_its_groups_own_vectors_and_what_they_have_seen():
    vectors = random_vectors(3)
    means = Means(GROUPS, WIDTH)
    means.add(own(["a", "b", "c"], vectors, latest=[5, 7, 8], events=[2, 3, 4]))
    [row] = rows_of(means, ("user", "cold")).to_pylist()
    assert row.pop("vector") == np.float32(vectors[:2].astype(np.float64).mean(axis=0)).tolist()
    assert row == {
        "kind": "user",
        "entity_id": "cold",
        "source": "group",
        "asof": 9,
        "latest_source": 7,
        "source_events": 5,
        "prompt_hash": "",
    }


def test_a_group_without_a_text_gets_the_mean_of_its_kind_and_a_kind_without_one_zeros():
    vectors = random_vectors(3)
    means = Means(GROUPS, WIDTH)
    means.add(own(["a", "b", "c"], vectors, latest=[5, 7, 8], events=[2, 3, 4]))
    table = rows_of(means, ("user", "alone"), ("item", "x"))  # the group g of items is another one
    assert table.schema == with_vector_width(FEATURES, WIDTH)
    kind, nothing = table.to_pylist()
    assert kind["source"] == "default"
    assert kind["vector"] == pytest.approx(vectors.mean(axis=0))
    assert [kind[name] for name in PROVENANCE] == [9, 8, 9, ""]
    assert nothing["source"] == "none"
    assert nothing["vector"] == [0.0] * WIDTH
    assert [nothing[name] for name in PROVENANCE] == [0, 0, 0, ""]


def test_the_oldest_of_asofs_does_not_hide_the_latest():
    means = Means(GROUPS, WIDTH)
    for user, asof in (("a", 4), ("b", 12)):
        means.add(own([user], random_vectors(1), asof=asof))
    assert rows_of(means, ("user", "cold"))["asof"].to_pylist() == [12]


@given(st.lists(st.integers(0, 3), max_size=4))
def test_a_mean_has_the_same_bits_in_whatever_parts_its_rows_come(borders):
    """As after a kill; means of an earlier part, if any, are no texts."""
    whole = own(["a", "b", "c"], random_vectors(3))
    once = Means(GROUPS, WIDTH)
    once.add(whole)
    again, borders = Means(GROUPS, WIDTH), [0, *sorted(borders), 3]
    for start, stop in pairwise(borders):
        again.add(whole.slice(start, stop - start))
    again.add(rows_of(once, ("user", "cold")))
    keys = ("user", "cold"), ("user", "alone")
    assert rows_of(again, *keys).equals(rows_of(once, *keys))


def test_an_entity_of_no_group_is_refused():
    with pytest.raises(DataError, match=r"1 entities, such as \['ghost'\], are in no group"):
        rows_of(Means(GROUPS, WIDTH), ("user", "ghost"))
    with pytest.raises(DataError, match="are in no group"):
        Means(GROUPS, WIDTH).add(own(["ghost"], random_vectors(1)))


def knowledge(rows):
    names = ["kind", "entity_id", "text", "error"]
    return pa.table([list(column) for column in zip(*rows, strict=True)], names=names)


def told(table):
    return list(zip(table["kind"].to_pylist(), table["entity_id"].to_pylist(), strict=True))


USERS = [
    ("user", "cold", "", "prompt too long"),
    ("user", "b", "likes war", ""),
    ("user", "alone", " ", ""),
    ("user", "a", "likes cake", ""),
    ("user", "c", "half", "failed"),
]


def test_texts_are_owed_in_their_order_and_all_other_entities_in_that_of_groups():
    texts, others = owed_rows(knowledge(USERS), GROUPS)  # nothing was written about items
    assert told(texts) == [("user", "b"), ("user", "a")]
    users = [("user", "c"), ("user", "cold"), ("user", "alone")]
    assert told(others) == [*users, ("item", "a"), ("item", "x")]


def test_where_no_text_is_usable_the_encoder_sees_all_rows_since_it_knows_the_width():
    blank = knowledge([(kind, entity, "", "failed") for kind, entity, _, _ in USERS])
    texts, others = owed_rows(blank, GROUPS)
    assert texts.equals(blank)
    assert told(others) == [("item", "a"), ("item", "x")]


def test_partial_knowledge_of_a_kind_is_refused():
    with pytest.raises(DataError, match=r"no row of 1 entities of groups, such as \['cold'\]"):
        owed_rows(knowledge(USERS[1:]), GROUPS)
    with pytest.raises(DataError, match="knowledge holds no row; run `laser generate`"):
        owed_rows(knowledge(USERS).slice(0, 0), GROUPS)
