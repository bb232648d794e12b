"""The report: complete and strict JSON, and a safe, self-contained page, whatever was made."""

import base64
import gzip
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features import charts, formats, provenance
from features.frameworks import templates_of
from features.page.render import render
from features.report import summarise
from jobs import write_report
from pipeline import language_model
from pipeline.errors import DataError, ModelError
from pipeline.prompts import build_prompts, prompt_hash
from pipeline.raw_tables import LeftOut
from pipeline.schemas import KINDS, SCHEMAS, SPLITS
from pipeline.store import MANIFEST, Store

SECTIONS = [
    *("done", "speed", "acceptance", "groups", "map"),
    *("explorer", "texts", "quality", "check", "errors", "reproduce"),
]
HOSTILE = '<script>alert(1)</script> & "Heat" <b>'
VOID = {"meta", "br", "hr", "img", "input", "link"}


def knowledge_row(kind, entity_id, wave=1, passes=10, tokens=30, rule="relaxed", error=""):
    drafted = wave > 0 and not error
    return {
        "kind": kind,
        "entity_id": entity_id,
        "group_id": f"{kind}:c0",
        "wave": wave,
        "prompt_hash": f"{kind} {entity_id}",
        "content_key": f"{kind}-{entity_id}",
        "request_key": f"{kind}-{entity_id}-1",
        "text": "" if error else f"text about {entity_id}",
        "token_ids": [] if error else list(range(tokens)),
        "token_origins": [] if error else [2 * drafted] * tokens,
        "finish_reason": "error" if error else "length",
        "rule": rule if wave else "plain",
        "pool_version": "p1",
        "prompt_tokens": 50,
        "asof": 9,
        "source_events": 3,
        "latest_source": 0,
        "forward_passes": 0 if error else passes,
        "relaxed_tokens": 3 if drafted else 0,
        "relaxed_cost": 1.5 if drafted else 0.0,
        "drafted_by_source": [0, 40, 20, 0] if drafted else [],
        "accepted_by_source": [0, 16, 4, 0] if drafted else [],
        "drafted_by_depth": [30, 20, 10] if drafted else [],
        "accepted_by_depth": [12, 6, 2] if drafted else [],
        "drafted_by_chance": [10, 0, 0, 0, 0, 30, 0, 0, 0, 20] if drafted else [],
        "accepted_by_chance": [1, 0, 0, 0, 0, 9, 0, 0, 0, 10] if drafted else [],
        "chance_by_decile": [0.5, 0, 0, 0, 0, 16.5, 0, 0, 0, 19] if drafted else [],
        "error": error,
    }


def tables_of(num_users, num_items, failing=0):
    """A small catalog and all that the stages make of it; the first users fail."""
    rng = np.random.default_rng(7)
    users = [f"u{index}" for index in range(num_users)]
    items = [f"i{index}" for index in range(num_items)]
    entities = [("user", name) for name in users] + [("item", name) for name in items]
    vectors = rng.normal(size=(len(entities), 4)).astype(np.float32)
    past = [{"user_id": u, "item_id": i} for u in users for i in items[:4]]
    return {
        "users": [{"user_id": name, "attributes": [("age", "24")]} for name in users],
        "items": [
            {"item_id": name, "title": f"Film {name}", "attributes": [("genre", "Drama")]}
            for name in items
        ],
        "interactions": [
            {**row, "rating": 4.0, "label": 1, "timestamp": n, "split": SPLITS[n % 4]}
            for n, row in enumerate(past)
        ],
        "embeddings": [
            {
                "kind": kind,
                "entity_id": name,
                "num_interactions": 0 if name.endswith("0") else 5,
                "vector": vector.tolist(),
            }
            for (kind, name), vector in zip(entities, vectors, strict=True)
        ],
        "groups": [
            {
                "kind": kind,
                "entity_id": name,
                "route": "attribute" if name.endswith("0") else "collaborative",
                "group_id": f"{kind}:{'drama' if name.endswith('0') else 'c0'}",
                "distance": 0.25,
                "representative": name.endswith("1"),
            }
            for kind, name in entities
        ],
        "knowledge": [
            knowledge_row(
                kind,
                name,
                wave=0 if name.endswith("1") else 1,
                passes=30 if name.endswith("1") else 10,
                error=f"prompt has {600 + n} tokens" if n < failing else "",
            )
            for n, (kind, name) in enumerate(entities)
        ],
        "features": [
            {
                "kind": kind,
                "entity_id": name,
                "source": "group" if n < failing else "own",
                "asof": 9,
                "latest_source": 0,
                "source_events": 3,
                "prompt_hash": "" if n < failing else f"{kind} {name}",
                "vector": [0.0, 1.0],
            }
            for n, (kind, name) in enumerate(entities)
        ],
    }


def write_store(root, tables):
    store = Store(root)
    for name, rows in tables.items():
        schema = SCHEMAS[name][0]
        plan = store.plan(name, settings={"setting": 1})
        plan.write(pa.Table.from_pylist(rows, schema=schema))
        set_seconds(store, name, 2.0)
    return store


def set_seconds(store, name, seconds):
    """As if writing the dataset had taken so long."""
    path = store.path(name) / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))


def write_json(store, name, value, inputs=("knowledge",)):
    settings = {"comparison": {"repeats": 2}} if name == "comparison" else {}
    plan = store.plan(name, settings, inputs=list(inputs))
    plan.write_files(lambda folder: (folder / f"{name}.json").write_text(json.dumps(value)), 1)


def arm(name, kind, seconds):
    return {
        "arm": name,
        "kind": kind,
        "rows": 4,
        "seconds": seconds,
        "new_tokens": 400,
        "tokens_per_second": 400 / seconds,
        "tokens_per_forward": {"strict": 2.0, "relaxed": 4.0}.get(name, 1.0),
        "looping_rows": 1,
    }


def comparison(title="Heat", plain="a good film", relaxed="a fine film"):
    seconds = {"transformers.generate": 25.0, "plain": 20.0, "strict": 10.0, "relaxed": 5.0}
    return {
        "model": "tiny",
        "rows": 8,
        "max_new_tokens": 50,
        "batch_rows": 4,
        "arms": [
            arm(name, kind, time * (2 if kind == "item" else 1))
            for name, time in seconds.items()
            for kind in KINDS
        ],
        "texts": [
            {
                "kind": "item",
                "entity_id": "i1",
                "title": title,
                "prompt": "Say what the film is like.",
                "plain": plain,
                "relaxed": relaxed,
                "relaxed_tokens": 1,
                "relaxed_cost": 0.7,
            }
        ],
    }


def gain(auc, low, high):
    return {
        "auc": auc,
        "low": low,
        "high": high,
        "logloss": -0.001,
        "logloss_low": -0.002,
        "logloss_high": 0.0,
        "mde": 0.004,
    }


def ctr(models=("din", "dcnv2")):
    scores = {"auc": 0.71, "auc_sd": 0.002, "logloss": 0.6, "logloss_sd": 0.001}
    results = {
        name: {
            "arms": {"base": scores, "knowledge": {**scores, "auc": 0.72}},
            "gain": gain(0.01 + 0.02 * index, 0.002, 0.02 + 0.02 * index),
            "gain_over_shuffled": gain(0.008, 0.001, 0.015),
            "gain_over_plain": None,
            "gains": {
                "zeros": gain(0.0, -0.001, 0.001),
                "knowledge": gain(0.01 + 0.02 * index, 0.002, 0.02 + 0.02 * index),
            },
            "verdict": "improves",
            "lossless": "not measured",
            "power": "the canary trips",
        }
        for index, name in enumerate(models)
    }
    return {
        "protocol": "per_user_prefix",
        "rows": {"train": 100, "valid": 10, "test": 20},
        "test_users": 5,
        "models": results,
        "seeds": 3,
    }


def quality(plain_run=None, note="numbers"):
    numbers = {
        **{"rows": 8, "texts": 7, "tokens": 210, "tokens_per_text": 30.0, "cut_share": 0.5},
        **{"nats_per_token": 0.0123, "relaxed_share": 0.1, "looping_share": 0.25},
        **{"distinct_trigram_share": 0.9, "pool_share": 0.3, "malformed_share": None},
        **{"shared_of_texts": 7, "shared_share": 0.2},
    }
    chances = {"precision_by_chance": 0.2, "recall_by_chance": 0.15}
    genres = {"kind": "names", "texts": 7, "naming": 6, "precision": 0.75, "recall": 0.5}
    near = {
        **{"rows": 7, "other_prompt": 1, "never_relaxed": 0.1, "identical": 0.2, "vectors": 6},
        **{"edit_similarity": 0.61, "edit_similarity_to_another": 0.12},
        **{"cosine": 0.91, "cosine_to_another": None},
    }
    of_items = {"catalog": {"genres": genres | chances, "pages": {"skipped": note}}}
    return {
        "framework": "kar",
        "plain_run": plain_run,
        "kinds": {
            kind: {
                "texts": texts,
                "plain": texts if plain_run else None,
                "similarity": near if plain_run else None,
            }
            for kind, facts in (("user", {}), ("item", of_items))
            for texts in [numbers | facts]
        },
    }


@pytest.fixture
def store(tmp_path):
    """A run with every dataset, two failed users and users and items in two groups each."""
    store = write_store(tmp_path / "demo", tables_of(8, 6, failing=2))
    write_json(store, "comparison", comparison())
    write_json(store, "quality", quality())
    write_json(store, "ctr", ctr(), inputs=["features"])
    return store


class Page(HTMLParser):
    """Collects what the tests ask about; fails on tags that are not nested properly."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.tags, self.addresses = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def strict_json(report):
    return json.loads(json.dumps(report, allow_nan=False))


def test_json_holds_every_section_and_is_strict(store):
    report = summarise(store)
    assert strict_json(report) == report
    assert report["headline"]["entities"] == 12
    assert report["headline"]["of_rows"] == 14
    assert report["headline"]["errors"] == 2
    assert [stage["stage"] for stage in report["stages"]] == [
        "catalog", "embeddings", "groups", "pools", "knowledge", "features", "check", "comparison",
    ]  # fmt: skip
    assert {row["dataset"] for row in report["datasets"]} == {
        *provenance.REQUIRED,
        *provenance.OPTIONAL,
    }


def test_tokens_per_forward_is_all_tokens_over_all_passes(store):
    rows = [row for row in tables_of(8, 6, failing=2)["knowledge"] if not row["error"]]
    expected = sum(len(row["token_ids"]) for row in rows) / sum(r["forward_passes"] for r in rows)
    assert summarise(store)["headline"]["tokens_per_forward"] == pytest.approx(expected)


def test_the_encoding_stage_counts_malformed_answers_where_a_form_was_asked_for(store):
    def counts():
        return next(s["counts"] for s in summarise(store)["stages"] if s["stage"] == "features")

    names = ("own vectors", "means of their group", "means of their kind", "zero vectors")
    vectors = dict(zip(names, (12, 2, 0, 0), strict=True))
    assert counts() == vectors
    path = store.path("features") / MANIFEST
    facts = {"facts": {"malformed": {"user": 3, "item": 1}}}
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    assert counts() == vectors | {"malformed answers": 4}
    assert "malformed answers" in render(summarise(store))


def test_waves_count_rows_of_each_kind_apart(store):
    waves = summarise(store)["acceptance"]["waves"]
    assert [(row["wave"], row["kind"], row["rows"]) for row in waves] == [
        (0, "user", 1), (0, "item", 1), (1, "user", 7), (1, "item", 5),
    ]  # fmt: skip
    assert waves[0]["tokens_per_forward"] is None  # user u1 failed: no pass, no ratio
    assert waves[1]["tokens_per_forward"] == 1.0
    assert waves[3]["tokens_per_forward"] == 3.0


def test_acceptance_sums_lists_of_different_lengths(tmp_path):
    tables = tables_of(0, 3)
    tables["knowledge"][0] |= {"drafted_by_depth": [10], "accepted_by_depth": [5]}
    report = summarise(write_store(tmp_path / "r", tables))
    assert report["acceptance"]["by_depth"] == [
        {"depth": 1, "drafted": 40, "accepted": 17, "rate": 17 / 40},
        {"depth": 2, "drafted": 20, "accepted": 6, "rate": 0.3},
        {"depth": 3, "drafted": 10, "accepted": 2, "rate": 0.2},
    ]
    assert [row["source"] for row in report["acceptance"]["by_source"]] == ["own", "group"]


def test_speedup_is_relaxed_over_plain_and_sums_both_kinds(store):
    headline = summarise(store)["headline"]
    assert headline["rule"] == "relaxed"
    assert headline["speedup"] == pytest.approx(4.0)
    assert headline["speedup_by_kind"] == pytest.approx({"user": 4.0, "item": 4.0})
    overall = [row for row in summarise(store)["speed"]["arms"] if row["kind"] == "all"]
    assert overall[-1]["tokens_per_second"] == pytest.approx(800 / 15)
    assert overall[-1]["tokens_per_forward"] == pytest.approx(4.0)


def test_headline_gain_is_the_smallest_of_all_models(store):
    headline = summarise(store)["headline"]
    assert headline["auc_gain"]["model"] == "din"
    assert [row["model"] for row in headline["auc_gains"]] == ["din", "dcnv2"]


def test_parts_of_the_test_rows_have_an_aucs_or_a_reason(tmp_path):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    result = ctr(models=("din",))
    result["gauc_coverage"] = {"rows": 0.75, "users": 0.5}
    result["slices"] = {
        "warm items": {"rows": 18, "users": 5, "liked": 9, "reason": ""},
        "cold items": {"rows": 2, "users": 1, "liked": 2, "reason": "all 2 have one label"},
    }
    model = result["models"]["din"]
    for scores in model["arms"].values():
        scores |= {"gauc": 0.6543, "calibration_ratio": 1.25, "calibration_error": 0.1}
    model["slices"] = {
        "warm items": {"base": 0.6111, "knowledge": 0.6222},
        "cold items": {"base": None, "knowledge": None},
    }
    write_json(store, "ctr", result, inputs=["features"])
    page = render(summarise(store))
    assert Page(page)
    for text in ("0.6111", "0.6222", "all 2 have one label", "0.6543", "1.250"):
        assert f"{text}</td>" in page
    assert "of 50 % of the test users, 75 % of the rows" in page


def test_quality_stands_beside_plain_texts_and_chance(store):
    page = render(summarise(store))
    assert "No run with plain texts was named" in page
    assert "a higher generation.max_new_tokens mends it" in page
    assert "<td>75\N{NO-BREAK SPACE}% (chance: 20\N{NO-BREAK SPACE}%)</td>" in page
    assert (
        "Of the items in the catalog, texts were held against genres; not against pages (numb"
        in page
    )
    assert ">Genres: what is named is right</th>" in page
    assert "`" not in page.partition('<section id="quality">')[2].partition("</section>")[0]
    assert "Cosine to plain" not in page
    write_json(store, "quality", quality("strict & co"))
    page = render(summarise(store))
    Page(page)
    assert "<th>users, plain</th><th>items</th>" in page
    assert "<td>0.61 (another row: 0.12)</td><td></td>" in page
    assert "<td>0.91 (another row: n/a)</td>" in page
    assert "Plain texts are those of the run strict &amp; co." in page
    assert "7 texts and 6 vectors compared, 1 left out that were asked something else" in page


def test_quality_of_an_older_program_keeps_its_figures(store):
    found = quality()
    genre = found["kinds"]["item"]["texts"].pop("catalog")["genres"]
    year = {"texts": 7, "naming": 5, "right": 0.4, "right_by_chance": 0.1}
    found["kinds"]["item"]["texts"] |= {"genre": genre, "year": year}
    write_json(store, "quality", found)
    page = render(summarise(store))
    assert "<td>75\N{NO-BREAK SPACE}% (chance: 20\N{NO-BREAK SPACE}%)</td>" in page
    year = "<td>40 % (chance: 10 %; 5 of 7 name one)</td>"
    assert year in page.replace("\N{NO-BREAK SPACE}", " ")
    assert "texts were held against year and genres." in page
    found["kinds"]["item"]["texts"] |= {key: {"skipped": "none has"} for key in ("genre", "year")}
    write_json(store, "quality", found)
    assert "held against" not in render(summarise(store)).partition("Quality of the texts")[2]


def card(page, name):
    """Number and small print of one of the cards on top."""
    found = re.search(
        rf'<div class="name">{name}</div><div class="number[^"]*">(.*?)</div>\s*'
        r'<div class="more">(.*?)</div></li>',
        page,
        re.DOTALL,
    )
    assert found is not None, name
    return found[1], re.sub(r"<[^>]+>", "", found[2])


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.001, 0.02, "The CTR models gain by the texts: [+0.0010, +0.0200] in the CTR model din"),
        (
            -0.02,
            -0.001,
            "No gain: the CTR model din is worse with the texts, but no worse than with",
        ),
        (-0.01, 0.02, "No gain seen in the CTR model din"),
    ],
)
def test_the_card_says_what_the_gain_means(tmp_path, low, high, words):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    result = ctr(models=("din",))
    result["models"]["din"]["gain"] = gain((low + high) / 2, low, high)
    write_json(store, "ctr", result, inputs=["features"])
    number, more = card(render(summarise(store)), "AUC gain")
    assert number == formats.signed((low + high) / 2)
    assert more.startswith(words)


def test_a_gain_names_its_framework(tmp_path):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    write_json(store, "ctr", ctr() | {"framework": "trawl"}, inputs=["features"])
    page = render(summarise(store))
    assert (
        "in the CTR model din, the smallest of 2 models; framework trawl (the way"
        in card(page, "AUC gain")[1]
    )
    assert "those of the framework trawl." in page


def test_the_speedup_names_what_it_was_measured_on(store):
    number, more = card(render(summarise(store)), "Speed-up")
    assert number == "4.00\N{MULTIPLICATION SIGN}"
    assert more.endswith("; 8 rows in batches of up to 4, 2 repeats")


def test_the_comparison_stands_in_the_flow_with_its_time(store):
    set_seconds(store, "comparison", 502.0)
    report = summarise(store)
    assert report["stages"][-1] | {"facts": {}} == {
        "stage": "comparison",
        "is_done": True,
        "counts": {"rows": 8, "arms": 4},
        "seconds": 502.0,
        "facts": {},
        "is_whole": None,  # of an older program
    }
    flow = re.search(r'<ol class="flow">.*?</ol>', render(report), re.DOTALL)
    assert flow is not None
    assert re.search(r"<b>comparison</b>.*8 min 22 s", flow[0], re.DOTALL)


def speeds_with(**changed):
    speeds = comparison()
    for one in speeds["arms"]:
        one |= changed.get(f"{one['arm']}_{one['kind']}", {})
    return speeds


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"relaxed_item": {"tokens_per_second": 49.9}}, ""),  # 4.99x of 4 tokens per pass
        (
            {"relaxed_item": {"tokens_per_second": 51.0}},
            "Relaxed decoding of items came out 5.10\N{MULTIPLICATION SIGN} as fast as plain "
            "decoding with 4.00 tokens per forward pass",
        ),
        ({"strict_user": {"tokens_per_second": 60.0}}, "Strict decoding of users came out 3.00"),
        ({"transformers.generate_user": {"tokens_per_second": 900.0}}, ""),  # another program
        ({"relaxed_user": {"tokens_per_forward": None}}, ""),
    ],
)
def test_a_ratio_far_above_that_of_tokens_per_pass_is_doubted(store, changed, words):
    report = summarise_with(store, speeds_with(**changed))
    assert report["speed"]["doubt"].startswith(words)
    assert bool(report["speed"]["doubt"]) == bool(words)
    assert (report["headline"]["speedup"] is None) == bool(words)
    assert (report["headline"]["speedup_by_kind"] == {}) == bool(words)


def test_a_step_of_the_waterfall_is_doubted_too_and_the_log_says_why(store, demo_config, caplog):
    steps = [
        {"step": name, "adds": "", "tokens_per_second": 10.0, "ratio_to_plain": ratio}
        | {"tokens_per_forward": tokens}
        for name, ratio, tokens in (("plain", 1.0, 0.99), ("+ tree", 0.4, 1.2), ("all", 2.91, 1.35))
    ]
    write_json(store, "comparison", comparison() | {"waterfall": steps})
    with caplog.at_level("INFO"):
        write_report.run(demo_config, store)
    assert "speed-up, relaxed against plain: n/a" in caplog.text
    assert re.search("no speed-up is told: The step .all. came out 2.91", caplog.text)
    facts = store.require("report").facts
    assert (facts["speedup"], facts["speedup_by_kind"]) == (None, {})


def test_rows_that_strict_wrote_unlike_plain_are_counted_and_shown(store):
    speeds = comparison()
    for entry in speeds["arms"]:
        entry["rows_unlike_plain"] = int((entry["arm"], entry["kind"]) == ("strict", "item"))
    page = render(summarise_with(store, speeds))
    assert "strict should write what plain decoding does, but did not in 1 row (each" in page
    place = {"kind": "item", "entity_id": "i1", "position": 37}
    speeds["divergences"] = [{"arm": "strict", **place, "gap": 2.9e-6}]
    page = render(summarise_with(store, speeds))
    assert "text of item i1 at token 37, where the two logits are 2.9e-6 apart. A gap" in page
    for entry in speeds["arms"]:
        entry["rows_unlike_plain"] = 0
    page = render(summarise_with(store, speeds))
    assert "strict wrote the same tokens as plain decoding in every row" in page


def summarise_with(store, speeds):
    write_json(store, "comparison", speeds)
    return summarise(store)


def test_a_text_cut_at_the_limit_ends_with_an_ellipsis(store):
    speeds = comparison(plain="a good film and", relaxed="a fine film.")
    speeds["texts"][0] |= {"plain_is_cut": True, "relaxed_is_cut": False}
    write_json(store, "comparison", speeds)
    bodies = re.findall(r'<p class="body" dir="auto">(.*?)</p>', render(summarise(store)))
    texts = [re.sub(r"<[^>]+>", "", body) for body in bodies]
    assert texts == ["a good film and&hellip;", "a fine film."]


def as_refresh(root, tables, earlier="0123"):
    """A run whose wave 0 is of an earlier run, and its last wave all others."""
    store = write_store(root, tables)
    waves = []
    for wave in (0, 1):
        rows = [row for row in tables["knowledge"] if row["wave"] == wave]
        name = f"waves/{wave}/knowledge"
        table = pa.Table.from_pylist(rows, schema=SCHEMAS["knowledge"][0])
        store.plan(name, {"earlier": earlier} if earlier else {}).write(table)
        waves.append(name)
    merged = store.read("knowledge")
    store.plan("knowledge", settings={}, inputs=waves).write(merged)
    return store


def refreshed_tables(written):
    """10 users and 4 items; `written` users are of this run, and the first of them failed."""
    tables = tables_of(10, 4)
    tables["knowledge"] = [
        knowledge_row(kind="user", entity_id=f"u{n}", tokens=20, passes=5, error="long" * (n == 0))
        if n < written
        else row | {"wave": 0, "token_ids": list(range(60)), "forward_passes": 60}
        for n, row in enumerate(tables["knowledge"])
    ]
    return tables


def test_a_refresh_says_what_was_kept_and_counts_only_what_was_written(tmp_path):
    store = as_refresh(tmp_path / "tuesday", refreshed_tables(written=4))
    report = summarise(store, previous="monday")
    headline = report["headline"]
    assert headline["refresh"] == {"previous": "monday", "kept": 10, "written": 3}
    assert (headline["entities"], headline["of_rows"], headline["errors"]) == (13, 14, 1)
    assert (headline["tokens"], headline["tokens_per_forward"]) == (60, 4.0)
    assert headline["relaxed_share"] == 9 / 60
    assert report["knowledge"]["tokens"] == 60 + 10 * 60
    by_source = report["acceptance"]["by_source"]
    assert [(row["source"], row["drafted"]) for row in by_source] == [("own", 120), ("group", 60)]
    assert [row["wave"] for row in report["acceptance"]["waves"]] == [0, 0, 1]
    counts = report["stages"][4]["counts"]
    assert counts == {"texts kept": 10, "texts written now": 3, "error rows": 1, "waves": 2}
    page = render(report)
    Page(page)
    assert card(page, "Kept from monday / written now")[0] == "10 / 3"
    assert card(page, "Tokens written now")[0] == "60"
    assert card(page, "Tokens per forward pass") == (
        "4.00",
        "plain decoding: 1.00; rows written now",
    )
    assert "Entities written" not in page
    assert "0, kept" in page


def test_the_same_rows_of_a_first_run_are_all_counted(tmp_path):
    store = as_refresh(tmp_path / "r", refreshed_tables(written=4), earlier="")
    headline = summarise(store)["headline"]
    assert headline["refresh"] is None
    assert headline["tokens"] == 660


def test_a_refresh_that_wrote_nothing_says_so(tmp_path, demo_config, caplog):
    store = as_refresh(tmp_path / "tuesday", refreshed_tables(written=0))
    config = demo_config.model_copy(
        update={"refresh": demo_config.refresh.model_copy(update={"previous": "monday"})}
    )
    with caplog.at_level("INFO"):
        write_report.run(config, store)
    page = (store.path("report") / "report.html").read_text()
    assert card(page, "Kept from monday / written now")[0] == "14 / 0"
    assert card(page, "Tokens written now") == ("0", "no text was written")
    assert card(page, "Speed-up") == (
        "n/a",
        "no rows to compare: the last wave had no text to write",
    )
    assert (
        page.count("there were no rows to compare, since the last wave had no text to write") == 2
    )
    assert "make comparison" not in page
    assert "kept from monday: 14, written now: 0" in caplog.text


def test_a_comparison_that_was_not_asked_for_is_named(tmp_path, demo_config):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    none = demo_config.comparison.model_copy(update={"rows_per_kind": 0})
    write_report.run(demo_config.model_copy(update={"comparison": none}), store)
    page = (store.path("report") / "report.html").read_text()
    assert card(page, "Speed-up")[1] == "no rows to compare: comparison.rows_per_kind is 0"
    write_report.run(demo_config, store)
    page = (store.path("report") / "report.html").read_text()
    assert card(page, "Speed-up")[1] == "make comparison"


def test_units_and_words_are_explained_where_they_first_stand(store):
    page = render(summarise(store))
    visible = re.sub(r"<style.*?</style>|<details>.*?</details>", "", page, flags=re.DOTALL)
    assert visible.index("the nat, that of natural logarithms") < visible.index(" nats</span>")
    assert visible.index("A row loops if") < visible.index("<th>looping</th>")


def test_failures_of_one_cause_are_one_row_with_examples(store):
    failures = summarise(store)["failures"]
    assert [(row["stage"], row["rows"], row["examples"]) for row in failures] == [
        ("knowledge", 2, ["u0", "u1"]), ("features", 2, ["u0", "u1"]),
    ]  # fmt: skip
    assert failures[0]["message"] == "prompt has 600 tokens"
    assert failures[1]["message"] == "no usable text; the vector is the mean of its group"


def test_a_kind_that_nothing_was_written_about_has_not_failed(tmp_path):
    tables = tables_of(2, 3)
    tables["knowledge"] = tables["knowledge"][:2]
    for row in tables["features"][2:]:
        row |= {"source": "none", "prompt_hash": ""}
    report = summarise(write_store(tmp_path / "r", tables))
    assert report["failures"] == []
    stage = next(one for one in report["stages"] if one["stage"] == "features")
    assert stage["counts"]["zero vectors"] == 3


def test_map_leaves_out_untrained_vectors_and_keeps_the_order_of_rows(store):
    report = summarise(store)
    points = report["map"]["points"]
    assert [point["entity_id"] for point in points] == [
        *(f"u{n}" for n in range(1, 8)), *(f"i{n}" for n in range(1, 6)),
    ]  # fmt: skip
    assert report["map"]["untrained"] == 2
    assert points[-1]["title"] == "Film i5"
    assert {point["group_id"] for point in points} == {"user:c0", "item:c0"}


def test_a_mark_of_the_map_is_named_and_its_shape_explained(store):
    section = render(summarise(store)).partition('<section id="map">')[2].partition("</section")[0]
    assert "<title>user u1, group user:c0</title>" in section
    assert "<title>Film i5 (item i5), group item:c0</title>" in section
    legend = re.findall(r"<(circle|rect) class=\"shape\".*?</svg>(.*?)</li>", section)
    assert legend == [("circle", "a circle is a user"), ("rect", "a square is an item")]


def test_map_places_points_by_their_two_main_directions(tmp_path):
    tables = tables_of(4, 4)
    corners = {"1": [1, 0, 0, 0], "2": [-1, 0, 0, 0], "3": [0, 0, 1, 0]}
    for row in tables["embeddings"]:
        row["vector"] = corners.get(row["entity_id"][-1], [0, 0, 0, 0])
    report = summarise(write_store(tmp_path / "r", tables))
    assert sum(report["map"]["explained"]) == pytest.approx(1.0)
    places = {p["entity_id"]: np.array([p["x"], p["y"]]) for p in report["map"]["points"]}
    assert np.linalg.norm(places["u1"] - places["u2"]) == pytest.approx(2.0, abs=1e-3)
    assert np.linalg.norm(places["u1"] - places["u3"]) == pytest.approx(2**0.5, abs=1e-3)


def test_page_is_well_formed_self_contained_and_has_every_section(store):
    text = render(summarise(store))
    page = Page(text)
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith("#") for address in page.addresses)
    assert page.tags.count("svg") > 6
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert re.search(r"https?://|@import|url\(", text) is None
    assert "prefers-color-scheme: dark" in text
    assert "NaN" not in text
    assert "None" not in text


def test_every_section_says_how_to_read_it(store):
    sections = re.findall(r"<section.*?</section>", render(summarise(store)), re.DOTALL)
    assert len(sections) == len(SECTIONS)
    assert all('<p class="read">' in section for section in sections)


def test_charts_name_themselves_to_a_screen_reader(store):
    for chart in re.findall(r'<svg class="chart".*?</svg>', render(summarise(store)), re.DOTALL):
        names = re.search(r'role="img" aria-labelledby="(\S+) (\S+)"', chart)
        assert names is not None
        assert f'<title id="{names[1]}">' in chart
        assert f'<desc id="{names[2]}">' in chart


def test_the_colours_of_the_chart_of_gains_have_a_legend(store):
    result = ctr()
    for arm in ("shuffled", "history"):
        result["models"]["din"]["gains"][arm] = gain(0.0, -0.001, 0.001)
    write_json(store, "ctr", result, inputs=["features"])
    check = render(summarise(store)).partition('<section id="check">')[2].partition("</figure>")[0]
    shown = re.findall(r'<rect class="(\w+)" width="10".*?</svg>(.*?)</li>', check)
    assert shown == [
        ("c0", "texts of the model"),
        ("c1", "bounds: texts of others, and knowing the test rows"),
        ("c2", "controls without a model"),
    ]


def test_markup_in_data_is_text_on_the_page(tmp_path):
    tables = tables_of(5, 5, failing=1)
    for row in tables["items"]:
        row["title"] = HOSTILE
    for row in tables["groups"]:
        row["group_id"] += HOSTILE
    tables["knowledge"][0]["error"] = HOSTILE
    store = write_store(tmp_path / "r", tables)
    write_json(store, "comparison", comparison(HOSTILE, HOSTILE, f"{HOSTILE} {HOSTILE}"))
    write_json(store, "quality", quality(HOSTILE, HOSTILE))
    write_json(store, "ctr", ctr(models=(HOSTILE,)), inputs=["features"])
    text = render(summarise(store))
    page = Page(text)
    assert page.tags.count("script") == 1  # the copy buttons'
    assert text.count("&lt;script&gt;") > 10
    assert "alert(1)</script>" not in text
    assert "<b> " not in text


def test_differing_words_are_marked_and_the_text_stays_whole():
    pieces = formats.differences("a good  film\nindeed", "a fine  film\nindeed, yes")
    assert "".join(words for words, _ in pieces) == "a fine  film\nindeed, yes"
    assert [words for words, differs in pieces if differs] == ["fine", "indeed, yes"]


def test_sections_without_a_dataset_name_the_target_that_makes_it(tmp_path):
    report = summarise(write_store(tmp_path / "r", tables_of(3, 3)))
    assert (report["speed"], report["texts"], report["ctr"]) == (None, None, None)
    assert report["headline"]["speedup"] is None
    assert [stage["is_done"] for stage in report["stages"][-2:]] == [False, False]
    text = render(report)
    assert [name for name in Page(text).ids if name in SECTIONS] == SECTIONS
    assert text.count("<code>make comparison</code>") == 3  # its card, the speeds, the texts
    assert text.count("<code>make quality</code>") == 1
    assert text.count("<code>make ctr</code>") == 2


def test_without_a_comparison_a_few_texts_stand_by_themselves(tmp_path):
    tables = tables_of(8, 2, failing=1)
    tables["knowledge"][1] |= {"text": "He likes <b>.", "finish_reason": "stop"}
    report = summarise(write_store(tmp_path / "r", tables))
    assert [example["entity_id"] for example in report["examples"]] == [
        "u1",
        "u4",
        "u7",
        "i0",
        "i1",
    ]
    page = render(report)
    assert '<p class="body" dir="auto">He likes &lt;b&gt;.</p>' in page
    assert '<p class="body" dir="auto">text about i1&hellip;</p>' in page
    assert '<h3 dir="auto">Film i1 <span>item i1</span></h3>' in page


def test_what_a_dataset_holds_is_counted_by_its_name(tmp_path):
    store = write_store(tmp_path / "r", tables_of(2, 2))
    store.plan("waves/1/pools", {}).write_files(lambda folder: None, 1234)
    store.plan("knowledge", {}, ["waves/1/pools"]).write(store.read("knowledge"))
    page = render(summarise(store))
    assert '<th scope="row">waves/1/pools</th><td>1,234 tokens</td>' in page
    assert '<th scope="row">users</th><td>2 rows</td>' in page


def test_the_command_that_goes_on_names_the_run_and_other_settings(store):
    page = render(summarise(store))
    assert 'ARGS="--set run=demo"</code>' in page
    assert "every other <code>--set</code> that it was given" in page


def test_nan_of_the_check_and_the_comparison_reads_as_missing(store):
    nan = float("nan")
    broken = ctr(models=("din",))
    broken["models"]["din"]["gain"] = gain(nan, nan, nan)
    broken["models"]["din"]["gain_over_shuffled"] = gain(nan, nan, float("inf"))
    write_json(store, "ctr", broken, inputs=["features"])
    speeds = comparison()
    for row in speeds["arms"]:
        row |= {"tokens_per_second": nan, "tokens_per_forward": nan, "seconds": 0.0}
    write_json(store, "comparison", speeds)
    report = summarise(store)
    assert strict_json(report) == report
    assert report["headline"]["auc_gain"] is None
    assert report["headline"]["speedup"] is None
    text = render(report)
    Page(text)
    assert "nan" not in re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL).lower()


@pytest.mark.parametrize(("users", "items"), [(0, 0), (1, 0), (0, 2), (1, 1)])
def test_tiny_and_empty_catalogs_still_give_a_page(tmp_path, users, items):
    report = summarise(write_store(tmp_path / "r", tables_of(users, items, failing=users)))
    assert strict_json(report) == report
    assert report["headline"]["entities"] == items
    assert report["map"] is None
    Page(render(report))


def test_identical_vectors_still_give_a_map(tmp_path):
    tables = tables_of(4, 4)
    for row in tables["embeddings"]:
        row["vector"] = [1.0]
    report = summarise(write_store(tmp_path / "r", tables))
    assert {(point["x"], point["y"]) for point in report["map"]["points"]} == {(0.0, 0.0)}
    Page(render(report))


def test_waves_of_the_knowledge_are_listed_in_the_order_of_their_numbers(store):
    """Wave 99 was left by an earlier run with more waves."""
    for wave in (10, 2, 99):
        rows = [row | {"wave": wave} for row in tables_of(2, 0)["knowledge"]]
        table = pa.Table.from_pylist(rows, schema=SCHEMAS["knowledge"][0])
        store.plan(f"waves/{wave}/knowledge", settings={}).write(table)
        set_seconds(store, f"waves/{wave}/knowledge", 5.0)
    merged = store.read("knowledge")
    waves = ["waves/10/knowledge", "waves/2/knowledge"]
    store.plan("knowledge", settings={}, inputs=waves).write(merged)
    set_seconds(store, "knowledge", 2.0)
    names = provenance.wave_datasets(store, "knowledge")
    assert names == ["waves/2/knowledge", "waves/10/knowledge"]
    stage = summarise(store)["stages"][4]
    assert stage["seconds"] == 12.0  # both waves, and their merge


def test_missing_dataset_is_an_error_that_names_it(tmp_path):
    tables = tables_of(2, 2)
    del tables["groups"]
    with pytest.raises(DataError, match="groups has not been made"):
        summarise(write_store(tmp_path / "r", tables))


def test_job_writes_both_files_once(store, caplog, demo_config):
    with caplog.at_level("INFO"):
        said_last = write_report.run(demo_config, store)
    folder = store.path("report")
    report = json.loads((folder / "report.json").read_text())
    assert report["headline"] == store.require("report").facts
    assert "+0.0100 [+0.0020, +0.0200], din, the smallest of 2 models: better" in caplog.text
    assert said_last == f"report: {folder / 'report.html'}"
    before = (folder / "report.html").stat().st_mtime_ns
    with caplog.at_level("INFO"):
        assert write_report.run(demo_config, store) == said_last
    assert (folder / "report.html").stat().st_mtime_ns == before
    assert "up to date" in caplog.text


def test_job_runs_again_when_the_check_was_made(tmp_path, demo_config):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    write_report.run(demo_config, store)
    first = store.require("report").fingerprint
    write_json(store, "ctr", ctr(), inputs=["features"])
    write_report.run(demo_config, store)
    assert store.require("report").fingerprint != first
    assert "make ctr" not in (store.path("report") / "report.html").read_text()


@pytest.fixture
def demo_config():
    from pipeline.config_file import load_config

    return load_config(Path(__file__).parents[2] / "conf" / "demo.yaml")


@given(low=st.floats(-1, 0.5), width=st.floats(1e-6, 10))
def test_ticks_are_round_evenly_spaced_and_inside(low, width):
    found = charts.ticks(low, low + width, 4)
    assert 2 <= len(found) <= 5
    assert low - 1e-9 <= found[0] <= found[-1] <= low + width + 1e-9
    assert len({round(step, 9) for step in np.diff(found)}) <= 1
    if low <= 0 <= low + width:
        assert 0 in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formats.count(1234567), "1,234,567"),
        (formats.count(23456789), "23.5 M"),
        (formats.count(None), "n/a"),
        (formats.counted(1, "relaxed tokens"), "1 relaxed token"),
        (formats.counted(1, "versions"), "1 version"),
        (formats.counted(1, "rows in test"), "1 row in test"),
        (formats.counted(1, "entities by behaviour"), "1 entity by behaviour"),
        (formats.counted(1, "means of their group"), "1 mean of its group"),
        (formats.counted(0, "waves"), "0 waves"),
        (formats.decimal(float("nan")), "n/a"),
        (formats.signed(-0.00321), "\N{MINUS SIGN}0.0032"),
        (formats.signed(0.5, 1), "+0.5"),
        (formats.percent(0.0321), "3.2 %"),
        (formats.percent(0.0), "0 %"),
        (formats.percent(0.0004), "under 0.1 %"),
        (formats.percent(0.0006), "0.1 %"),
        (formats.times(2.345), "2.35\N{MULTIPLICATION SIGN}"),
        (formats.duration(0.44), "0.4 s"),
        (formats.duration(59.7), "1 min 00 s"),
        (formats.duration(3725), "1 h 02 min"),
        (formats.fact(True), "yes"),
        (formats.fact([1, 2.5]), "1, 2.5"),
    ],
)
def test_numbers_read_well(text, expected):
    assert text == expected


def page_of(store):
    return (store.path("report") / "report.html").read_text()


def test_the_config_on_the_page_is_the_one_that_it_was_made_with(tmp_path, demo_config):
    from pipeline.config_file import load_config

    store = write_store(tmp_path / "r", tables_of(3, 3))
    changed = demo_config.model_copy(update={"run": "\N{CJK UNIFIED IDEOGRAPH-5F71}: 'run' & #1"})
    write_report.run(changed, store)
    shown = re.search(r'<pre id="config">(.*?)</pre>', page_of(store), re.DOTALL)
    assert shown is not None
    (tmp_path / "again.yaml").write_text(html.unescape(shown[1]))
    assert load_config(tmp_path / "again.yaml", [f"run={demo_config.run}"]) == demo_config


def test_a_page_of_another_config_says_what_the_run_was_made_with(tmp_path, demo_config, caplog):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    groups = store.read("groups")
    store.plan("groups", {"seed": demo_config.seed, "templates": "of a run"}).write(groups)
    write_report.run(demo_config.model_copy(update={"seed": 987654321}), store)
    page = page_of(store)
    assert "seed: 987654321" in page
    assert "not the one of the run" in page
    told = r"<code>seed</code></th><td[^>]*>2026</td><td[^>]*>987654321</td><td[^>]*>groups</td>"
    assert re.search(told, page)
    assert "made with another config: seed, templates; its page tells" in caplog.text
    store.plan("groups", {"seed": demo_config.seed}).write(groups)
    write_report.run(demo_config, store)
    assert "Every setting that the datasets have kept is the same in it" in page_of(store)
    report = json.loads((store.path("report") / "report.json").read_text())
    assert report["config_differences"] == []


@pytest.mark.parametrize(
    ("facts", "is_whole"),
    [
        ([{"rows_written": 2}, {"steps": {"steps": 0, "rows_written": 2}}], True),
        ([{"rows_written": 2}, {"steps": {"steps": 0, "rows_written": 1}}], False),
        ([{}, {"steps": {"steps": 0, "rows_written": 0}}], False),
        ([{}, {"steps": {"steps": 0, "rows_written": 2}}], None),
    ],
)
def test_the_time_of_waves_is_whole_if_their_last_tries_wrote_all_rows(tmp_path, facts, is_whole):
    store = write_store(tmp_path / "r", tables_of(2, 2))
    table, waves = store.read("knowledge"), ["waves/0/knowledge", "waves/1/knowledge"]
    for name, own in zip(waves, facts, strict=True):
        store.plan(name, {}).write(table.slice(0, 2), own)
    store.plan("knowledge", {}, waves).write(table)
    store.plan("features", {}).write(store.read("features"), {"rows_written": 3})
    stages = {one["stage"]: one for one in summarise(store)["stages"]}
    assert stages["knowledge"]["is_whole"] is is_whole
    assert stages["features"]["is_whole"] is False


@pytest.mark.parametrize(
    ("fits", "control", "is_whole"),
    [
        ({"rows_written": 3}, {"rows_written": 3}, True),
        ({"rows_written": 3}, {"rows_written": 2}, False),
        ({"rows_written": 1}, {}, False),
        ({"rows_written": 3}, {}, None),
    ],
)
def test_the_time_of_the_check_is_that_of_its_fits_and_controls_too(store, fits, control, is_whole):
    for name, facts, inputs in (
        ("controls/history/features", control, []),
        ("fits", fits, ["features", "controls/history/features"]),
    ):
        store.plan(name, {}, inputs).write_files(lambda folder: None, 3, facts)
        set_seconds(store, name, 50.0)
    set_seconds(store, "ctr", 1.5)
    report = summarise(store)
    stage = next(one for one in report["stages"] if one["stage"] == "check")
    assert (stage["seconds"], stage["is_whole"]) == (101.5, is_whole)
    names = [one["dataset"] for one in report["datasets"]]
    assert names[-3:] == ["controls/history/features", "fits", "ctr"]
    assert '<th scope="row">fits</th><td>3 models</td>' in render(report)


def test_rows_of_an_older_comparison_are_said_to_be_counted_in_every_repeat(store):
    assert summarise(store)["speed"]["counts_repeats"]
    speeds = comparison()
    for one in speeds["arms"]:
        one["repeats"] = 2
    assert not summarise_with(store, speeds)["speed"]["counts_repeats"]


def test_a_run_without_ratings_says_why_it_has_no_check(tmp_path, demo_config):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    catalog = demo_config.catalog.model_copy(update={"positive_rating": None})
    write_report.run(demo_config.model_copy(update={"catalog": catalog}), store)
    assert "no interaction is a dislike" in card(page_of(store), "AUC gain")[1]
    assert "make ctr" not in page_of(store)


def test_the_page_of_a_run_carries_all_of_its_texts(tmp_path, demo_config):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    write_report.run(demo_config, store)
    data = re.search(r'id="texts-data">([^<]+)<', page_of(store))
    assert data is not None
    columns = json.loads(gzip.decompress(base64.b64decode(data[1])))["columns"]
    assert columns["id"] == ["u0", "u1", "u2", "i0", "i1", "i2"]
    assert columns["title"] == ["", "", "", "Film i0", "Film i1", "Film i2"]


def packed_of(store):
    data = re.search(r'id="texts-data">([^<]+)<', page_of(store))
    assert data is not None
    return json.loads(gzip.decompress(base64.b64decode(data[1])))


def asked_for(store):
    """Every text of a page beside what was asked, None where that is not shown."""
    packed = packed_of(store)
    lines = packed["lines"]
    return [one and "".join(lines[line] for line in one) for one in packed["columns"]["asked"]]


def test_a_text_stands_beside_what_was_asked_if_that_can_be_made_again(
    tmp_path, demo_config, caplog
):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    templates = templates_of(demo_config)
    tables = [store.read(name) for name in ("users", "items", "interactions")]
    made = [
        one
        for kind in KINDS
        for one in build_prompts(kind, *tables, demo_config.prompts, templates)
    ]
    hashes = [prompt_hash(one.text) for one in made]
    hashes[4] = "of another prompt"
    rows = store.read("knowledge")
    place = rows.schema.get_field_index("prompt_hash")
    store.plan("knowledge", {}).write(rows.set_column(place, "prompt_hash", pa.array(hashes)))
    write_report.run(demo_config, store)
    texts = [one.text for one in made]
    assert asked_for(store) == [*texts[:4], None, texts[5]]
    assert "Film i0, 4 stars" in texts[0]
    reasons = packed_of(store)["columns"]["unasked"]
    assert reasons["places"] == [0, 0, 0, 0, 1, 0]
    assert reasons["names"][1].startswith("made again, it comes out otherwise")

    books = demo_config.prompts.model_copy(update={"domain": "book"})
    write_report.run(demo_config.model_copy(update={"prompts": books}), store)
    assert asked_for(store) == [None] * 6  # not what was asked, so it is not shown as that
    assert [*packed_of(store)["columns"]["unasked"]["names"]] == [reasons["names"][1]]

    gone = tables[1].slice(1)
    store.plan("items", {}).write(gone)
    write_report.run(demo_config, store)
    assert asked_for(store) == []
    assert "texts are shown without what was asked: " in caplog.text
    assert "the page was made without the prompts" in page_of(store)


def test_rows_left_out_of_the_catalog_stand_in_the_report(tmp_path):
    store = write_store(tmp_path / "r", tables_of(3, 3))
    assert summarise(store)["left_out"] == []  # nothing in its settings leaves rows out
    rows = store.read("interactions")
    store.plan("interactions", {"catalog": {"unusable_rows": "drop"}}).write(rows)
    assert summarise(store)["left_out"] is None  # an older program counted none
    lost = [("interactions", "lack a rating", 4), ("interactions", "lack a time", 2)]
    facts = [LeftOut(*one, 900)._asdict() for one in lost] + [
        LeftOut("items", "lack a rating", 4, 7)._asdict()
    ]
    store.plan("interactions", {"facts": 1}).write(rows, {"left_out": facts})
    reasons = [{"rows": rows, "reason": why, "is_asked": False} for _, why, rows in lost]
    assert summarise(store)["left_out"] == [
        {"table": "interactions", "rows": 6, "of_rows": 900, "reasons": reasons},
        {"table": "items", "rows": 4, "of_rows": 7, "reasons": reasons[:1]},
    ]
    page = render(summarise(store))
    Page(page)
    assert "<div>6 of 900 interactions left out</div>" in page


class FakeTokenizer:
    fingerprint = "0123"

    def decode_exactly(self, token_ids):
        return " ".join(map(str, token_ids))


def test_token_ids_are_read_by_the_tokenizer_that_wrote_them(
    tmp_path, demo_config, monkeypatch, caplog
):
    store = write_store(tmp_path / "r", tables_of(2, 2))
    monkeypatch.setattr(language_model, "load_tokenizer", lambda settings: FakeTokenizer())
    decode = write_report.decoder_of(demo_config, store)
    assert decode is not None
    assert decode(np.array([4, 2])) == "4 2"
    for wrote, is_known in (("0123", True), ("4567", False)):
        store.plan("waves/0/knowledge", {"tokenizer": wrote}).write(store.read("knowledge"))
        assert (write_report.decoder_of(demo_config, store) is not None) == is_known
    assert "language_model is not the model that wrote them" in caplog.text


@pytest.mark.parametrize("kind", [ModelError, DataError])
def test_without_its_tokenizer_a_run_still_has_a_report(
    tmp_path, demo_config, monkeypatch, caplog, kind
):
    def fail(settings):
        raise kind("it is gone")

    store = write_store(tmp_path / "r", tables_of(2, 2))
    monkeypatch.setattr(language_model, "load_tokenizer", fail)
    assert write_report.decoder_of(demo_config, store) is None
    assert "texts are shown without the origins of their tokens: it is gone" in caplog.text
    write_report.run(demo_config, store)
    assert "no token has a colour" in page_of(store)
