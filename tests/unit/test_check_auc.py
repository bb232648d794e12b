"""`make auc`: which runs there are, that a failed stage ends it, and what the table says."""

import json
from pathlib import Path

import pytest

from jobs import check_auc
from jobs.cli import Ended
from pipeline.config_file import load_config
from pipeline.store import Store

CONF = Path(__file__).parents[2] / "conf/auc.yaml"
GAIN = {"auc": -0.00123, "low": -0.01, "high": 0.0075}
MODEL = {
    "arms": {"base": {"auc": 0.71234}, "knowledge": {}},
    "gains": {"knowledge": GAIN, "plain": {"auc": None, "low": None, "high": None}},
    "verdict": "no evidence",
    "lossless": "not enough data to say",
}


def test_every_protocol_and_framework_has_a_strict_run_and_a_relaxed_one_that_knows_it():
    config = load_config(CONF)
    found = list(check_auc.parts(config))
    assert [(part.protocol, part.framework, part.is_sliced) for part in found[:4]] == [
        ("global_time", "kar", False),
        ("global_time", "once", False),
        ("global_time", "trawl", True),
        ("global_time", "rlmrec", True),
    ]
    assert [part.protocol for part in found[4:]] == ["per_user_prefix"] * 4
    for part in found:
        strict, relaxed = (
            load_config(CONF, part.overrides(config, rule)) for rule in ("strict", "relaxed")
        )
        assert relaxed.plain_run == strict.run != relaxed.run
        assert strict.plain_run is None
        assert (strict.generation.rule, relaxed.generation.rule) == ("strict", "relaxed")
        for made in (strict, relaxed):
            assert made.framework == part.framework
            assert made.catalog.split.protocol == part.protocol
            assert made.generation.max_new_tokens == part.tokens
            assert made.catalog.max_users == (100 if part.is_sliced else None)


@pytest.fixture
def called(monkeypatch):
    """Instead of jobs; `called.code` is what they end with."""

    class Called(list):
        code = 0

    calls = Called()

    def execute(job, path, overrides):
        assert path == CONF
        calls.append((job.__module__, dict(word.split("=", 1) for word in overrides)))
        return Ended(calls.code)

    monkeypatch.setattr(check_auc.cli, "execute", execute)
    monkeypatch.setattr(check_auc, "check_inputs", lambda config: None)
    return calls


def test_stages_go_in_order_and_the_table_comes_last(called):
    argv = ["--config", str(CONF), "--set", "auc.sliced={}", "--set", "auc.protocols=[global_time]"]
    assert check_auc.main(argv) == 0
    runs = list(dict.fromkeys(settings.get("run") for _, settings in called))
    assert runs == [
        "auc-global_time-kar-strict",
        "auc-global_time-kar-relaxed",
        "auc-global_time-once-strict",
        "auc-global_time-once-relaxed",
        None,
    ]
    of_relaxed = [name for name, settings in called if settings.get("run") == runs[1]]
    assert of_relaxed == [f"jobs.{stage}" for stage in check_auc._RELAXED_STAGES]
    assert called[-1][0] == "jobs.check_auc"


@pytest.mark.parametrize(("code", "is_end"), [(3, True), (130, True), (4, False), (5, False)])
def test_a_failed_stage_ends_it_and_error_rows_and_missed_thresholds_do_not(called, code, is_end):
    called.code = code
    assert check_auc.main(["--config", str(CONF)]) == code
    assert (len(called) == 1) == is_end
    assert is_end or called[-1][0] == "jobs.check_auc"


def test_what_cannot_be_checked_is_refused_before_anything_is_written(called, capsys):
    argv = ["--config", str(CONF), "--set", "auc.frameworks={kar: 64, onec: 32}"]
    assert check_auc.main(argv) == 2
    assert "'onec' is none of" in capsys.readouterr().err
    nothing = ["--set", "auc.frameworks={}", "--set", "auc.sliced={}"]
    assert check_auc.main(["--config", str(CONF), *nothing]) == 2
    assert "nothing is checked" in capsys.readouterr().err
    long = ["--set", "auc.frameworks={kar: 4000}"]
    assert check_auc.main(["--config", str(CONF), *long]) == 2
    assert "engine.max_length" in capsys.readouterr().err
    assert called == []


def test_a_slice_has_runs_of_its_own():
    config = load_config(CONF, ["auc.sliced={kar: 64}"])
    names = [part.run(config, "strict") for part in check_auc.parts(config)]
    assert len(names) == len(set(names)) == 6
    assert "auc-global_time-slice-kar-strict" in names


def test_the_table_has_every_arm_s_gain_with_its_interval():
    result = {"protocol": "global_time", "framework": "kar", "is_sliced": True}
    unknown = MODEL | {"arms": {"base": {"auc": None}}, "gains": {}}  # test rows of one label
    [*_, last] = check_auc.table_of([result | {"models": {"din": unknown}}])
    assert last == "| global_time | kar (slice) | din | unknown |"
    assert list(check_auc.table_of([result | {"models": {"din": MODEL}}])) == [
        "| protocol | framework | model | base | knowledge | plain |",
        "|---|---|---|---|---|---|",
        "| global_time | kar (slice) | din | 0.7123 | -0.0012 (-0.0100 to +0.0075) | unknown |",
    ]


def test_checks_are_gathered_and_gathered_anew_when_one_has_changed(tmp_path):
    config = load_config(CONF, [f"artifacts={tmp_path}", "auc.sliced={}"])
    for number, part in enumerate(check_auc.parts(config)):
        store = Store(tmp_path / part.run(config, "relaxed"))
        facts = {"protocol": part.protocol, "framework": part.framework, "models": {"din": MODEL}}
        store.plan("ctr", {}).write_files(lambda folder: None, num_rows=number, facts=facts)
    store = Store(tmp_path / "auc")
    check_auc.run(config, store)
    results = json.loads((store.path("auc") / "auc.json").read_text())
    assert [result["run"] for result in results] == [
        part.run(config, "relaxed") for part in check_auc.parts(config)
    ]
    assert (store.path("auc") / "auc.md").read_text().count("| kar | din |") == 2
    version = store.require("auc").version
    check_auc.run(config, store)
    assert store.require("auc").version == version
    changed = Store(tmp_path / results[0]["run"])
    changed.plan("ctr", {"seed": 2}).write_files(
        lambda folder: None, num_rows=1, facts={"models": {}}
    )
    check_auc.run(config, store)
    assert store.require("auc").version != version
