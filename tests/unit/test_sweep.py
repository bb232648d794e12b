"""The sweep on texts whose groups we know."""

from dataclasses import replace

import numpy as np
import pytest

from jobs.sweep_plots import render
from jobs.sweep_pools import lines, replay_arm
from jobs.sweep_rows import Texts, prepare_texts
from jobs.sweep_summary import Draws, Outcome, spread, summarise
from jobs.sweep_variations import Arm, Variations
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig, SweepSettings
from pipeline.engine.budget import FREE
from pipeline.engine.stops import Stops
from pipeline.engine.types import Request
from pipeline.errors import ConfigError
from retrieval_pools.replay import Recording

STOPS = Stops([2])
GROUPS, MEMBERS, LENGTH = 8, 8, 24  # of either kind


@pytest.fixture
def config(tmp_path):
    return RunConfig(
        run="test",
        artifacts=tmp_path,
        catalog=CatalogSettings(source="movielens", path=tmp_path),
        language_model={"path": "none"},
        encoder={"path": "none"},
        generation={"rule": "strict"},
        sweep=SweepSettings(
            groups=[1, GROUPS], texts=[2], depths=[2, 8], nodes=[2, 16], seeds=2, bootstrap=200
        ),
    )


def make_texts(has_groups):
    """Users and items in groups; members of one say nearly the same, if there are groups."""
    random = np.random.default_rng(0)
    topics = random.integers(3, 500, (2 * GROUPS, LENGTH))
    rows = []
    for number in range(2 * GROUPS * MEMBERS):
        group, member = number % (2 * GROUPS), number // (2 * GROUPS)
        text = topics[group if has_groups else group % 2].copy()
        text[random.random(LENGTH) < 0.15] = 600 + number
        kind = "user" if group % 2 else "item"
        prompt = np.array([number + 700], np.int32)
        request = Request(str(number), prompt, LENGTH, f"{kind}/{group}")
        rows.append((kind, f"{kind}/{group}", member * 3 // MEMBERS, text, request, group))
    return Texts(
        [Recording(request, text.astype(np.int32), "length") for *_, text, request, _ in rows],
        np.array([row[0] for row in rows], str),
        np.array([row[2] for row in rows], np.int64),
        np.array([row[1] for row in rows], object),
        np.ones(len(rows), bool),
        random.random(len(rows)).astype(np.float32),
        np.eye(2 * GROUPS)[[row[5] for row in rows]].astype(np.float32),
    )


@pytest.fixture(scope="module")
def texts():
    return make_texts(has_groups=True)


def records_of(config, texts, experiment):
    arms = [arm for arm in Variations(config, texts, "user").arms() if arm.experiment == experiment]
    outcomes = [replay_arm(texts, arm, STOPS) for arm in arms]
    found = summarise(arms, outcomes, config.sweep.bootstrap, config.seed)
    return {(record["series"], record["value"]): record for record in found}


def test_no_row_finds_its_own_text_in_a_pool(config, texts):
    for arm in Variations(config, texts, "user").arms():
        for setting in arm.settings:
            pooled = np.concatenate(list(setting.pools.values()) or [np.empty(0, int)])
            assert not set(setting.rows.tolist()) & set(pooled.tolist())
            assert (texts.kinds[setting.rows] == "user").all()


def test_every_arm_is_held_against_one_of_its_experiment(config, texts):
    arms = list(Variations(config, texts, "item").arms())
    names = {(arm.experiment, arm.name) for arm in arms}
    assert len(names) == len(arms)
    assert {(arm.experiment, arm.against) for arm in arms} <= names


def test_random_groups_and_samples_are_as_large_as_groups(config, texts):
    arms = {arm.series: arm for arm in Variations(config, texts, "user").arms()}
    pools = arms["group"].settings[0].pools
    for setting in arms["random group"].settings:
        assert {name: len(own) for name, own in setting.pools.items()} == {
            name: len(own) for name, own in pools.items()
        }
        assert any(set(setting.pools[name]) != set(own) for name, own in pools.items())
    for setting in arms["sample of all"].settings:
        for name, own in setting.pools.items():
            assert texts.lengths[own].sum() <= texts.lengths[pools[name]].sum()
            assert len(own) == len(pools[name])  # all texts are of one length here


def test_groups_that_say_the_same_gain_over_random_ones(config, texts):
    records = records_of(config, texts, "scope")
    group = records["group", ""]
    assert group["against"] == "random group"
    assert group["gain"]["low"] > 0.2
    assert group["tokens_per_pass"]["low"] > records["own text only", ""]["tokens_per_pass"]["high"]
    assert group["accepted_by_source"]["group"] > 0


def test_groups_that_mean_nothing_gain_nothing(config):
    record = records_of(config, make_texts(has_groups=False), "scope")["group", ""]
    assert record["gain"]["low"] < 0.05
    assert abs(record["gain"]["mean"]) < 0.15


def test_k_means_finds_the_groups_and_pools_shrink(config, texts):
    records = records_of(config, texts, "groups")
    one, many = records["group", "1"], records["group", str(GROUPS)]
    past = int((texts.is_past & (texts.kinds == "user")).sum())
    assert (one["texts_per_pool"], many["texts_per_pool"]) == (past, past / GROUPS)
    assert one["gain"] == {"mean": 0.0, "low": 0.0, "high": 0.0}  # against itself


def test_larger_pools_deeper_drafts_and_more_nodes_never_hurt_here(config, texts):
    for experiment, small, large in (("depth", "2", "8"), ("nodes", "2", "16")):
        records = records_of(config, texts, experiment)
        series = "own + group + global"
        assert records[series, large]["gain"]["low"] > 0.0
        assert records[series, small]["against"] == f"{series} {small}"
    records = records_of(config, texts, "texts")
    assert records["group", "2"]["texts_per_pool"] == 2
    scope = records_of(config, texts, "scope")
    assert scope["global", ""]["texts_per_pool"] == texts.is_past.sum()
    assert scope["own text only", ""]["texts_per_pool"] == 0
    assert (
        records["kind", "all"]["texts_per_pool"] == (texts.is_past & (texts.kinds == "user")).sum()
    )


def test_first_texts_are_as_many_whoever_chooses(config, texts):
    arms = [
        arm for arm in Variations(config, texts, "user").arms() if arm.experiment == "first texts"
    ]
    by_series = {arm.series: arm.settings for arm in arms}
    for number, chosen in enumerate(by_series["representatives"]):
        assert set(texts.waves[np.concatenate(list(chosen.pools.values()))]) == {0}
        for series in ("random", "nearest"):
            other = by_series[series][number]
            assert {name: len(own) for name, own in other.pools.items()} == {
                name: len(own) for name, own in chosen.pools.items()
            }
            assert other.rows.tolist() == chosen.rows.tolist()
    nearest = by_series["nearest"][0].pools
    for group, own in nearest.items():
        others = np.setdiff1d(np.flatnonzero(texts.groups == group), own)
        assert texts.distances[own].max() <= texts.distances[others].min()


def an_arm(name, against):
    return Arm("made up", name, "", [], (against, ""))


def an_outcome(tokens, passes, seconds=None, plain=None):
    return Outcome(
        np.array(tokens), np.array(passes), 10, np.array([0, 0, 4, 1, 0]), np.zeros(3, int), 1.0,
        seconds, plain,
    )  # fmt: skip


def test_gains_are_compared_row_by_row():
    """Rows differ much, arms by a tenth in every row: the gain is certain."""
    tokens = np.array([[100, 10, 300, 50, 80, 20]])
    slow, fast = tokens, tokens // 2
    arms = [an_arm("fast", "slow"), an_arm("slow", "slow")]
    outcomes = [
        an_outcome(tokens, fast, np.array([1.0] * 6), np.array([3.0] * 6)),
        an_outcome(tokens, slow),
    ]
    record, other = summarise(arms, outcomes, 100, seed=0)
    assert record["gain"] == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0})
    assert record["tokens_per_pass"]["mean"] == 2.0
    assert record["speedup"] == pytest.approx({"mean": 3.0, "low": 3.0, "high": 3.0})
    assert other["speedup"] is None
    assert record["accepted_by_source"] == {"group": 4, "global": 1}
    assert record["accepted_share"] == 0.5


def test_rows_that_were_not_replayed_are_not_drawn():
    draws = Draws.of_rows(np.array([1, 3]), 5, 50, seed=0)
    assert draws.counts[:, [0, 2, 4]].sum() == 0
    assert (draws.counts.sum(axis=1) == 2).all()


def test_an_interval_covers_the_seeds_too():
    """Both seeds have equal rows, so all spread is that of the seeds."""
    tokens, passes = np.full((2, 4), 12), np.array([[6] * 4, [4] * 4])
    draws = Draws.of_rows(np.arange(4), 4, 200, seed=0)
    assert spread(2.4, draws.ratios(tokens, passes)) == {"mean": 2.4, "low": 2.0, "high": 3.0}


def test_expected_seconds_are_those_of_replayed_rows_only(config, texts):
    arm = next(iter(Variations(config, texts, "user").arms()))
    outcome = replay_arm(texts, arm, STOPS, FREE, np.full(len(texts), 9.0))
    rows = arm.settings[0].rows
    assert outcome.seconds.tolist() == outcome.passes[0].tolist()  # a pass takes one second
    assert outcome.plain_seconds.sum() == 9.0 * len(rows)


def test_a_page_and_a_table_name_every_arm(config, texts):
    arms = list(Variations(config, texts, "user").arms())
    outcomes = [replay_arm(texts, replace(arm, settings=arm.settings[:1]), STOPS) for arm in arms]
    records = [{"kind": "user"} | one for one in summarise(arms, outcomes, 100, 0)]
    number = {"mean": 2.0, "low": 1.0, "high": 3.0}
    rule = {"kind": "user", "rule": "k=2, p=<0.1>", "rows": 1}
    rule |= {"tokens_per_pass": number, "nats_per_token": number}
    sweep = {"run": "r", "model": "m", "past_texts": 7, "arms": records, "rules": [rule]}
    page, table = render(sweep), "\n".join(lines(sweep))
    for record in records:
        assert record["series"] in page
        assert record["series"] in table
    assert "k=2, p=&lt;0.1&gt;" in page
    assert page.count("<svg") == 8  # one of them for the rules
    assert "http" not in page


@pytest.mark.parametrize(
    ("section", "change"),
    [("generation", {"rule": "relaxed"}), ("refresh", {"previous": "monday"})],
)
def test_texts_that_cannot_be_replayed_are_refused(config, section, change):
    settings = getattr(config, section).model_copy(update=change)
    with pytest.raises(ConfigError, match=rf"{section}\.{next(iter(change))}"):
        prepare_texts(config.model_copy(update={section: settings}), None, None)
