"""How many actors a job starts, and what each gets."""

import pytest

from jobs.cluster import Workers, size_workers
from pipeline.config import ClusterSettings
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("resources", "actors", "device", "wanted"),
    [
        ({"CPU": 8}, None, "auto", Workers(1, 0, 8)),
        ({"CPU": 8}, 3, "auto", Workers(3, 0, 2)),
        ({"CPU": 8, "GPU": 4}, None, "auto", Workers(4, 1, 2)),
        ({"CPU": 8, "GPU": 4}, 2, "cuda", Workers(2, 1, 4)),
        ({"CPU": 8, "GPU": 4}, None, "cpu", Workers(1, 0, 8)),
    ],
)
def test_actors_share_cores_and_take_a_gpu_each(resources, actors, device, wanted):
    assert size_workers(ClusterSettings(actors=actors), device, resources) == wanted


@pytest.mark.parametrize(
    ("resources", "have"), [({"CPU": 8, "GPU": 2}, "2 GPUs"), ({"CPU": 2}, "2 cores")]
)
def test_more_actors_than_devices_are_refused(resources, have):
    with pytest.raises(ConfigError, match=have):
        size_workers(ClusterSettings(actors=3), "auto", resources)


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="Ray has no GPU"):
        size_workers(ClusterSettings(), "cuda", {"CPU": 2})
