"""Arms: the placebo keeps to the popularity of its owner, the canary knows the test rows."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from features.ctr.arms import canary, make_arms, shuffled
from features.ctr.controls import TEMPLATES, control_texts
from features.ctr.data import CtrData
from features.ctr.fields import Fields
from features.ctr.join import KnowledgeVectors
from pipeline.config import PromptSettings
from pipeline.prompts import Prompts, prompt_hash
from pipeline.schemas import INTERACTIONS, ITEMS, USERS

TRAIN, VALID, TEST = 400, 20, 30


def data(users, items, labels, num_users=100, num_items=60):
    """Rows of train, valid and test, in that order; fields and histories say nothing."""
    rows = len(users)
    ids = [pa.chunked_array([[str(i) for i in range(total)]]) for total in (num_users, num_items)]
    fields = [Fields(("id",), (1,), np.zeros((total, 1), int)) for total in (num_users, num_items)]
    ends = np.array([0, rows - VALID - TEST, rows - TEST, rows])
    names = ("train", "valid", "test")
    return CtrData(
        user_ids=ids[0],
        item_ids=ids[1],
        users=np.asarray(users),
        items=np.asarray(items),
        timestamps=np.arange(rows),
        labels=np.asarray(labels, np.float32),
        splits={n: np.arange(*ends[i : i + 2]) for i, n in enumerate(names)},
        history_items=np.zeros((rows, 2), int),
        history_signals=np.zeros((rows, 2), np.int8),
        user_fields=fields[0],
        item_fields=fields[1],
    )


def numbered(total, missing=()):
    """Vectors that tell their owner: (total, 2), the second column the flag."""
    vectors = np.stack([np.arange(total), np.zeros(total)], axis=1).astype(np.float32)
    vectors[list(missing), 1] = 1.0
    return vectors


def by_popularity():
    """User u has u train rows, items take turns."""
    users = np.repeat(np.arange(100), np.arange(100))
    users = np.concatenate([users, np.arange(VALID + TEST)])
    return data(users, np.arange(len(users)) % 60, np.arange(len(users)) % 2)


def test_the_placebo_stays_within_a_decile_of_popularity_and_leaves_missing_ones():
    vectors = KnowledgeVectors(numbered(100, missing=[3, 55]), numbered(60))
    seen = set()
    for seed in range(5):
        moved = shuffled(vectors, by_popularity(), seed)
        assert sorted(moved.users[:, 0]) == sorted(vectors.users[:, 0])
        assert sorted(moved.items[:, 0]) == sorted(vectors.items[:, 0])
        assert moved.users[[3, 55]].tolist() == [[55.0, 1.0], [3.0, 1.0]]  # among themselves
        with_text = np.setdiff1d(np.arange(100), [3, 55])  # 98: nine parts by popularity
        rank = np.empty(100)
        rank[with_text] = np.arange(98)
        giver = moved.users[with_text, 0].astype(int)
        assert np.abs(rank[giver] - rank[with_text]).max() <= 10
        assert (giver != with_text).all()
        seen.add(moved.users.tobytes())
    assert len(seen) == 5


def test_a_kind_too_small_for_deciles_is_shuffled_whole():
    vectors = KnowledgeVectors(numbered(100), numbered(60))
    few = KnowledgeVectors(vectors.users, numbered(60)[:12])
    of_few = replace(by_popularity(), items=by_popularity().items % 12)
    moved = shuffled(few, of_few, 1)
    assert sorted(moved.items[:12, 0]) == list(range(12))
    assert np.abs(moved.items[:12, 0] - np.arange(12)).min() > 0


def test_one_seed_is_one_placebo():
    vectors = KnowledgeVectors(numbered(100), numbered(60))
    first, again, other = (shuffled(vectors, by_popularity(), seed) for seed in (4, 4, 5))
    assert first.users.tobytes() == again.users.tobytes() != other.users.tobytes()


def test_the_canary_says_what_was_liked_test_rows_included():
    """User 0 likes item 0 in the test part only, user 1 dislikes it there; user 2 has no row."""
    users = [0] * 4 + [1] * 4 + [0, 1] * 10 + [0, 1] * 15
    items = [1, 1, 1, 1] * 2 + [1] * 20 + [0] * 30
    labels = [0, 1] * 4 + [0, 1] * 10 + [1, 0] * 15
    made = canary(
        data(users, items, labels, num_users=3, num_items=2),
        KnowledgeVectors(numbered(3), np.array([[4, 0], [0, 1]], np.float32)),
    )
    assert made.users[2].tolist() == [0.0, 1.0]
    # Only test rows are of item 0, whose vector is not zero; standardised over two users.
    assert made.users[:2].tolist() == pytest.approx(np.array([[1, 0], [-1, 0]]))
    assert made.items.tolist() == [[4, 0], [0, 1]]
    blank = KnowledgeVectors(np.zeros((3, 2), np.float32), np.zeros((2, 2), np.float32))
    nothing = canary(data(users, items, labels, num_users=3, num_items=2), blank)
    assert not nothing.users[:2].any()  # no text, no leak


def test_arms_differ_in_what_they_are_told_and_nothing_else():
    knowledge = KnowledgeVectors(numbered(100), numbered(60))
    text = KnowledgeVectors(numbered(100)[::-1], numbered(60))
    wanted = {"zeros": None, "raw_text": text, "history": text, "canary": None}
    arms = make_arms(by_popularity(), knowledge, wanted, text)
    assert list(arms) == ["base", *wanted, "plain", "knowledge", "shuffled"]
    assert [name for name, arm in arms.items() if arm.is_aligned] == [
        *("raw_text", "history", "plain", "knowledge")
    ]
    assert arms["base"].of(by_popularity(), 0) is None
    assert not arms["zeros"].of(by_popularity(), 0).users.any()
    assert arms["knowledge"].of(by_popularity(), 0) is knowledge
    placebo = arms["shuffled"].of(by_popularity(), 7)
    assert placebo.users.tobytes() == shuffled(knowledge, by_popularity(), 7).users.tobytes()
    assert list(make_arms(by_popularity(), knowledge, {}, None)) == [
        *("base", "knowledge", "shuffled")
    ]


def test_control_texts_are_the_catalog_s_own_words_of_the_past_only():
    users = pa.table([["u", "v"], [{"age": "30", "job": "cook"}, {}]], schema=USERS)
    genres = {"genres": "Drama, War", "genre": "Drama"}
    items = pa.table([["i", "j"], ["Alpha", "Beta"], [genres, {}]], schema=ITEMS)
    rows = [("u", "i", 5.0, 1, 7, "knowledge"), ("u", "j", 1.0, 0, 9, "test")]
    interactions = pa.table([list(column) for column in zip(*rows, strict=True)], INTERACTIONS)

    def told(name):
        prompts = Prompts(users, items, interactions, PromptSettings(), TEMPLATES[name])
        return pa.concat_tables(control_texts(prompts, 1)).to_pylist()

    raw, history = told("raw_text"), told("history")
    assert [row["text"] for row in raw] == [
        *("age 30, job cook", "", "Movie: Alpha\ngenres: Drama, War", "Movie: Beta")
    ]
    assert [row["text"] for row in history] == ["Alpha, 5 stars", "", "Alpha", "Beta"]
    assert [row["kind"] for row in raw] == ["user", "user", "item", "item"]
    assert history[0]["prompt_hash"] == prompt_hash("Alpha, 5 stars")
    seen = ("asof", "source_events", "latest_source")
    assert [history[0][name] for name in seen] == [7, 1, 7]
    assert [history[2][name] for name in seen] == [7, 0, 0]
