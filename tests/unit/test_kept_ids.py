"""Ids of a catalog that has changed, against loops over items."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError
from pipeline.generative.collisions import resolve
from pipeline.generative.item_vectors import BlockScaling
from pipeline.generative.kept_ids import GivenIds, assign_beside, changed_health
from pipeline.generative.rq_kmeans import RqKmeans
from pipeline.generative.semantic_ids import ItemContents, ItemTokenizer

LEVELS, SIZE, WIDTH, BEHAVIOUR = 2, 4, 3, 2


def a_tokenizer(seed=0):
    """Codebooks of content and behaviour."""
    rng = np.random.default_rng(seed)
    books = rng.normal(size=(LEVELS, SIZE, WIDTH + BEHAVIOUR)) * np.array([1, 0.3])[:, None, None]
    columns = WIDTH + BEHAVIOUR
    scaling = BlockScaling(
        np.zeros(columns, np.float32), np.ones(columns, np.float32), (WIDTH, BEHAVIOUR)
    )
    return ItemTokenizer(scaling, RqKmeans(books.astype(np.float32)))


def contents(vectors):
    count = len(vectors)
    every, nobody = np.ones(count, bool), np.zeros(count, bool)
    nothing = np.zeros((count, 0), np.float32)
    return ItemContents(vectors.astype(np.float32), nothing, every, every, nobody, nobody)


def directions(count, seed):
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def nearest_by_content(tokenizer, vector, left=None):
    """Codes level by level, and all last codes by distance: loops, content columns only."""
    rest = vector / np.linalg.norm(vector)
    codes, order = [], []
    for book in tokenizer.quantizer.codebooks[:, :, :WIDTH]:
        gaps = [float(np.square(rest - one).sum()) for one in book]
        order = sorted(range(SIZE), key=gaps.__getitem__)
        codes.append(order[0])
        rest = rest - book[order[0]]
    return codes, order


def given(names, codes, listed=None):
    count = len(names)
    warm = np.arange(count) % 2 == 0
    listed = np.ones(count, bool) if listed is None else np.array(listed)
    return GivenIds(pa.array(names), np.array(codes, np.int32), warm, np.zeros(count, bool), listed)


@pytest.fixture
def earlier():
    """Ten items with counters, far from where content would put them; `gone` left long ago."""
    codes = [[n % 4, n % 3, 0] for n in range(10)]
    names = [f"i{n}" for n in range(9)] + ["gone"]
    return given(names, codes, [True] * 9 + [False])


def test_old_items_keep_their_ids_whatever_becomes_of_their_texts(earlier):
    names = ["i3", "new", "i0", "gone", "i7"]  # another order, one is back
    for seed in range(3):
        items = contents(directions(5, seed))
        found = assign_beside(pa.array(names), items, earlier, a_tokenizer(), "counter")
        ids = dict(zip(names, found.ids.codes.tolist(), strict=True))
        assert (ids["i3"], ids["i0"], ids["gone"], ids["i7"]) == (
            [3, 0, 0],
            [0, 0, 0],
            [1, 0, 0],
            [3, 1, 0],
        )
        assert found.ids.is_warm.tolist() == [False, False, True, False, False]
        assert found.is_new.tolist() == [False, True, False, False, False]
    assert sorted(found.left.item_ids.to_pylist()) == ["i1", "i2", "i4", "i5", "i6", "i8"]
    assert found.left.is_listed.all()


def test_new_items_get_the_counter_after_all_that_were_ever_given():
    tokenizer, vectors = a_tokenizer(), directions(40, 1)
    vectors[20:] = vectors[:20]  # everybody has a twin with the same text
    nearest = [nearest_by_content(tokenizer, vector)[0] for vector in vectors]
    old = [[*codes, 0] for codes in {tuple(codes): codes for codes in nearest[:10]}.values()]
    # In the first bucket two have left again, so their counters are not free.
    old += [[*nearest[0], 1], [*nearest[0], 2]]
    earlier = given([f"o{n}" for n in range(len(old))], old)
    size = 60
    wide = ItemTokenizer(
        tokenizer.scaling, RqKmeans(np.repeat(tokenizer.quantizer.codebooks, 15, 1))
    )
    assert wide.codebook_size == size
    counts = Counter(tuple(codes[:2]) for codes in old)
    expected = []
    for codes in nearest:
        expected.append([*(15 * code for code in codes), counts[tuple(codes)]])
        counts[tuple(codes)] += 1
    old_wide = [[15 * a, 15 * b, c] for a, b, c in old]
    earlier = given(earlier.item_ids.to_pylist(), old_wide)
    names = pa.array([f"n{n}" for n in range(40)])
    found = assign_beside(names, contents(vectors), earlier, wide, "counter")
    assert found.ids.codes.tolist() == expected
    assert not found.ids.is_warm.any()
    everybody = np.concatenate([found.ids.codes, earlier.codes])
    assert len(np.unique(everybody, axis=0)) == len(everybody)
    twins = found.ids.codes.reshape(2, 20, 3)
    assert (twins[0, :, :2] == twins[1, :, :2]).all()
    assert (twins[0, :, 2] < twins[1, :, 2]).all()
    assert found.ids.collides.all()


def test_new_items_take_the_nearest_last_code_that_nobody_ever_had():
    tokenizer, vectors = a_tokenizer(), directions(5, 3)
    old = [[0, 0], [0, 1], [1, 1], [3, 0]]
    taken = {tuple(codes) for codes in old}
    orders = [nearest_by_content(tokenizer, vector) for vector in vectors]
    # Who is alone with codes that are free keeps them, then the others choose, in their order.
    expected: dict[int, tuple] = {}
    for n, (codes, _) in enumerate(orders):
        if tuple(codes) not in taken:
            expected[n] = tuple(codes)
            taken.add(tuple(codes))
    for n, (codes, order) in enumerate(orders):
        if n not in expected:
            last = next(code for code in order if (codes[0], code) not in taken)
            expected[n] = (codes[0], last)
            taken.add(expected[n])
    assert any(list(expected[n]) != orders[n][0] for n in range(5))
    earlier = given([f"o{n}" for n in range(4)], old)
    names = pa.array([f"n{n}" for n in range(5)])
    found = assign_beside(names, contents(vectors), earlier, tokenizer, "reassign")
    assert found.ids.codes.tolist() == [list(expected[n]) for n in range(5)]
    assert found.nearest.tolist() == [codes for codes, _ in orders]


def test_a_bucket_is_shared_also_with_who_has_left():
    tokenizer, vectors = a_tokenizer(), directions(6, 4)
    nearest = [nearest_by_content(tokenizer, vector)[0] for vector in vectors]
    earlier = given(["gone"], [nearest[0]])
    names = pa.array([f"n{n}" for n in range(6)])
    found = assign_beside(names, contents(vectors), earlier, tokenizer, "bucket")
    assert found.ids.codes.tolist() == nearest


@pytest.mark.parametrize("policy", ["counter", "reassign"])
def test_a_full_bucket_asks_for_new_codebooks(policy):
    tokenizer, vector = a_tokenizer(), directions(1, 5)
    codes = nearest_by_content(tokenizer, vector[0])[0]
    old = (
        [[*codes, n] for n in range(4)]
        if policy == "counter"
        else [[codes[0], n] for n in range(4)]
    )
    earlier = given([f"o{n}" for n in range(4)], old)
    with pytest.raises(ConfigError, match=r"leave semantic_ids.from_run out, and train"):
        assign_beside(pa.array(["new"]), contents(vector), earlier, tokenizer, policy)


def test_the_only_counter_left_is_given_and_the_next_is_not():
    codes, warm = np.zeros((1, 2), np.int32), np.zeros(1, bool)
    taken = np.array([[0, 0, 0], [0, 0, 2], [0, 1, 3]], np.int32)  # 1 was lost: it is not guessed

    def choices(rows):
        raise AssertionError("counters are not chosen")

    assert resolve("counter", codes, warm, 4, choices, taken).tolist() == [[0, 0, 3]]
    with pytest.raises(ConfigError, match="a counter ends at 2: 1 items get no id"):
        resolve("counter", codes, warm, 3, choices, taken)


def test_a_catalog_of_new_items_only_has_cold_ids_and_a_report(earlier):
    items = contents(directions(4, 6))
    tokenizer = a_tokenizer()
    names = pa.array([f"n{n}" for n in range(4)])
    found = assign_beside(names, items, earlier, tokenizer, "counter")
    facts = changed_health(found, tokenizer, seed=0)
    assert (facts["kept"], facts["new"], facts["left"], facts["reserved"]) == (0, 4, 9, 10)
    assert not found.ids.is_warm.any()
    assert facts["content_error"]["old"] is None
    assert len(facts["new_prefix_seen"]) == LEVELS


def test_the_report_tells_what_changed(earlier):
    tokenizer = a_tokenizer()
    books = tokenizer.quantizer.codebooks[:, :, :WIDTH]
    true = (books[0][:, None] + books[1][None]).reshape(-1, WIDTH)  # what codes stand for
    names = [f"i{n}" for n in range(8)] + ["new", "newer"]
    vectors = np.concatenate([true[:8], -50 * true[8:10]])
    found = assign_beside(pa.array(names), contents(vectors), earlier, tokenizer, "counter")
    facts = changed_health(found, tokenizer, seed=0)
    assert (facts["kept"], facts["new"], facts["left"], facts["reserved"]) == (8, 2, 1, 2)
    assert (facts["items"], facts["warm"], facts["codebook_size"]) == (10, 4, SIZE)
    warm = [codes for n, codes in enumerate(earlier.codes.tolist()) if n % 2 == 0]
    for length in (1, 2):
        seen = {tuple(codes[:length]) for codes in warm}
        new = [tuple(codes[:length]) in seen for codes in found.nearest[8:].tolist()]
        assert facts["new_prefix_seen"][length - 1] == np.mean(new)

    def residual(vector):
        codes = nearest_by_content(tokenizer, vector)[0]
        unit = vector / np.linalg.norm(vector)
        return np.square(unit - books[0][codes[0]]).sum()

    unit = vectors[:8] / np.linalg.norm(vectors[:8], axis=1, keepdims=True)
    variance = unit.var(axis=0).sum()
    for name, rows in (("old", vectors[:8]), ("new", vectors[8:])):
        expected = np.mean([residual(vector) for vector in rows]) / variance
        assert facts["content_error"][name] == pytest.approx(expected, abs=1e-3)
