"""What another framework makes stale, and what it must not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from features.frameworks import REGISTRY, framework_named, shipped_templates
from jobs import (
    check_ctr,
    compare_decoding,
    encode_features,
    export_features,
    fit_models,
    generate_knowledge,
    measure_quality,
)
from jobs.merge_waves import totals_in
from jobs.wave_names import knowledge_name, last_wave
from jobs.waves import CATALOG, Identity, plan_wave, require_own_framework
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.schemas import FEATURES, KNOWLEDGE, SCHEMAS
from pipeline.store import Store

IDENTITY = Identity(SimpleNamespace(fingerprint="tokenizer"), "model")


def config(framework=None):
    tree = {
        "run": "test",
        "catalog": {"source": "movielens", "path": "nowhere"},
        "language_model": {"path": "nowhere"},
        "encoder": {"path": "nowhere"},
    }
    return RunConfig.model_validate(tree | ({"framework": framework} if framework else {}))


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    for name in [*CATALOG, "groups"]:
        store.plan(name, {}).write(SCHEMAS[name][0].empty_table())
    return store


def write_knowledge(store, framework):
    plan_wave(config(framework), store, 0, IDENTITY).write(KNOWLEDGE.empty_table())


def test_every_framework_s_knowledge_is_its_own(store):
    prints = {plan_wave(config(name), store, 0, IDENTITY).fingerprint for name in REGISTRY}
    assert len(prints) == len(REGISTRY)


def test_kar_is_the_default_and_its_knowledge_depends_on_what_it_always_did(store):
    plan = plan_wave(config(), store, 0, IDENTITY)
    assert plan.fingerprint == plan_wave(config("kar"), store, 0, IDENTITY).fingerprint
    assert plan.settings["templates"] == "b0ca77e929f03429"
    assert plan.settings.keys() == {"prompts", "templates", "generation", "model", "tokenizer"}
    assert "framework" not in plan.settings["prompts"]


def test_knowledge_of_another_framework_is_refused_by_the_stages_after_it(store):
    require_own_framework(config("once"), store)  # there is none yet
    write_knowledge(store, "trawl")
    require_own_framework(config("trawl"), store)
    match = r"written for the framework trawl, .* names kar; run `laser generate`"
    with pytest.raises(DataError, match=match):
        require_own_framework(config(), store)


@pytest.mark.parametrize(
    "job",
    [encode_features, measure_quality, check_ctr, export_features, compare_decoding],
    ids=lambda j: j.__name__,
)
def test_every_stage_after_knowledge_refuses_another_framework_s(store, job):
    write_knowledge(store, "trawl")
    merge(store, {"framework": "trawl"})
    store.plan("features", {}, ["knowledge"]).write(FEATURES.empty_table())
    with pytest.raises(DataError, match="written for the framework trawl"):
        job.run(config(), store)


def test_a_comparison_depends_on_the_wording():
    asked = [compare_decoding.settings_of(config(name), IDENTITY)["templates"] for name in REGISTRY]
    assert asked == [shipped_templates(name).hash for name in REGISTRY]


@pytest.mark.parametrize("name", REGISTRY)
def test_another_adaptor_or_loss_makes_checks_anew_and_nothing_else(name, monkeypatch):
    settings = config(name)
    before = fit_models.settings_of(settings, None)
    assert before["framework"] == name
    newer = replace(framework_named(name), learning="another")
    monkeypatch.setattr(f"{REGISTRY[name]}.FRAMEWORK", newer)
    assert fit_models.settings_of(settings, None) == before | {"learning": "another"}


def test_a_new_format_makes_exports_anew(monkeypatch):
    before = export_features.settings_of(config())
    monkeypatch.setattr(export_features, "FORMAT", before["format"] + 1)
    assert export_features.settings_of(config()) == before | {"format": before["format"] + 1}


def merge(store, facts=None):
    store.plan("knowledge", {}, [knowledge_name(0), "groups"]).write(KNOWLEDGE.empty_table(), facts)


@pytest.mark.parametrize("facts", [{}, {"framework": "kar"}], ids=["older", "named"])
def test_after_an_interrupted_change_of_framework_knowledge_is_neither_s(store, facts):
    """Wave 0 is trawl's already, `knowledge` still kar's."""
    write_knowledge(store, "kar")
    merge(store, facts)
    require_own_framework(config(), store)
    write_knowledge(store, "trawl")
    for name in ("kar", "trawl", "once"):
        with pytest.raises(DataError, match=r"from other waves .* run `laser generate` again"):
            require_own_framework(config(name), store)
    merge(store, {"framework": "trawl"})
    require_own_framework(config("trawl"), store)


def test_merged_knowledge_says_whose_it_is_whatever_wave_0_looks_like(store):
    write_knowledge(store, "kar")
    merge(store, {"framework": "once"})
    require_own_framework(config("once"), store)
    with pytest.raises(DataError, match=r"written for the framework once, .* names kar"):
        require_own_framework(config(), store)


def test_merging_notes_the_framework(store):
    settings = config("trawl")
    for wave in range(last_wave(settings) + 1):
        plan = store.plan(knowledge_name(wave), {})
        plan.write(KNOWLEDGE.empty_table(), totals_in(KNOWLEDGE.empty_table()))
    generate_knowledge._merge(settings, store)
    assert store.require("knowledge").facts["framework"] == "trawl"


def test_knowledge_of_an_older_wording_is_nobody_else_s(store, monkeypatch):
    write_knowledge(store, "trawl")
    newer = {name: shipped_templates(name) for name in REGISTRY}
    newer["trawl"] = replace(newer["trawl"], user="Another wording.")
    monkeypatch.setattr("jobs.waves.shipped_templates", newer.__getitem__)
    require_own_framework(config(), store)
