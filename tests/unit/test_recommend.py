"""The chain of `make recommend`: its stages in order, and what it says at the end."""

import sys
from types import SimpleNamespace

import pytest
import yaml

from jobs import preflight, recommend
from pipeline.errors import DataError, PartialError


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the chain with stages that do nothing but what is given; give its code, and who began."""
    tree = {
        "run": "r",
        "artifacts": str(tmp_path),
        "catalog": {"source": "movielens", "path": "x"},
        "language_model": {"path": "x"},
        "encoder": {"path": "x"},
    }
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(tree))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "check_inputs", lambda _: None)
    begun = []

    def start(failing=None, error=None):
        begun.clear()
        for name in recommend.STAGES:

            def stage(config, store, name=name):
                begun.append(name)
                if name == failing and error is not None:
                    raise error

            monkeypatch.setitem(sys.modules, f"jobs.{name}", SimpleNamespace(run=stage))
        return recommend.main(["--config", str(path)]), begun

    return start


def test_every_stage_runs_in_the_order_of_its_inputs(run):
    code, begun = run()
    assert code == 0
    assert begun == list(recommend.STAGES)
    order = ("build_catalog", "train_embeddings", "encode_features", *recommend.LIST_STAGES)
    assert [name for name in begun if name in order] == list(order)


def test_error_rows_of_a_stage_stop_no_other_and_are_told_at_the_end(run):
    code, begun = run("generate_knowledge", PartialError("3 rows failed"))
    assert (code, begun) == (4, list(recommend.STAGES))


def test_a_stage_that_fails_is_the_last(run):
    code, begun = run("train_recommender", DataError("nobody likes anything"))
    assert (code, begun[-1]) == (3, "train_recommender")
