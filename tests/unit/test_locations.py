"""Paths and URIs in a config: what is local stays local, and no secret gets in."""

from pathlib import Path

import pytest
import yaml

from pipeline.config_file import load_config
from pipeline.errors import ConfigError
from pipeline.locations import is_remote, parse_location, without_secrets

SECRET = "wJalr/XUtn+FEMI"


@pytest.fixture
def load(tmp_path):
    """Load a config with changed sections, and with overrides."""

    def build(*overrides, **sections):
        tree = {
            "run": "r",
            "catalog": {"source": "movielens", "path": "x"},
            "language_model": {"path": "x"},
            "encoder": {"path": "x"},
        } | sections
        path = tmp_path / "r.yaml"
        path.write_text(yaml.safe_dump(tree))
        return load_config(path, overrides)

    return build


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("data/books.csv", Path("data/books.csv")),
        ("~/books", Path("~/books")),
        ("/data/a b", Path("/data/a b")),
        ("file:///data/a%20b", Path("/data/a b")),
        ("s3://shop/books/", "s3://shop/books"),
        ("s3://shop/a?region=eu-west-1", "s3://shop/a?region=eu-west-1"),
        ("gs://shop/books", "gs://shop/books"),
        ("abfs://books@shop.dfs.core.windows.net/a", "abfs://books@shop.dfs.core.windows.net/a"),
        ("s3://shop/me@home.org/data", "s3://shop/me@home.org/data"),
        ("s3://shop/a%23b", "s3://shop/a%23b"),
    ],
)
def test_a_location_is_a_local_path_or_a_uri(given, meant):
    assert parse_location(given) == meant
    assert is_remote(parse_location(given)) == isinstance(meant, str)


def test_every_place_of_a_config_may_be_remote(load):
    config = load(
        artifacts="s3://shop/artifacts",
        catalog={"source": "movielens", "path": "s3://shop/ml"},
        language_model={"path": "s3://shop/llm"},
        encoder={"path": "s3://shop/encoder"},
        drafts={"source": "model", "model": {"path": "file:///models/small"}},
    )
    assert config.artifacts == "s3://shop/artifacts"
    assert config.catalog.path == "s3://shop/ml"
    assert config.catalog.model_dump(mode="json")["path"] == "s3://shop/ml"
    assert config.drafts.model.path == "/models/small"
    assert load().artifacts == Path("artifacts")
    assert load("language_model.path=org/model").language_model.path == "org/model"


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("shop://a/b", r"artifacts: the scheme shop:// is unknown; .* s3://, gs://"),
        ("hdfs://shop/a", r"artifacts: the scheme hdfs:// is unknown"),
        ("s3://shop/a#b", "artifacts: the URI holds a #, which would end it; write %23 instead"),
        ("s3:///a", "artifacts: the URI names no bucket"),
        (f"s3://AKIA:{SECRET}@shop/a", r"carries a key; put it into the environment \(S3: AWS_ACC"),
        ("s3://AKIA@shop/a", "carries a key; put it into the environment"),
        (f"s3://AKIA:{SECRET}#@shop/a", "carries a key; put it into the environment"),
        (f"gs://me:{SECRET}@shop/a", "carries a key; put it into the environment"),
        (f"s3://shop/a?secret_key={SECRET}", "carries the secret secret_key; put it into the"),
        (f"abfs://c@shop/a?sig={SECRET}", "carries the secret sig; put it into the environment"),
        (3, "artifacts: Input should be a path or a URI; got 3"),
    ],
)
def test_a_location_that_cannot_be_used_is_refused_without_its_secret(load, uri, complaint):
    for attempt in (lambda: load(artifacts=uri), lambda: load(f"artifacts={uri}")):
        with pytest.raises(ConfigError, match=complaint) as caught:
            attempt()
        assert SECRET not in str(caught.value)
        assert "AKIA" not in str(caught.value)
        assert caught.value.__cause__ is None  # it would repeat what was given


def test_a_model_is_refused_alike(load):
    for section in ("encoder", "language_model"):
        with pytest.raises(ConfigError, match=f"{section}.path: the URI carries a key") as caught:
            load(f"{section}.path=s3://AKIA:{SECRET}@shop/a")
        assert SECRET not in str(caught.value)


def test_a_secret_in_another_error_is_left_out_too(load):
    for name in ("artifact=", "artifacts=[", "run.x="):
        override = f"{name}s3://a:{SECRET}@shop"
        with pytest.raises(ConfigError) as caught:
            load(override)
        assert SECRET not in str(caught.value)


def test_only_secrets_are_left_out():
    text = "s3://a:b/c@shop/x?region=eu and gs://shop?token=abc&region=eu, me@home"
    assert (
        without_secrets(text)
        == "s3://...@shop/x?region=eu and gs://shop?token=...&region=eu, me@home"
    )
