"""A sweep over the bookshop, from CSV files to a page."""

import json

import pytest

from jobs import sweep_pools
from pipeline.store import Store

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # third parties warn as they please inside workers
]


def test_a_sweep_makes_what_it_needs_and_says_what_groups_gain(config_file, capsys):
    changes = [
        "run=swept",
        "generation.rule=strict",
        "sweep.groups=[1, 2]",
        "sweep.texts=[4]",
        "sweep.depths=[8]",
        "sweep.nodes=[8]",
        "sweep.seeds=2",
        "sweep.bootstrap=100",
        "sweep.rule_rows=1",
        "sweep.rule_top_k=[5]",
        "sweep.rule_floors=[0.0]",
        "sweep.rule_nats=[0.1]",
    ]
    arguments = ["--config", str(config_file)]
    for change in changes:
        arguments += ["--set", change]
    assert sweep_pools.main(arguments) == 0
    last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    store = Store(config_file.parent / "artifacts" / "swept")
    sweep = json.loads((store.path("sweep") / "sweep.json").read_text())
    assert (store.path("sweep") / "sweep.html").stat().st_size > 10_000
    assert {record["kind"] for record in sweep["arms"]} == {"user", "item"} == set(last)
    assert {record["rule"] for record in sweep["rules"]} == {
        *("strict", "k=5, p=0", "budget of 0.1 nats")
    }
    for record in sweep["rules"]:
        is_strict = record["rule"] == "strict"
        assert (record["nats_per_token"]["mean"] == 0.0) or not is_strict
    assert all(record["speedup"]["mean"] > 0.0 for record in sweep["arms"])  # costs were measured
    held_out = store.require("waves/2/knowledge").num_rows
    scope = {r["kind"]: r["rows"] for r in sweep["arms"] if r["experiment"] == "scope"}
    assert sum(scope.values()) == held_out
