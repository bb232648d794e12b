"""What the scale benchmark makes of its measurements."""

import numpy as np
import pytest

from jobs.benchmark_scale import FLAT, TARGETS, _lines, _totals
from jobs.build_pools import pool_knowledge
from jobs.scale_pools import require_all
from jobs.scale_stages import Cost, least
from jobs.scale_tables import knowledge_table
from pipeline.config import PoolSettings, ScaleSettings
from pipeline.errors import DataError


def cost(stage, size, core_seconds, **facts):
    return Cost(stage, "token", size, size, core_seconds, core_seconds, 100.0, 1.0, None, facts)


def test_a_ratio_compares_a_unit_of_the_largest_size_with_one_of_the_smallest():
    costs = {"kmeans": [cost("kmeans", 10, 1.0), cost("kmeans", 50, 99.0), cost("kmeans", 100, 30)]}
    totals = _totals(costs)
    assert totals["kmeans_ratio"] == pytest.approx(3.0)
    assert totals["pools_ratio"] is None
    assert any(line.endswith("not flat") for line in _lines(costs, totals))


def test_targets_hold_at_the_worst_size():
    costs = {
        "pools": [cost("pools", 10**6, 1.8), cost("pools", 10**7, 2.0)],
        "lookups": [
            cost("lookups", 10, 1.0, milliseconds=0.4),
            cost("lookups", 20, 1.0, milliseconds=0.6),
        ],
    }
    totals = _totals(costs)
    assert totals["pools_microseconds_per_token"] == pytest.approx(1.8)
    assert totals["lookups_milliseconds"] == 0.6
    assert {target.name for target in TARGETS} <= set(totals)
    assert totals["lookups_ratio"] < FLAT


def test_the_quickest_of_several_tries_counts_for_every_cost():
    tries = iter([(3.0, 1.0), (2.0, 4.0), (5.0, 5.0), (5.0, 5.0), (5.0, 5.0)])
    costs = least(lambda: [cost(name, 1, own) for name, own in zip("ab", next(tries), strict=True)])
    assert [one.core_seconds for one in costs] == [2.0, 1.0]


def test_texts_that_are_not_in_the_pools_are_noticed():
    settings = PoolSettings()
    scale = ScaleSettings(texts_per_group=10, text_tokens=10)
    random = np.random.default_rng(0)
    texts = random.integers(0, 1000, (20, 10)).astype(np.int32)
    pools, facts = pool_knowledge(knowledge_table(texts, 10), settings)
    assert require_all(pools, 2, scale) == 200
    assert facts["groups"] == 2
    assert pools.num_relaxed == 10
    assert np.array_equal(np.stack(pools.texts("user/1")), texts[10:])
    for wrong in (texts[:19], texts[:, :9]):
        fewer, _ = pool_knowledge(knowledge_table(np.ascontiguousarray(wrong), 10), settings)
        with pytest.raises(DataError, match="20 texts of 10 tokens were made"):
            require_all(fewer, 2, scale)
