"""The config: what is wrong ends the run before any work, and says what would be right."""

from pathlib import Path

import pytest
import yaml

from pipeline.config import RunConfig
from pipeline.config_file import load_config
from pipeline.errors import ConfigError

CONF = Path(__file__).parents[2] / "conf"


def base():
    return {
        "run": "test",
        "catalog": {"source": "movielens", "path": "somewhere"},
        "language_model": {"path": "model"},
        "encoder": {"path": "encoder"},
    }


@pytest.fixture
def load(tmp_path):
    """Write a tree (or raw text) as YAML and load it with overrides."""

    def load_tree(*overrides, tree=None):
        path = tmp_path / "run.yaml"
        text = tree if isinstance(tree, str) else yaml.safe_dump(tree or base())
        path.write_text(text, encoding="utf-8")
        return load_config(path, overrides)

    return load_tree


@pytest.fixture
def complaint(load):
    def complain(*overrides, tree=None):
        with pytest.raises(ConfigError) as caught:
            load(*overrides, tree=tree)
        return str(caught.value)

    return complain


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_we_ship_is_valid(path):
    assert load_config(path).run


# Layers, key-value heads, words, billions of parameters; all have heads of 128.
SHAPES = {
    "Qwen/Qwen2.5-7B-Instruct": (28, 4, 152_064, 7.62),
    "meta-llama/Llama-3.1-8B-Instruct": (32, 8, 128_256, 8.03),
    "mistralai/Mistral-7B-Instruct-v0.3": (32, 8, 32_768, 7.25),
}


@pytest.mark.parametrize(
    ("name", "small"), [("ml10m", 32), ("ml25m", 16), ("amazon_books", 32)], ids=str
)
def test_configs_for_gpus_fit_them(name, small):
    config = load_config(CONF / f"{name}.yaml")
    engine, model = config.engine, config.language_model
    assert (model.dtype, model.device, config.encoder.device) == ("bfloat16", "cuda", "cuda")
    assert config.catalog.split.protocol == "global_time"
    layers, heads, words, billions = SHAPES[model.path]
    token = 2 * layers * heads * 128 * 2
    assert f"= {token:,} bytes per token" in (CONF / f"{name}.yaml").read_text(encoding="utf-8")
    row = engine.max_length * token + (1 + engine.draft_nodes) * words * 10
    for rows, gigabytes in ((engine.batch_rows, 80), (small, 24)):
        assert billions * 2 + rows * row / 1e9 < 0.9 * gigabytes


def test_sections_left_out_get_their_defaults(load):
    assert load().generation.max_new_tokens == 128
    assert load().catalog.max_users is None


@pytest.mark.parametrize(
    ("override", "unknown", "nearest"),
    [
        ("catalogue.path=x", "catalogue", "catalog"),
        ("catalog.max_user=3", "catalog.max_user", "catalog.max_users"),
        ("catalog.split.protocoll=x", "catalog.split.protocoll", "catalog.split.protocol"),
        ("generation.relaxed.topk=2", "generation.relaxed.topk", "generation.relaxed.top_k"),
        ("catalog.tables.users.pth=x", "catalog.tables.users.pth", "catalog.tables.users.path"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(complaint, override, unknown, nearest):
    line = f"{unknown}: unknown key; the nearest valid key is {nearest}"
    assert line in complaint(override)


@pytest.mark.parametrize(
    ("override", "key", "given"),
    [
        ("seed=abc", "seed", "got 'abc'"),
        ("seed=1.5", "seed", "got 1.5"),
        ("run=7", "run", "got 7"),
        ("generation.kinds=user", "generation.kinds", "got 'user'"),
        ("generation.kinds=[user, itm]", "generation.kinds.1", "got 'itm'"),
        ("catalog.split=3", "catalog.split", "got 3"),
        ("cluster=", "cluster", "got None"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_what_was_given(complaint, override, key, given):
    message = complaint(override)
    assert f"  {key}: " in message
    assert given in message


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("seed=-1", "seed: Input should be greater than or equal to 0; got -1"),
        ("ctr.seeds=1", "ctr.seeds: Input should be greater than or equal to 2; got 1"),
        ("catalog.max_users=0", "catalog.max_users: Input should be greater than or equal to 1"),
        ("generation.max_error_share=2", "should be less than or equal to 1; got 2"),
        ("embeddings.learning_rate=0", "should be greater than 0; got 0"),
        ("embeddings.holdout_share=1", "should be less than 1; got 1"),
        ("generation.rule=lose", "Input should be 'strict', 'relaxed' or 'sampled'; got 'lose'"),
        ("catalog.source=web", "should be 'movielens', 'amazon_books' or 'tables'; got 'web'"),
        ("ctr.models=[din, deepmf]", "or 'dcnv2'; got 'deepmf'; the nearest is 'deepfm'"),
        ("run=a/b", "run: String should match pattern"),
    ],
)
def test_a_value_out_of_range_is_named_with_the_range(complaint, override, allowed):
    assert allowed in complaint(override)


def test_settings_that_contradict_each_other_are_refused(complaint):
    assert "catalog.split: train_share + valid_share must stay below 1" in complaint(
        "catalog.split.train_share=0.95"
    )
    assert "catalog: source: tables needs catalog.tables; `laser init` writes" in complaint(
        "catalog.source=tables"
    )
    for source in ("movielens", "amazon_books"):
        overrides = f"catalog.source={source}", "catalog.path="
        assert f"catalog: source: {source} needs catalog.path" in complaint(*overrides)
    assert "source: movielens knows its unit; remove catalog.timestamp_unit" in complaint(
        "catalog.timestamp_unit=ms"
    )
    message = complaint("engine.max_length=600", "prompts.max_tokens=500")
    assert "= 660; raise it to 660" in message


def test_a_number_of_groups_is_a_number_or_auto(load, complaint):
    assert load("groups.user_groups=auto").groups.user_groups == "auto"
    assert load("groups.item_groups=3").groups.item_groups == 3
    for given in ("many", "0", "2.5", "true"):
        message = complaint(f"groups.user_groups={given}")
        assert "groups.user_groups: Input should be a whole number from 1 on, or auto" in message
        assert len(message.splitlines()) == 2


def test_all_problems_are_listed_at_once(complaint):
    tree = base() | {"seed": -1, "modell": {}, "ctr": {"seeds": 1}}
    del tree["encoder"]
    message = complaint(tree=tree)
    for problem in ("seed: ", "modell: unknown key", "ctr.seeds: ", "encoder: missing; add it"):
        assert problem in message
    assert len(message.splitlines()) == 5


def test_a_problem_is_blamed_on_what_has_it(complaint):
    override = "generation.max_new_token=5"
    message = complaint(override)
    assert message.startswith("what --set gives cannot be used:\n")
    assert "run.yaml" not in message
    assert message.endswith(f"generation.max_new_tokens (from --set {override})")
    message = complaint(tree=base() | {"seed": -1})
    assert "run.yaml cannot be used:" in message
    assert "--set" not in message
    first, *problems = complaint("ctr.seeds=1", "run=x", tree=base() | {"seed": -1}).splitlines()
    assert first.endswith("run.yaml with what --set gives cannot be used:")
    assert sorted("(from --set ctr.seeds=1)" in problem for problem in problems) == [False, True]
    assert not any("run=x" in problem for problem in problems)


def test_a_contradiction_is_blamed_on_the_overrides_it_names(complaint):
    message = complaint("generation.min_new_tokens=500", "generation.waves=1", "seed=3")
    assert message.endswith("max_new_tokens 128 (from --set generation.min_new_tokens=500)")
    message = complaint("engine.max_length=600", "seed=3")
    assert message.endswith("(from --set engine.max_length=600)")


def test_overrides_are_yaml_and_may_open_new_sections(load):
    config = load(
        "seed=7",
        "catalog.max_items=",
        "ctr.models=[din]",
        "ctr.learning_rates=[1e-3]",
        "groups.user_attributes=[age, gender]",
        "catalog.split.protocol = global_time",
        "prompts.domain=a=b",
    )
    assert config.seed == 7
    assert config.catalog.max_items is None
    assert config.ctr.models == ["din"]
    assert config.ctr.learning_rates == [pytest.approx(1e-3)]
    assert config.groups.user_attributes == ["age", "gender"]
    assert config.catalog.split.protocol == "global_time"
    assert config.prompts.domain == "a=b"


def test_the_last_of_two_overrides_wins_over_the_file(load):
    assert load("seed=1", "seed=2", tree=base() | {"seed": 3}).seed == 2


@pytest.mark.parametrize(
    ("override", "complaint_part"),
    [
        ("seed", "--set takes section.key=value, got 'seed'"),
        ("=3", "--set takes section.key=value"),
        ("catalog..path=x", "--set takes section.key=value"),
        ("run.name=x", "--set run.name=x: run is a value, not a section"),
        ("seed=[1", "--set seed=[1: the value is not valid YAML"),
        ("seed=2001-02-31", "--set seed=2001-02-31: the value is not valid YAML: day is out"),
    ],
)
def test_a_bad_override_is_named(complaint, override, complaint_part):
    assert complaint_part in complaint(override)


@pytest.mark.parametrize(
    ("text", "complaint_part"),
    [
        ("a: b: c", "run.yaml is not valid YAML"),
        ("run: 2001-02-31", "run.yaml is not valid YAML: day is out"),
        ("run: " + "[" * 9000, "run.yaml is not valid YAML: maximum recursion"),
        ("- 1", "must hold a mapping of sections, not list"),
        ("", "must hold a mapping of sections, not NoneType"),
        ("1: 2", "Keys should be strings"),
    ],
)
def test_a_file_that_is_no_config_is_named(complaint, tmp_path, text, complaint_part):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert complaint_part in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read config .*none\.yaml: No such file"):
        load_config(tmp_path / "none.yaml")


def test_settings_cannot_be_changed_after_loading(load):
    config = load()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "override",
    [
        "run=..",
        "run=.hidden",
        "seed=true",
        "engine.batch_rows=true",
        "catalog.positive_rating=.nan",
        "prompts.domain=''",
    ],
)
def test_values_that_only_look_right_are_refused(complaint, override):
    assert override.partition("=")[0] in complaint(override)


@pytest.mark.parametrize("section", ["recommender", "aligned_drafter"])
@pytest.mark.parametrize(("width", "heads"), [(30, 4), (12, 4), (15, 1)])
def test_heads_take_even_shares_of_the_width(load, complaint, section, width, heads):
    given = [f"{section}.hidden_dim={width}", f"{section}.heads={heads}"]
    message = complaint(*given)
    assert f"{section}: hidden_dim is {width} and heads is {heads}, but every head" in message
    assert f"a multiple of {2 * heads}" in message
    assert all(f"--set {one}" in message for one in given)
    load(f"{section}.hidden_dim={6 * heads}", f"{section}.heads={heads}")


def test_a_backbone_brings_its_own_heads(load):
    load("recommender.backbone=some/model", "recommender.hidden_dim=30", "recommender.heads=4")


def test_plain_texts_to_compare_with_are_another_run_s(load, complaint):
    assert load().plain_run is None
    assert load("plain_run=strict-1").plain_run == "strict-1"
    assert "plain_run is 'test', the run itself" in complaint("plain_run=test")
    assert "plain_run" in complaint("plain_run=../elsewhere")
