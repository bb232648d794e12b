import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_pools.edges import MIN_TO_HOLD_OUT, Edges, hold_out_latest, unique_edges


def _edges(pairs):
    users, items = np.array(pairs, np.int64).reshape(-1, 2).T
    return Edges(users, items)


def _pairs(edges):
    return list(zip(edges.users.tolist(), edges.items.tolist(), strict=True))


pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), unique=True, max_size=50)


@given(pairs, st.floats(0.05, 0.95))
def test_the_held_out_edges_are_the_latest_of_each_user(pairs, share):
    train, validation = hold_out_latest(_edges(pairs), share)
    for user in range(5):
        own = [pair for pair in pairs if pair[0] == user]
        count = max(1, int(np.floor(len(own) * share))) if len(own) >= MIN_TO_HOLD_OUT else 0
        assert [pair for pair in _pairs(train) if pair[0] == user] == own[: len(own) - count]
        assert [pair for pair in _pairs(validation) if pair[0] == user] == own[len(own) - count :]


@pytest.mark.parametrize(("size", "held_out"), [(4, 0), (5, 1), (9, 1), (10, 2)])
def test_a_fifth_is_held_out_of_users_with_five_edges_or_more(size, held_out):
    _, validation = hold_out_latest(_edges([(0, item) for item in range(size)]), 0.2)
    assert _pairs(validation) == [(0, item) for item in range(size - held_out, size)]


def test_a_repeated_pair_counts_once_at_its_first_time():
    edges = _edges([(1, 2), (0, 1), (1, 2), (0, 3), (0, 1)])
    assert _pairs(unique_edges(edges, num_items=4)) == [(1, 2), (0, 1), (0, 3)]
