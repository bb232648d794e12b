"""The join of vectors to entities, and the guard against knowledge from the future."""

import numpy as np
import pyarrow as pa
import pytest

from features.ctr.data import make_ctr_data
from features.ctr.join import join_vectors, sources_of
from pipeline.errors import DataError
from pipeline.schemas import FEATURES, INTERACTIONS, ITEMS, PROVENANCE, USERS, with_vector_width

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


def row(kind, entity, vector, source="own", latest=0, asof=9):
    prompt = f"about {kind} {entity}" if source == "own" else ""
    return (kind, entity, source, asof, latest, 2 if latest else 0, prompt, vector)


def features(vectors=VECTORS, latest=None, **others):
    """FEATURES: own vectors, those of `others` (such as c="group"), and `none` for the rest.

    `latest`: what own texts saw last; they are as of then, or of 9 at least.
    """
    latest = latest or {}
    keys = [("user", user) for user in USER_IDS] + [("item", item) for item in ITEM_IDS]
    rows = []
    for kind, entity in keys:
        seen = latest.get(entity, 2)
        if (kind, entity) in vectors:
            source = others.get(entity, "own")
            rows.append(row(kind, entity, vectors[kind, entity], source, seen, max(seen, 9)))
        else:
            rows.append(row(kind, entity, [0.0, 0.0], "none", 0, 0))
    return pa.table(list(zip(*rows, strict=True)), schema=with_vector_width(FEATURES, 2))


def knowledge(latest=None):
    """KNOWLEDGE of everyone, as `features` has it."""
    keys = [("user", user) for user in USER_IDS] + [("item", item) for item in ITEM_IDS]
    everyone = {key: [0.0, 0.0] for key in keys}
    return features(everyone, latest).select(["kind", "entity_id", *PROVENANCE])


def join(table, known=None, protocol="per_user_prefix"):
    return join_vectors(data(), table, known or knowledge(), protocol)


def changed(table, column, place, value):
    values = table[column].to_pylist()
    values[place] = value
    at = table.schema.get_field_index(column)
    return table.set_column(
        at, table.schema.field(at), pa.array(values, table.schema.field(at).type)
    )


def test_vectors_are_standardised_over_entities_of_train_rows():
    vectors = join(features())
    assert vectors.users[:2, 0].tolist() == [-1.0, 1.0]
    assert vectors.users[:2, 1].tolist() == [0.0, 0.0]
    assert vectors.users[3].tolist() == [7.0, 4.0, 0.0]
    assert vectors.items[:2].tolist() == [[0.0, -1.0, 0.0], [0.0, 1.0, 0.0]]


def test_an_entity_without_vector_is_zero_and_flagged():
    vectors = join(features())
    assert vectors.users[2].tolist() == [0.0, 0.0, 1.0]
    assert vectors.users[:, -1].tolist() == [0.0, 0.0, 1.0, 0.0]


def test_a_mean_over_others_is_flagged_and_takes_no_part_in_the_statistics():
    """a and b have train rows; b's vector is its group's, so a alone says what the mean is."""
    for source in ("group", "default"):
        vectors = join(features(b=source))
        assert vectors.users[0].tolist() == [0.0, 0.0, 0.0]
        assert vectors.users[1].tolist() == [2.0, 0.0, 1.0]
        assert vectors.users[3].tolist() == [8.0, 4.0, 0.0]


def test_sources_stand_in_the_order_of_the_catalog():
    table = features(b="group").take(pa.array([7, 3, 1, 0, 2, 6, 5, 4]))
    found = {kind: list(names) for kind, names in sources_of(data(), table).items()}
    assert found == {
        "user": ["own", "group", "none", "own"],
        "item": ["own", "own", "none", "none"],
    }


def test_coverage_counts_rows():
    vectors = join(features())
    assert vectors.coverage(data(), "valid") == {"user": 0.5, "item": 0.0}


def test_an_own_text_up_to_the_users_first_row_passes_and_a_planted_later_one_is_refused():
    in_time, late = {"a": 10, "d": 13}, {"a": 11, "d": 14, "b": 11}
    join(features(latest=in_time), knowledge(in_time))
    with pytest.raises(DataError, match=r"2 users, such as \['a', 'd'\]"):
        join(features(latest=late), knowledge(late))


def test_per_user_a_mean_may_be_of_texts_that_are_later_than_the_users_first_row():
    late = {"a": 11}
    vectors = join(features(latest=late, a="group"), knowledge(late))
    assert vectors.users[0, -1] == 1.0


@pytest.mark.parametrize("source", ["own", "group", "default"])
def test_by_one_clock_every_vector_is_of_before_the_first_row_of_all_and_ties_are_refused(source):
    """The first row is of 10; what is planted is in no user's and no item's own past."""
    for kind, place in (("user", 1), ("item", 4)):
        entity = features()["entity_id"][place].as_py()
        table = features(**{entity: source})
        assert table["kind"][place].as_py() == kind
        join(table, protocol="global_time")
        for asof in (10, 11):
            planted, known = (
                changed(table, "asof", place, asof),
                changed(knowledge(), "asof", place, asof),
            )
            with pytest.raises(
                DataError,
                match=rf"such as \['{kind}/{entity}'\], are as of 10 = 1970-01-01 00:00:10 UTC",
            ):
                join(planted, known, "global_time")
            join(planted, known)


def test_an_entity_of_the_catalog_without_a_row_is_refused():
    with pytest.raises(DataError, match=r"no row of 2 users of the catalog, such as \['a', 'b'\]"):
        join(features().slice(2))
    with pytest.raises(DataError, match=r"no row of 1 items of the catalog, such as \['z'\]; run"):
        join(features().slice(0, 7))


def test_own_features_without_their_knowledge_row_are_refused_and_others_need_none():
    with pytest.raises(DataError, match=r"2 entities, such as \['user/a', 'user/b'\], have no row"):
        join(features(), knowledge().slice(2))
    join(features(a="group", b="default"), knowledge().slice(2))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        *((name, None, f"do not say their {name}; move") for name in ("source", *PROVENANCE)),
        ("source", "somewhere", "have a source out of"),
        ("prompt_hash", "", "do not say of which prompt"),
        ("asof", -1, "are as of a time before 1970"),
        ("latest_source", 10, "have seen what is later than they are as of"),
        ("prompt_hash", "another", "have another prompt_hash than their row in knowledge"),
        ("asof", 8, "have another asof than"),
        ("latest_source", 1, "have another latest_source than"),
        ("source_events", 1, "have another source_events than"),
    ],
)
def test_missing_or_impossible_provenance_is_refused(column, value, message):
    with pytest.raises(DataError, match=rf"of 1 entities, such as \['user/b'\], {message}"):
        join(changed(features(), column, 1, value))


@pytest.mark.parametrize("column", PROVENANCE)
def test_features_that_say_nothing_of_what_they_have_seen_are_refused(column):
    with pytest.raises(DataError, match=f"features has no column {column}; move the folder"):
        join(features().drop_columns([column]))


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
        join(table)


def test_a_kind_without_any_feature_is_all_missing():
    only_items = {key: vector for key, vector in VECTORS.items() if key[0] == "item"}
    vectors = join(features(only_items))
    assert vectors.users.tolist() == [[0.0, 0.0, 1.0]] * 4
    assert np.isfinite(vectors.items).all()


def test_no_trained_entity_with_a_vector_leaves_vectors_as_they_are():
    vectors = join(features({("user", "d"): [9.0, 9.0]}))
    assert vectors.users[3].tolist() == [9.0, 9.0, 0.0]


def test_ids_unknown_to_the_catalog_are_ignored_by_the_guard():
    ghost = changed(features().slice(0, 1), "entity_id", 0, "ghost")
    for column, value in (("latest_source", 99), ("asof", 99)):
        ghost = changed(ghost, column, 0, value)
    known = [knowledge(), ghost.select(knowledge().column_names)]
    vectors = join(pa.concat_tables([features(), ghost]), pa.concat_tables(known))
    assert vectors.users.tolist() == join(features()).users.tolist()
