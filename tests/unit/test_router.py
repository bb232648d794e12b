import numpy as np
import pytest

from retrieval_pools.router import route


def test_enough_interactions_make_an_entity_collaborative():
    routes = route(np.array([0, 4, 5, 100]), min_interactions=5)
    assert routes.tolist() == ["attribute", "attribute", "collaborative", "collaborative"]


@pytest.mark.parametrize("min_interactions", [0, 1])
def test_an_isolated_entity_is_never_collaborative(min_interactions):
    assert route(np.array([0, 1]), min_interactions).tolist() == ["attribute", "collaborative"]
