"""The join of vectors to entities, and the guard against knowledge from the future."""

import numpy as np
import pyarrow as pa
import pytest

from features.ctr.data import make_ctr_data
from features.ctr.join import join_vectors
from pipeline.errors import DataError
from pipeline.schemas import FEATURES, INTERACTIONS, ITEMS, USERS, with_vector_width

USER_IDS, ITEM_IDS = list("abcd"), list("wxyz")
VECTORS = {
    ("user", "a"): [1.0, 5.0],
    ("user", "b"): [3.0, 5.0],
    ("user", "d"): [9.0, 9.0],
    ("item", "w"): [0.0, 1.0],
    ("item", "x"): [0.0, 3.0],
}


def data():
    rows = [
        ("a", "w", 4.0, 1, 10, "train"),
        ("b", "x", 2.0, 0, 11, "train"),
        ("c", "y", 4.0, 1, 12, "valid"),
        ("d", "y", 2.0, 0, 13, "valid"),
        ("d", "z", 4.0, 1, 14, "test"),
    ]
    interactions = pa.table(list(zip(*rows, strict=True)), schema=INTERACTIONS)
    users = pa.table([USER_IDS, [{}] * 4], schema=USERS)
    items = pa.table([ITEM_IDS, ITEM_IDS, [{}] * 4], schema=ITEMS)
    return make_ctr_data(interactions, users, items, 2)


def features(vectors=VECTORS, without=()):
    kinds, ids = zip(*[*vectors, *without], strict=True)
    rows = [*vectors.values(), *([[0.0, 0.0]] * len(without))]
    sources = ["own"] * len(vectors) + ["none"] * len(without)
    return pa.table([kinds, ids, sources, rows], schema=with_vector_width(FEATURES, 2))


def knowledge(latest=None):
    keys = [("user", u) for u in USER_IDS] + [("item", i) for i in ITEM_IDS]
    return pa.table(
        {
            "kind": [kind for kind, _ in keys],
            "entity_id": [entity for _, entity in keys],
            "latest_source": pa.array([(latest or {}).get(e, 0) for _, e in keys], pa.int64()),
        }
    )


def test_vectors_are_standardised_over_entities_of_train_rows():
    vectors = join_vectors(data(), features(), knowledge())
    assert vectors.users[:2, 0].tolist() == [-1.0, 1.0]
    assert vectors.users[:2, 1].tolist() == [0.0, 0.0]
    assert vectors.users[3].tolist() == [7.0, 4.0, 0.0]
    assert vectors.items[:2].tolist() == [[0.0, -1.0, 0.0], [0.0, 1.0, 0.0]]


def test_an_entity_without_vector_is_zero_and_flagged():
    without = features(without=[("user", "c")])
    for table in (features(), without):
        vectors = join_vectors(data(), table, knowledge())
        assert vectors.users[2].tolist() == [0.0, 0.0, 1.0]
        assert vectors.users[:, -1].tolist() == [0.0, 0.0, 1.0, 0.0]


def test_coverage_counts_rows():
    vectors = join_vectors(data(), features(), knowledge())
    assert vectors.coverage(data(), "valid") == {"user": 0.5, "item": 0.0}


def test_knowledge_up_to_the_first_row_passes_and_later_knowledge_is_refused():
    join_vectors(data(), features(), knowledge({"a": 10, "d": 13}))
    with pytest.raises(DataError, match=r"2 users, such as \['a', 'd'\]"):
        join_vectors(data(), features(), knowledge({"a": 11, "d": 14, "b": 11}))


def test_features_without_their_knowledge_row_are_refused():
    with pytest.raises(DataError, match=r"2 entities, such as \['user/a', 'user/b'\]"):
        join_vectors(data(), features(), knowledge().slice(2))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (features().slice(0, 0), "holds no row"),
        (pa.concat_tables([features(), features().slice(0, 2)]), "2 rows of entities"),
        (features({**VECTORS, ("user", "a"): [float("nan"), 1.0]}), "user vectors are not finite"),
    ],
)
def test_damaged_features_are_refused(table, message):
    with pytest.raises(DataError, match=message):
        join_vectors(data(), table, knowledge())


def test_a_kind_without_any_feature_is_all_missing():
    only_items = {key: vector for key, vector in VECTORS.items() if key[0] == "item"}
    vectors = join_vectors(data(), features(only_items), knowledge())
    assert vectors.users.tolist() == [[0.0, 0.0, 1.0]] * 4
    assert np.isfinite(vectors.items).all()


def test_no_trained_entity_with_a_vector_leaves_vectors_as_they_are():
    vectors = join_vectors(data(), features({("user", "d"): [9.0, 9.0]}), knowledge())
    assert vectors.users[3].tolist() == [9.0, 9.0, 0.0]


def test_ids_unknown_to_the_catalog_are_ignored_by_the_guard():
    known = knowledge({"a": 5})
    stranger = known.slice(0, 1).set_column(1, "entity_id", pa.array(["ghost"]))
    late = stranger.set_column(2, "latest_source", pa.array([99], pa.int64()))
    join_vectors(data(), features(), pa.concat_tables([known, late]))
