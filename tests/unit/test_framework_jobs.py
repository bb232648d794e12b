"""What another framework makes stale, and what it must not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from features.frameworks import REGISTRY, framework_named
from jobs.waves import CATALOG, Identity, plan_wave, require_own_framework
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.schemas import KNOWLEDGE, SCHEMAS
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
    with pytest.raises(DataError, match=r"written for the framework trawl, .* names kar; run gen"):
        require_own_framework(config(), store)


def test_knowledge_of_an_older_wording_is_nobody_else_s(store, monkeypatch):
    write_knowledge(store, "trawl")
    newer = framework_named("trawl")
    reworded = replace(newer, templates=replace(newer.templates, user="Another wording."))
    monkeypatch.setattr(f"{REGISTRY['trawl']}.FRAMEWORK", reworded)
    require_own_framework(config(), store)
