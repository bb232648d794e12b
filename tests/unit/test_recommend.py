"""The chain of `make recommend`: its stages in order, and what it says at the end."""

import sys
from types import SimpleNamespace

import pytest
import yaml

from jobs import preflight, recommend, recommendation_examples
from pipeline.errors import DataError, PartialError

KNOWLEDGE = (
    "build_catalog",
    "train_embeddings",
    "group_entities",
    "generate_knowledge",
    "encode_features",
)
LISTS = ("assign_semantic_ids", "train_recommender", "recommend_items")


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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "check_inputs", lambda *_, **__: None)
    monkeypatch.setattr(recommendation_examples, "examples", lambda _: [])
    begun = []

    def start(failing=None, error=None, **sections):
        begun.clear()
        path.write_text(yaml.safe_dump(tree | sections))
        for name in (*KNOWLEDGE, *LISTS, "align_drafter", "train_retriever"):

            def stage(config, store, name=name):
                begun.append(name)
                if name == failing and error is not None:
                    raise error

            monkeypatch.setitem(sys.modules, f"jobs.{name}", SimpleNamespace(run=stage))
        return recommend.main(["--config", str(path)]), begun

    return start


def test_every_stage_runs_in_the_order_of_its_inputs(run):
    assert run() == (0, [*KNOWLEDGE, *LISTS])


def test_without_texts_no_language_model_is_asked(run):
    _, begun = run(semantic_ids={"content": "raw_text"})
    assert begun == ["build_catalog", "train_embeddings", *LISTS]


def test_kept_ids_need_no_behaviour_but_texts_do(run, monkeypatch):
    monkeypatch.setattr(recommend, "_check_earlier", lambda _: None)
    _, begun = run(semantic_ids={"content": "raw_text", "from_run": "monday"})
    assert begun == ["build_catalog", *LISTS]
    _, begun = run(semantic_ids={"from_run": "monday"})
    assert begun == [*KNOWLEDGE, *LISTS]


@pytest.mark.parametrize(
    "sections",
    [{"semantic_ids": {"from_run": "nobody"}}, {"recommender": {"from_run": "nobody"}}],
)
def test_a_run_to_go_on_from_is_looked_for_before_the_first_stage(run, sections):
    assert run(**sections) == (3, [])


@pytest.mark.parametrize(
    ("method", "stage"), [("atspeed_s", "align_drafter"), ("specgr", "train_retriever")]
)
def test_what_a_method_needs_is_trained_before_lists(run, method, stage):
    _, begun = run(recommendation={"method": method})
    assert begun[-3:] == ["train_recommender", stage, "recommend_items"]


def test_error_rows_of_a_stage_stop_no_other_and_are_told_at_the_end(run):
    code, begun = run("generate_knowledge", PartialError("3 rows failed"))
    assert (code, begun) == (4, [*KNOWLEDGE, *LISTS])


def test_a_stage_that_fails_is_the_last(run):
    code, begun = run("train_recommender", DataError("nobody likes anything"))
    assert (code, begun[-1]) == (3, "train_recommender")


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"recommendation": {"method": "specgr_plus"}}, "set retriever.tower to encoder"),
        (
            {"recommendation": {"method": "specgr"}, "retriever": {"tower": "encoder"}},
            "set retriever.tower to content",
        ),
        (
            {"recommendation": {"method": "nezha"}, "recommender": {"placeholder_weight": 0.0}},
            "set it above 0",
        ),
    ],
)
def test_a_method_without_its_models_is_refused_before_anything_is_made(
    run, capsys, sections, told
):
    assert run(**sections) == (2, [])
    assert told in capsys.readouterr().err


def test_a_withdrawn_table_that_is_not_there_is_refused_before_anything_is_made(run, tmp_path):
    gone = str(tmp_path / "gone.csv")
    assert run(recommendation={"withdrawn": gone}) == (3, [])
