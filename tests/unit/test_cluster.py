"""How many actors a job starts, and what each gets."""

import socket

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jobs.cli import ROOT
from jobs.cluster import Workers, size_workers, start_ray
from pipeline.config import ClusterSettings
from pipeline.errors import ConfigError


def asking(**settings):
    """What the stage `knowledge` asks for."""
    return ClusterSettings(knowledge=settings)


@pytest.mark.parametrize(
    ("nodes", "asked", "device", "wanted"),
    [
        ([{"CPU": 8}], {}, "auto", Workers(1, 0, 8)),
        ([{"CPU": 8}], {"cores": 3}, "auto", Workers(2, 0, 3)),
        ([{"CPU": 8}], {"cores": 3, "actors": 1}, "auto", Workers(1, 0, 3)),
        ([{"CPU": 8}, {"CPU": 7}], {"cores": 4}, "auto", Workers(3, 0, 4)),
        ([{"CPU": 8, "GPU": 2}], {"cores": 3}, "auto", Workers(2, 1, 3)),
        ([{"CPU": 8}], {"actors": 3}, "auto", Workers(3, 0, 2)),
        ([{"CPU": 2}], {"actors": 2}, "auto", Workers(2, 0, 1)),
        ([{"CPU": 8, "GPU": 4}], {}, "auto", Workers(4, 1, 2)),
        ([{"CPU": 8, "GPU": 4}], {"actors": 2}, "cuda", Workers(2, 1, 4)),
        ([{"CPU": 8, "GPU": 4}], {}, "cpu", Workers(1, 0, 8)),
        ([{"CPU": 8}, {"CPU": 8}], {}, "auto", Workers(2, 0, 8)),
        ([{"CPU": 8}, {"CPU": 8}], {"actors": 3}, "auto", Workers(3, 0, 4)),
        ([{"CPU": 8}, {"CPU": 2}], {"actors": 2}, "auto", Workers(2, 0, 4)),
        ([{}, {"CPU": 16, "GPU": 2}, {"CPU": 8, "GPU": 2}], {}, "auto", Workers(4, 1, 4)),
    ],
)
def test_actors_share_cores_and_take_a_gpu_each(nodes, asked, device, wanted):
    settings = ClusterSettings(knowledge=asked)
    assert size_workers(settings, "knowledge", device, nodes) == wanted
    assert size_workers(ClusterSettings(features=asked), "features", device, nodes) == wanted


@given(st.lists(st.integers(0, 64), min_size=1, max_size=5), st.integers(1, 20))
def test_every_actor_finds_a_machine_with_its_cores(cores, actors):
    assume(sum(cores) >= actors)
    nodes = [{"CPU": float(count)} for count in cores]
    workers = size_workers(asking(actors=actors), "knowledge", "cpu", nodes)
    assert sum(count // workers.threads_each for count in cores) >= actors


@pytest.mark.parametrize(
    ("resources", "asked", "complaint"),
    [
        ({"CPU": 8, "GPU": 2}, {"actors": 3}, "3 actors, but Ray has 8 cores and 2 GPUs"),
        ({"CPU": 2}, {"actors": 3}, "3 actors, but Ray has 2 cores"),
        ({"CPU": 2}, {"cores": 3}, "1 actors of 3 cores, but Ray has 2 cores"),
        ({"CPU": 8, "GPU": 2}, {"cores": 5}, "2 actors of 5 cores, but Ray has 8 cores"),
    ],
)
def test_more_than_there_is_is_refused(resources, asked, complaint):
    with pytest.raises(ConfigError, match=complaint):
        size_workers(asking(**asked), "knowledge", "auto", [resources])


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="Ray has no GPU"):
        size_workers(ClusterSettings(), "features", "cuda", [{"CPU": 2}])


@pytest.fixture
def joined(monkeypatch):
    """What `ray.init` was called with."""
    import ray

    calls = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **settings: calls.append(settings))
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    return calls


def test_a_local_ray_is_started_whatever_the_environment_says(joined, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    start_ray(ClusterSettings(object_store_mb=100))
    assert joined[0]["address"] == "local"
    assert joined[0]["object_store_memory"] == 100 * 2**20
    assert joined[0]["runtime_env"] is None


@pytest.fixture
def listening():
    """An address at which something answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "127.0.0.1:{1}".format(*server.getsockname())


def test_a_cluster_that_does_not_answer_is_told_at_once(joined, listening, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = "127.0.0.1:{1}".format(*server.getsockname())
    with pytest.raises(ConfigError, match=rf"cluster.address: Ray at {silent} cannot be joined"):
        start_ray(ClusterSettings(address=silent))
    assert not joined

    def refuse(**_):
        raise ConnectionError("401")

    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(ConfigError, match=r"\(401\).*RAY_AUTH_MODE"):
        start_ray(ClusterSettings(address=listening))
    with pytest.raises(ConnectionError):  # on this machine it is no setting's fault
        start_ray(ClusterSettings())


def test_a_cluster_gets_our_code(joined, listening):
    start_ray(ClusterSettings(address=listening))
    assert joined[0]["address"] == listening
    assert joined[0]["runtime_env"]["working_dir"] == str(ROOT)
    assert {"/artifacts/", "/data/"} <= {*joined[0]["runtime_env"]["excludes"]}
    assert joined[0]["object_store_memory"] is None


def test_a_submitted_job_is_on_its_cluster_with_its_code_already(joined, monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    start_ray(ClusterSettings())
    assert joined[0]["address"] == "auto"
    assert joined[0]["runtime_env"] is None  # Ray refuses a second one
