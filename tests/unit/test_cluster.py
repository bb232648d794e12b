"""How many actors a job starts, and what each gets."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jobs.cluster import Workers, size_workers
from pipeline.config import ClusterSettings
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("nodes", "actors", "device", "wanted"),
    [
        ([{"CPU": 8}], None, "auto", Workers(1, 0, 8)),
        ([{"CPU": 8}], 3, "auto", Workers(3, 0, 2)),
        ([{"CPU": 2}], 2, "auto", Workers(2, 0, 1)),
        ([{"CPU": 8, "GPU": 4}], None, "auto", Workers(4, 1, 2)),
        ([{"CPU": 8, "GPU": 4}], 2, "cuda", Workers(2, 1, 4)),
        ([{"CPU": 8, "GPU": 4}], None, "cpu", Workers(1, 0, 8)),
        ([{"CPU": 8}, {"CPU": 8}], None, "auto", Workers(2, 0, 8)),
        ([{"CPU": 8}, {"CPU": 8}], 3, "auto", Workers(3, 0, 4)),
        ([{"CPU": 8}, {"CPU": 2}], 2, "auto", Workers(2, 0, 4)),
        ([{}, {"CPU": 16, "GPU": 2}, {"CPU": 8, "GPU": 2}], None, "auto", Workers(4, 1, 4)),
    ],
)
def test_actors_share_cores_and_take_a_gpu_each(nodes, actors, device, wanted):
    assert size_workers(ClusterSettings(actors=actors), device, nodes) == wanted


@given(st.lists(st.integers(0, 64), min_size=1, max_size=5), st.integers(1, 20))
def test_every_actor_finds_a_machine_with_its_cores(cores, actors):
    assume(sum(cores) >= actors)
    nodes = [{"CPU": float(count)} for count in cores]
    workers = size_workers(ClusterSettings(actors=actors), "cpu", nodes)
    assert sum(count // workers.threads_each for count in cores) >= actors


@pytest.mark.parametrize(
    ("resources", "have"), [({"CPU": 8, "GPU": 2}, "2 GPUs"), ({"CPU": 2}, "2 cores")]
)
def test_more_actors_than_devices_are_refused(resources, have):
    with pytest.raises(ConfigError, match=have):
        size_workers(ClusterSettings(actors=3), "auto", [resources])


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="Ray has no GPU"):
        size_workers(ClusterSettings(), "cuda", [{"CPU": 2}])
