from collections import Counter

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from retrieval_pools.edges import Edges
from retrieval_pools.negative_sampling import TripletSampler

NUM_USERS, NUM_ITEMS = 4, 6

pair = st.tuples(st.integers(0, NUM_USERS - 1), st.integers(0, NUM_ITEMS - 1))


def _sampler(pairs):
    users, items = np.array(pairs, np.int64).reshape(-1, 2).T
    return TripletSampler(Edges(users, items), NUM_USERS, NUM_ITEMS)


@given(st.sets(pair, min_size=1), st.integers(0, 100))
def test_every_edge_meets_an_item_its_user_does_not_have(pairs, seed):
    users, liked, other = _sampler(sorted(pairs)).epoch(torch.Generator().manual_seed(seed))
    counts = Counter(user for user, _ in pairs)
    usable = [pair for pair in pairs if counts[pair[0]] < NUM_ITEMS]
    assert Counter(zip(users.tolist(), liked.tolist(), strict=True)) == Counter(usable)
    assert not pairs & set(zip(users.tolist(), other.tolist(), strict=True))
    assert ((other >= 0) & (other < NUM_ITEMS)).all()


def test_free_items_are_drawn_uniformly():
    sampler = _sampler([(0, 3), (2, 1), (2, 2), (2, 5)])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([sampler.epoch(generator) for _ in range(3000)], dim=1)
    counts = np.bincount(drawn[2][drawn[0] == 2], minlength=NUM_ITEMS)
    assert counts.sum() == 9000
    assert counts[[1, 2, 5]].sum() == 0
    assert np.abs(counts[[0, 3, 4]] - 3000).max() < 200  # standard deviation 45


def test_the_order_of_edges_changes_from_epoch_to_epoch():
    sampler = _sampler([(user, item) for user in range(4) for item in range(4)])
    generator = torch.Generator().manual_seed(0)
    first, second = sampler.epoch(generator)[:2], sampler.epoch(generator)[:2]
    assert not torch.equal(first, second)
