"""What a status says of runs of other kinds than the demo's."""

import os
import re
import time

import yaml

from jobs.show_status import facts_of, lines
from pipeline.config_file import load_config
from pipeline.store import Store


def a_run(tmp_path, *overrides):
    tree = {
        "run": "r",
        "artifacts": str(tmp_path),
        "catalog": {"source": "movielens", "path": "x"},
        "language_model": {"path": "x"},
        "encoder": {"path": "x"},
    }
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(tree))
    return load_config(path, overrides), Store(tmp_path / "r")


def make(store, *names):
    for name in names:
        store.plan(name, {}).write_json("x.json", {}, 3)


def states(config, store):
    return {one["dataset"]: one["state"] for one in facts_of(config, store)["datasets"]}


def test_a_run_of_lists_alone_lacks_no_texts(tmp_path):
    config, store = a_run(tmp_path, "recommendation.method=atspeed_s")
    make(store, "users", "items", "interactions", "semantic_ids", "recommender")
    found = states(config, store)
    assert found["aligned_drafter"] == found["recommendations"] == "missing"
    assert "knowledge" not in found
    assert facts_of(config, store)["exit_code"] == 6
    make(store, "aligned_drafter", "recommendations")
    assert facts_of(config, store)["exit_code"] == 0


def test_of_a_run_with_texts_lists_are_besides(tmp_path):
    config, store = a_run(tmp_path)
    make(store, "groups", "recommendations")
    found = states(config, store)
    assert found["knowledge"] == "missing"
    assert found["recommendations"] == "made"


def test_without_ratings_the_check_is_left_out_and_no_run_lacks_it(tmp_path):
    config, store = a_run(tmp_path, "catalog.positive_rating=null")
    found = states(config, store)
    assert found["fits"] == found["ctr"] == found["controls/history/features"] == "left out"
    told = "\n".join(lines(facts_of(config, store)))
    assert "left out: without ratings" in told


def test_a_dataset_of_older_inputs_is_stale(tmp_path):
    config, store = a_run(tmp_path)
    make(store, "users", "groups")
    store.plan("knowledge", {}, ["groups"]).write_json("x.json", {}, 3)
    assert states(config, store)["knowledge"] == "made"
    store.plan("groups", {"seed": 2}).write_json("x.json", {}, 4)
    assert states(config, store)["knowledge"] == "stale"
    assert "from older inputs" in "\n".join(lines(facts_of(config, store)))


def test_times_are_told_as_the_report_tells_them(tmp_path):
    config, store = a_run(tmp_path)
    make(store, "users")
    manifest = store.path("users") / "manifest.json"
    manifest.write_text(re.sub(r'"seconds": [0-9.]+', '"seconds": 200.0', manifest.read_text()))
    (store.root / "run.log").write_text("12:00:00 last words\n")
    os.utime(store.root / "run.log", (time.time() - 4000,) * 2)
    told = "\n".join(lines(facts_of(config, store)))
    assert "3 min 20 s" in told
    assert "last line of run.log, 1 h 06 min ago: 12:00:00 last words" in told
