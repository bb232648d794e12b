"""Lists as features of CTR rows: what they say of a pair, what is refused, and what they gain."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from features.ctr.arms import Arm, make_arms
from features.ctr.candidates import join_lists
from features.ctr.data import CtrData
from features.ctr.fields import Fields
from features.ctr.join import KnowledgeVectors
from features.ctr.metrics import auc
from features.ctr.models import MODELS
from features.ctr.models.candidate_input import CandidateInput
from features.ctr.models.rows import make_batch
from features.ctr.training import Task, Trial, build_network, fit_one
from pipeline.config import CtrSettings, RunConfig
from pipeline.errors import DataError
from pipeline.schemas import RECOMMENDATIONS

USERS, ITEMS, FIRST_ROW = 30, 20, 100
PAST = ["knowledge"]


def data(rows=600, seed=0):
    """Rows of random pairs, half of them train; fields and histories say nothing."""
    rng = np.random.default_rng(seed)
    ids = [
        pa.chunked_array([[f"{kind}{n}" for n in range(t)]])
        for kind, t in zip("ui", SIZES, strict=True)
    ]
    fields = [Fields(("id",), (1,), np.zeros((total, 1), int)) for total in SIZES]
    ends = [0, rows // 2, 3 * rows // 4, rows]
    return CtrData(
        user_ids=ids[0],
        item_ids=ids[1],
        users=rng.integers(0, USERS, rows),
        items=rng.integers(0, ITEMS, rows),
        timestamps=FIRST_ROW + np.arange(rows),
        labels=rng.integers(0, 2, rows).astype(np.float32),
        splits={n: np.arange(*ends[p : p + 2]) for p, n in enumerate(("train", "valid", "test"))},
        history_items=np.zeros((rows, 2), int),
        history_signals=np.zeros((rows, 2), np.int8),
        user_fields=fields[0],
        item_fields=fields[1],
    )


SIZES = (USERS, ITEMS)


def the_lists(seed=1, asof=FIRST_ROW - 1, **changes):
    """Lists of up to 5 items, users in any order; user 3 has none."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in rng.permutation(USERS):
        items = rng.permutation(ITEMS)[: rng.integers(1, 6) if user != 3 else 0]
        row = {f.name: [] if pa.types.is_list(f.type) else 0 for f in RECOMMENDATIONS}
        row |= {f.name: "" for f in RECOMMENDATIONS if pa.types.is_string(f.type)}
        row |= {"user_id": f"u{user}", "asof": asof, "latest_source": asof}
        row |= {"item_ids": [f"i{item}" for item in items], "sources": ["beam"] * len(items)}
        row |= {"scores": sorted(rng.normal(-3, 2, len(items)).tolist(), reverse=True)}
        rows.append(row | changes)
    return rows


def table(rows):
    return pa.Table.from_pylist(rows, RECOMMENDATIONS)


def naive(rows, user, item):
    """What lists say of a pair, by looking."""
    every = np.array([score for row in rows for score in row["scores"]], np.float32)
    row = next(row for row in rows if row["user_id"] == f"u{user}")
    if f"i{item}" not in row["item_ids"]:
        return [0.0, 0.0, 0.0]
    place = row["item_ids"].index(f"i{item}")
    score = (row["scores"][place] - every.mean()) / every.std()
    return [1.0, 1 / math.log2(2 + place), score]


def test_every_row_is_told_whether_and_where_its_item_is_in_its_user_s_list():
    of, rows = data(), the_lists()
    lists = join_lists(of, table(rows), PAST, "global_time")
    expected = [naive(rows, *pair) for pair in zip(of.users, of.items, strict=True)]
    told = lists.of_rows(of.users, of.items)
    np.testing.assert_allclose(told, expected, atol=1e-5)
    assert 0.05 < told[:, 0].mean() < 0.5
    assert lists.coverage(of, "test") == pytest.approx(told[of.splits["test"], 0].mean())
    batch = make_batch(of, np.arange(len(of.users)))
    in_model = CandidateInput(lists, 4).told(batch).numpy()
    np.testing.assert_array_equal(in_model, told)


def test_empty_lists_say_nothing():
    of = data()
    lists = join_lists(of, table(the_lists(item_ids=[], scores=[])), PAST, "global_time")
    assert not lists.of_rows(of.users, of.items).any()
    network = CandidateInput(lists, 4)
    assert not network.told(make_batch(of, np.arange(9))).any()


@pytest.mark.parametrize("model", MODELS)
def test_lists_reach_every_model(model):
    of = data()
    lists = join_lists(of, table(the_lists()), PAST, "global_time")
    torch.manual_seed(0)
    network, auxiliary = build_network(of, lists, CtrSettings(embedding_dim=4), model, "rlmrec")
    assert auxiliary is None
    (added,) = [own for own in network.modules() if isinstance(own, CandidateInput)]
    network(make_batch(of, np.arange(50))).sum().backward()
    assert all(own.grad is not None and own.grad.any() for own in added.parameters())


@pytest.mark.parametrize("model", ["lr", "din", "dcnv2"])
def test_a_list_that_knows_something_raises_auc_and_one_that_does_not_does_not(model):
    of, rows = data(1200), the_lists()
    lists = join_lists(of, table(rows), PAST, "global_time")
    is_listed = lists.of_rows(of.users, of.items)[:, 0] > 0
    coin = np.random.default_rng(2).random(len(of.users))
    of = replace(of, labels=(coin < np.where(is_listed, 0.9, 0.4)).astype(np.float32))
    other = join_lists(of, table(the_lists(seed=9)), PAST, "global_time")
    settings = CtrSettings(embedding_dim=4, adaptor_dim=8, max_epochs=12, batch_size=128)
    test = of.splits["test"]
    found = {}
    for name, told in (("base", None), ("planted", lists), ("other", other)):
        task = Task(model, "recommendations", 0, Trial(1e-2, 0.0))
        fit = fit_one(of, Arm(told), task, settings)
        found[name] = auc(of.labels[test], fit.test_probabilities)
    assert found["planted"] > max(found["base"], found["other"]) + 0.05


def refuse(rows, words, protocol="global_time", splits=PAST, of=None):
    with pytest.raises(DataError, match=words):
        join_lists(of or data(), table(rows), splits, protocol)


REMEDY = "would leak; set recommender.until: knowledge and recommendation.history: past"


def test_lists_that_know_the_time_of_ctr_rows_are_refused():
    join_lists(data(), table(the_lists()), PAST, "global_time")
    refuse(the_lists(asof=FIRST_ROW), f"of 30 users, such as .* {REMEDY}")
    one = the_lists()
    one[4]["asof"] = FIRST_ROW
    refuse(one, rf"of 1 users, such as \['{one[4]['user_id']}'\]")
    refuse(the_lists(), REMEDY, splits=["knowledge", "train"])
    refuse(the_lists(), REMEDY, splits=[])
    refuse(the_lists(latest_source=FIRST_ROW + 5), "later than they are as of")


def test_by_user_a_list_is_held_to_the_rows_of_its_own_user():
    of = data()
    first = {f"u{u}": int(of.timestamps[of.users == u].min()) for u in range(USERS)}
    rows = the_lists(asof=FIRST_ROW + 600)  # others have gone on
    for row in rows:
        row["latest_source"] = first[row["user_id"]]
    join_lists(of, table(rows), PAST, "per_user_prefix")
    rows[7]["latest_source"] += 1
    refuse(rows, rf"of 1 users, such as \['{rows[7]['user_id']}'\]", "per_user_prefix", of=of)
    rows[7]["latest_source"] -= 1
    refuse(rows, REMEDY, "per_user_prefix", ["knowledge", "train"], of)


def test_lists_that_are_not_those_of_the_catalog_are_refused():
    refuse(the_lists()[1:], "no row of 1 users of the catalog, such as")
    refuse([*the_lists(), the_lists()[0]], "users who stand twice")
    refuse([*the_lists(), the_lists()[0] | {"user_id": "nobody"}], "the catalog lacks, such as")
    wrong = {"item_ids": ["i0", "ghost"], "scores": [-1.0, -2.0]}
    refuse([*the_lists()[1:], the_lists()[0] | wrong], r"the catalog lacks, such as \['ghost'\]")
    refuse(
        [*the_lists()[1:], the_lists()[0] | wrong | {"item_ids": ["i0", "i0"]}], "twice in a list"
    )
    short = wrong | {"item_ids": ["i0"]}
    refuse([*the_lists()[1:], the_lists()[0] | short], "scores are missing or not finite")
    odd = {"item_ids": ["i0"], "scores": [math.nan]}
    refuse([*the_lists()[1:], the_lists()[0] | odd], "scores are missing or not finite")


def test_the_arm_is_one_of_the_controls_and_aligns_nothing():
    of = data()
    lists = join_lists(of, table(the_lists()), PAST, "global_time")
    vectors = KnowledgeVectors(*(np.zeros((total, 3), np.float32) for total in SIZES))
    arms = make_arms(of, vectors, {"zeros": None, "recommendations": lists}, None)
    assert list(arms) == ["base", "zeros", "recommendations", "knowledge", "shuffled"]
    assert arms["recommendations"] == Arm(lists)
    assert arms["recommendations"].of(of, 3) is lists
    assert "recommendations" not in CtrSettings().controls


def test_a_config_with_the_arm_must_keep_lists_to_the_past():
    tree = {
        "run": "test",
        "catalog": {"source": "movielens", "path": "nowhere"},
        "language_model": {"path": "nowhere"},
        "encoder": {"path": "nowhere"},
        "ctr": {"controls": ["recommendations"]},
    }
    past = {"recommender": {"until": "knowledge"}, "recommendation": {"history": "past"}}
    RunConfig.model_validate(tree | past)
    for section in past:
        wrong = {name: own for name, own in past.items() if name != section}
        with pytest.raises(ValueError, match=r"set recommender\.until to knowledge and"):
            RunConfig.model_validate(tree | wrong)
