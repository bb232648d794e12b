"""Frameworks: what they ask, what they encode of an answer, adaptors and losses, the registry."""

import json
import math
import sys
import time
from dataclasses import replace
from types import ModuleType

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import features.frameworks
from features.build import build_features, count_malformed, readings
from features.ctr.controls import TEMPLATES
from features.frameworks import REGISTRY, framework_named, require_framework, shipped_templates
from features.frameworks.contrast import Contrast, info_nce
from features.frameworks.framework import Framework, whole_text
from features.frameworks.once import read_interests
from features.frameworks.rlmrec import read_profile
from jobs import cli
from pipeline.config import PromptSettings
from pipeline.errors import ConfigError
from pipeline.prompts import build_prompts, prompt_hash
from pipeline.schemas import INTERACTIONS, ITEMS, PROVENANCE, USERS
from pipeline.store import fingerprint
from pipeline.templates import Domain

KINDS = ("user", "item")
GENRES = {"Alpha": {"genre": "Drama"}, "Beta": {"category": "War"}, "Gamma": {}}
LEARNT = [name for name in REGISTRY if framework_named(name).auxiliary]


def prompts(templates, kind, domain="movie"):
    """Texts about user u, who rated Alpha 5, Beta 3 and Gamma 1, and about the three titles."""
    ids = [f"i{number}" for number in range(len(GENRES))]
    attributes = [list(one.items()) for one in GENRES.values()]
    rows = [
        ["u"] * 3,
        ids,
        pa.array([5.0, 3.0, 1.0], pa.float32()),
        pa.array([1, 0, 0], pa.int8()),
        [1, 2, 3],
        ["knowledge"] * 3,
    ]
    tables = (
        pa.table([["u"], [[("age", "30")]]], schema=USERS),
        pa.table([ids, list(GENRES), attributes], schema=ITEMS),
        pa.table(rows, schema=INTERACTIONS),
    )
    asked = build_prompts(kind, *tables, PromptSettings(domain=domain), templates)
    return [prompt.text for prompt in asked]


def asked(name, kind, **options):
    return prompts(shipped_templates(name), kind, **options)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_framework_shows_the_whole_past_and_what_is_known(name):
    [user] = asked(name, "user")
    assert "age 30" in user
    places = [user.index(title) for title in GENRES]
    assert places == sorted(places)
    assert next(line for line in user.splitlines() if "Beta" in line).endswith(", 3 stars")
    items = asked(name, "item")
    assert all(title in text for title, text in zip(GENRES, items, strict=True))
    assert "genre: Drama" in items[0]
    assert user.endswith(("now.", "commas."))  # a plain order, which small models need


@pytest.mark.parametrize("name", REGISTRY)
def test_every_framework_has_words_for_any_domain(name):
    for kind in KINDS:
        book, tool = (asked(name, kind, domain=domain)[0] for domain in ("book", "ax"))
        assert "viewer" not in book + tool
        assert "movie" not in book + tool
        assert " a ax" not in tool


def test_frameworks_ask_in_words_of_their_own():
    for kind in KINDS:
        texts = {asked(name, kind)[0] for name in REGISTRY}
        assert len(texts) == len(REGISTRY)


def test_kar_asks_to_the_letter_what_it_asked_in_the_first_runs():
    """Their knowledge stays current."""
    hashes = [prompt_hash(text) for kind in KINDS for text in asked("kar", kind)]
    assert hashes == [
        "e5fe24f0043279e8",
        "093da6e081fb5196",
        "a2c9e5ac6cd4745d",
        "c7cd18381da45751",
    ]


def test_trawl_shows_the_category_of_every_title_where_there_is_one():
    lines = asked("trawl", "user")[0].splitlines()
    assert {"Alpha (Drama), 5 stars", "Beta (War), 3 stars", "Gamma, 1 star"} <= set(lines)
    assert not any("(Drama)" in asked(name, "user")[0] for name in REGISTRY if name != "trawl")


def test_trawl_takes_the_first_of_several_genres_where_it_knows_no_category(monkeypatch):
    several = [{"genres": "Drama, War"}, {"genres": "Noir", "category": "War"}, {"genres": ""}]
    monkeypatch.setattr(f"{__name__}.GENRES", dict(zip(GENRES, several, strict=True)))
    lines = asked("trawl", "user")[0].splitlines()
    assert {"Alpha (Drama), 5 stars", "Beta (War), 3 stars", "Gamma, 1 star"} <= set(lines)


def test_once_asks_for_five_words_and_rlmrec_for_json():
    assert "at most five" in asked("once", "user")[0]
    assert not read_interests("user", "a, b, c, d, e").is_malformed
    assert read_interests("user", "a, b, c, d, e, f").is_malformed
    for kind in KINDS:
        text = asked("rlmrec", kind)[0]
        form = json.loads(text[text.index("{") : text.index("}") + 1])
        assert form.keys() == {"summary", "reasoning"}


@pytest.mark.parametrize("field", ["user", "item", "domains", "general"])
def test_any_change_of_wording_changes_the_hash(field):
    templates = shipped_templates("kar")
    changes = {
        "user": templates.user + " ",
        "item": templates.item.replace("Cover", "Tell"),
        "domains": {**templates.domains, "movie": Domain("viewer", "genre")},
        "general": Domain("person", templates.general.factors),
    }
    assert replace(templates, **{field: changes[field]}).hash != templates.hash
    assert replace(templates).hash == templates.hash


def test_frameworks_are_worded_as_in_the_first_runs():
    """Finished runs stay current; whoever means to change a wording changes its hash here."""
    hashes = {name: shipped_templates(name).hash for name in REGISTRY}
    assert hashes == {
        "kar": "b0ca77e929f03429",
        "trawl": "8f9bb3dc46a40000",
        "once": "e2d8fd4eefe74fef",
        "rlmrec": "421de9dec22422f5",
    }
    assert {name: templates.hash for name, templates in TEMPLATES.items()} == {
        "raw_text": "65cdc4e7674dd5ae",
        "history": "641c2c9616a1a80b",
    }


@pytest.mark.parametrize("name", ["kar", "trawl"])
def test_free_text_is_encoded_whole(name):
    read = framework_named(name).read
    assert read("user", "Likes {drama}, war.") == ("Likes {drama}, war.", False)
    assert not framework_named(name).reading  # features of older runs stay current


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("action, comedy, drama", "action, comedy, drama"),
        ("Action", "Action"),
        ("Interests: action, science fiction.", "action, science fiction"),
        ("1. Action\n2. Slow-burn drama\n3. War\n", "Action, Slow-burn drama, War"),
        ("- action\n- comedy\n", "action, comedy"),
        ("* **Action**\n* **Noir**", "Action, Noir"),
        ('"action"; "comedy"', "action, comedy"),
        ('["action", "comedy"]', "action, comedy"),
        ("action, comedy, and drama", "action, comedy, drama"),
        ("The viewer's interests:\n1. Noir\n2. War\n\nThese are just examples.", "Noir, War"),
        ("1. Noir\n\n2. War", "Noir, War"),
        ("drama, Drama, DRAMA, war, war, war", "DRAMA, war"),
        ("Here are five words: noir, war", "noir, war"),
        ("**Interests:** noir, war", "noir, war"),
        ("Themes of the viewer:\nnoir", "noir"),
        ("Science fiction.", "Science fiction"),
        ("café, драма, 戦争", "café, драма, 戦争"),
    ],
)
def test_words_of_interest_are_read_however_they_are_listed(answer, text):
    assert read_interests("user", answer) == (text, False)


@pytest.mark.parametrize(
    "answer",
    [
        "The viewer likes action movies and comedies most of all.",
        "action, and then there are many films that the viewer has not liked at all",
        "...",
        "1, 2, 3",
        "The viewer: age 28, gender M\nRating: 4 stars",  # the prompt said again
        "word" * 20,
        "The viewer likes drama.",
        "None",
        "N/A",
        "Nothing is known.",
        "I cannot say",
        "drama, none",
        "Star Wars: A New Hope, drama",  # what is taken off must be a label
        "," * 10_000,
        "Interests:",
    ],
)
def test_what_is_no_list_of_five_words_is_malformed_and_encoded_whole(answer):
    assert read_interests("user", answer) == (answer, True)


ANSWERS = [
    "action, comedy, drama",
    "Interests: action, science fiction.",
    "The viewer's interests:\n1. Noir\n2. War\n\nThese are just examples.",
    "1. Noir\n\n2. War",
    "drama, Drama, DRAMA, war, war, war",
    "Star Wars: A New Hope, drama",
    "The viewer likes drama.",
    "None",
    "Nothing is known.",
    "The viewer: age 28, gender M\nRating: 4 stars",
    "a, b, c, d, e, f",
    '{"summary": " Likes drama. ", "reasoning": "High ratings."}',
    'As {asked}: {"summary": "Likes war.", "reasoning": "It',
    '{"summary": "Likes drama."}',
    "{" * 40,
]


@pytest.mark.parametrize(
    ("name", "reading", "behaviour"),
    [
        ("kar", "", "2ee5f3639af8633b"),
        ("trawl", "", "2ee5f3639af8633b"),
        ("once", "interests 3", "f555dbe1245d3c51"),
        ("rlmrec", "summary 2", "0156cc3eff4a74e2"),
    ],
)
def test_another_way_of_reading_has_another_name(name, reading, behaviour):
    """Where this fails, features made before would pass for new ones: give `reading` a new name."""
    framework = framework_named(name)
    read = [[kind, *framework.read(kind, answer)] for kind in KINDS for answer in ANSWERS]
    assert (framework.reading, fingerprint(read)) == (reading, behaviour)


def test_a_description_is_encoded_whole():
    assert read_interests("item", "A film, a war, a, b, c, d, e.").is_malformed is False


PROFILE = '{"summary": " Likes drama. ", "reasoning": "High ratings."}'


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (PROFILE, "Likes drama."),
        (f"```json\n{PROFILE}\n```", "Likes drama."),
        (f"Here is the object:\n{PROFILE} I hope it helps. {{", "Likes drama."),
        ('{"reasoning": "", "more": [1], "summary": "War\nfilms"}', "War\nfilms"),
        ('{"summary": "\\ud83d\\ude00 fun", "reasoning": ""}', "\U0001f600 fun"),
        ('{"summary": "{\\"summary\\": 1}", "reasoning": ""}', '{"summary": 1}'),
        (f"The {{form}} asked for: {PROFILE}", "Likes drama."),
        (f'{{"profile": {PROFILE}}}', "Likes drama."),
        ("{" * 19 + PROFILE, "Likes drama."),
        # cut by max_new_tokens after the summary, which is all that is encoded
        (PROFILE[:-1], "Likes drama."),
        (PROFILE[:-12], "Likes drama."),
        ('{"summary": "Likes drama.", "rea', "Likes drama."),
        ('{"summary": "Likes drama."', "Likes drama."),
        ('{"summary": "Likes drama.", "reasoning": "As "Rocky" shows."}', "Likes drama."),
    ],
)
def test_the_summary_of_a_profile_is_read(answer, text):
    for kind in KINDS:
        assert read_profile(kind, answer) == (text, False)


@pytest.mark.parametrize(
    "answer",
    [
        "Likes drama.",
        '{"summary": "Likes dra',  # cut by max_new_tokens
        '{"summary": "Likes drama.\\',
        "{" * 20 + PROFILE,  # braces are not tried for ever
        '{"summary": "Likes drama."}',
        '{"reasoning": "Likes drama."}',
        '{"summary": "  ", "reasoning": ""}',
        '{"summary": ["Likes drama."], "reasoning": ""}',
        '{"summary": null, "reasoning": ""}',
        '{"summary": "a", "reasoning": 1}',
        "['summary', {}]",
        '{"summary": "\\ud800", "reasoning": ""}',  # half a character: no bytes, no tokens
        '{"a": ' * 100_000,
        '{"a": ' + "[" * 100_000,
        '{"summary": ' + "9" * 100_000 + "}",
        "{" * 100_000,
    ],
)
def test_what_is_no_profile_is_malformed_and_encoded_whole(answer):
    assert read_profile("user", answer) == (answer, True)


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_no_answer_breaks_a_reading_or_leaves_nothing_to_encode(answer):
    if not answer.strip():
        return
    for name in REGISTRY:
        for kind in KINDS:
            text, is_malformed = framework_named(name).read(kind, answer)
            assert text.strip()
            assert text.encode()
            assert text == answer or not is_malformed


def test_long_answers_are_read_in_no_time():
    """Of this process's own; quadratic readings take minutes."""
    began = time.process_time()
    for answer in (
        "a:" * 50_000,
        " " * 100_000 + "x",
        "- " * 50_000,
        "a, " * 30_000,
        '"' * 100_000,
        "interest " * 10_000,
        "{" * 100_000,
        '{"summary": "' * 10_000,
        '{"summary": "a", "b": "' + 'x{"' * 30_000,
    ):
        for name in REGISTRY:
            framework_named(name).read("user", answer)
    assert time.process_time() - began < 2


def test_only_what_was_asked_for_is_encoded_and_the_rest_counted():
    rows = [
        ("user", "a", PROFILE, ""),
        ("user", "b", "no profile", ""),
        ("item", "c", "no profile", ""),
        ("item", "d", PROFILE, "failed"),  # an error row has no answer
        ("item", "e", " ", ""),
    ]
    names = ["kind", "entity_id", "text", "error"]
    knowledge = pa.table([list(column) for column in zip(*rows, strict=True)], names=names)
    for name in PROVENANCE:
        seen = pa.array(["asked"] * 5 if name == "prompt_hash" else [0] * 5)
        knowledge = knowledge.append_column(name, seen)
    texts = [reading.text for reading in readings(knowledge, read_profile)]
    assert texts == ["Likes drama.", "no profile", "no profile", "", ""]
    assert count_malformed(knowledge, read_profile) == {"user": 1, "item": 1}
    assert count_malformed(knowledge, whole_text) == {"user": 0, "item": 0}
    assert count_malformed(knowledge.slice(0, 0), read_profile) == {"user": 0, "item": 0}

    class Lengths:
        dim = 1

        def encode(self, texts):
            return torch.tensor([[float(len(text))] for text in texts]).numpy()

    features = build_features(knowledge, Lengths(), read_profile)
    assert features["vector"].to_pylist() == [[12.0], [10.0], [10.0], [0.0], [0.0]]
    assert features["source"].to_pylist() == ["own", "own", "own", "none", "none"]


@pytest.mark.parametrize("name", REGISTRY)
def test_adaptors_map_vectors_of_any_number_of_entities(name):
    adaptor = framework_named(name).adaptor(7, 3)
    for kind in KINDS:
        assert adaptor(kind, torch.randn(5, 7)).shape == (5, 3)
        assert adaptor(kind, torch.randn(0, 7)).shape == (0, 3)


@pytest.mark.parametrize("name", REGISTRY)
def test_an_entity_is_adapted_alike_whoever_is_beside_it(name):
    torch.manual_seed(0)
    adaptor, vectors = framework_named(name).adaptor(7, 3), torch.randn(5, 7)
    for kind in KINDS:
        torch.testing.assert_close(adaptor(kind, vectors)[2:3], adaptor(kind, vectors[2:3]))


def linear(layer, vector):
    """Plain loops over a Linear's numbers."""
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    return [
        sum(w * x for w, x in zip(row, vector, strict=True)) + b
        for row, b in zip(weight, bias, strict=True)
    ]


def mlp(layers, vector, slope):
    first, _, second = layers
    hidden = [x if x > 0 else slope * x for x in linear(first, vector)]
    return linear(second, hidden)


def softmax(scores):
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def test_adaptors_equal_naive_ones():
    torch.manual_seed(0)
    vector = torch.randn(5).tolist()

    def adapted(name):
        adaptor = framework_named(name).adaptor(5, 3)
        return adaptor, {kind: adaptor(kind, torch.tensor([vector]))[0].tolist() for kind in KINDS}

    mixture, got = adapted("trawl")
    gate = softmax(linear(mixture.gate, vector))
    answers = [mlp(expert, vector, 0.0) for expert in mixture.experts]
    wanted = [
        sum(weight * answer[place] for weight, answer in zip(gate, answers, strict=True))
        for place in range(3)
    ]
    assert got["user"] == got["item"] == pytest.approx(wanted, rel=1e-5, abs=1e-6)

    single, got = adapted("once")
    assert got["user"] == got["item"] == pytest.approx(mlp(single.layers, vector, 0.0), rel=1e-5)

    dual, got = adapted("rlmrec")
    for kind in KINDS:
        wanted = mlp(dual.project[kind], vector, 0.01)
        assert got[kind] == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    assert got["user"] != pytest.approx(got["item"], rel=1e-2)


def naive_info_nce(anchors, candidates, temperature, vector_of=None):
    vector_of = vector_of or list(range(len(anchors)))

    def cosine(one, other):
        product = sum(x * y for x, y in zip(one, other, strict=True))
        lengths = math.sqrt(sum(x * x for x in one)) * math.sqrt(sum(y * y for y in other))
        return product / lengths

    total = 0.0
    for row, anchor in enumerate(anchors):
        powers = [math.exp(cosine(anchor, other) / temperature) for other in candidates]
        others = [
            power
            for place, power in enumerate(powers)
            if place != row and vector_of[place] != vector_of[row]
        ]
        total -= math.log(powers[row] / (powers[row] + sum(others)))
    return total / len(anchors)


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
def test_info_nce_equals_a_double_loop(temperature):
    torch.manual_seed(1)
    anchors, candidates = torch.randn(6, 4), torch.randn(6, 4)
    got = float(info_nce(anchors, candidates, temperature))
    wanted = naive_info_nce(anchors.tolist(), candidates.tolist(), temperature)
    assert got == pytest.approx(wanted, rel=1e-5)
    scaled = info_nce(5 * anchors, 0.1 * candidates, temperature)
    assert float(scaled) == pytest.approx(got, rel=1e-5)


def test_rows_of_one_vector_are_nobody_s_negatives_among_themselves():
    torch.manual_seed(1)
    anchors, candidates, vector_of = torch.randn(6, 4), torch.randn(6, 4), [0, 1, 0, 2, 1, 0]
    got = info_nce(anchors, candidates, 0.2, torch.tensor(vector_of))
    wanted = naive_info_nce(anchors.tolist(), candidates.tolist(), 0.2, vector_of)
    assert float(got) == pytest.approx(wanted, rel=1e-5)
    alike = torch.ones(8, 4, requires_grad=True)
    nothing = info_nce(alike, alike, 0.1, torch.zeros(8, dtype=torch.int64))
    nothing.backward()
    assert nothing.item() == 0.0  # none can be told from another
    assert not alike.grad.any()


@pytest.mark.parametrize("name", LEARNT)
def test_losses_hear_which_vectors_are_one(name):
    torch.manual_seed(0)
    loss, adapted = framework_named(name).auxiliary(4, 4), torch.randn(3, 4)
    behaviour = torch.randn(1, 4).expand(3, 4)
    assert loss("user", adapted, behaviour, torch.zeros(3, dtype=torch.int64)).item() == 0.0
    assert loss("user", adapted, behaviour).item() > 0.1


def test_info_nce_has_the_values_it_must_have():
    alone, alike = torch.randn(1, 4), torch.ones(8, 4)
    assert float(info_nce(alone, -alone, 0.1)) == 0.0  # no negatives, nothing to tell apart
    assert float(info_nce(alike, alike, 0.1)) == pytest.approx(math.log(8))
    apart = torch.eye(4)
    assert float(info_nce(apart, apart, 0.05)) == pytest.approx(0.0, abs=1e-7)
    assert float(info_nce(apart, apart.flip(0), 0.05)) == pytest.approx(20.0, rel=1e-5)


def test_info_nce_is_finite_where_exponentials_are_not():
    rows = torch.eye(4, dtype=torch.bfloat16).requires_grad_()
    loss = info_nce(rows, torch.eye(4, dtype=torch.bfloat16).flip(0), 0.001)
    loss.backward()
    assert torch.isfinite(loss)
    assert rows.grad is not None
    assert torch.isfinite(rows.grad).all()


@pytest.mark.parametrize("name", LEARNT)
@pytest.mark.parametrize("dims", [(6, 6), (6, 4)], ids=["equal", "bridged"])
def test_auxiliary_losses_fall_on_a_toy_problem(name, dims):
    """What users did follows from their texts, so an adaptor can learn to tell whose is whose."""
    torch.manual_seed(0)
    framework = framework_named(name)
    vectors = torch.randn(40, 12)
    behaviour = torch.nn.Parameter(torch.tanh(vectors @ torch.randn(12, dims[1])))
    adaptor, loss = framework.adaptor(12, dims[0]), framework.auxiliary(*dims)
    optimizer = torch.optim.Adam([*adaptor.parameters(), *loss.parameters()], lr=0.01)
    course = []
    for _ in range(60):
        value = loss("user", adaptor("user", vectors), behaviour)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        course.append(value.item())
    assert course[-1] < 0.5 * course[0]


def test_each_loss_teaches_whom_it_should():
    adapted, behaviour = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4)
    for name, learns in (("trawl", False), ("rlmrec", True)):
        own = behaviour.clone().requires_grad_()
        framework_named(name).auxiliary(4, 4)("item", adapted, own).backward()
        assert (own.grad is not None) == learns
        assert adapted.grad is not None


def test_the_losses_take_the_paper_s_sides():
    torch.manual_seed(0)
    adapted, behaviour = torch.randn(5, 4), torch.randn(5, 4)
    trawl, rlmrec = (framework_named(name).auxiliary(4, 4) for name in ("trawl", "rlmrec"))
    assert float(trawl("user", adapted, behaviour)) == pytest.approx(
        naive_info_nce(adapted.tolist(), behaviour.tolist(), 0.07), rel=1e-5
    )
    assert float(rlmrec("user", adapted, behaviour)) == pytest.approx(
        naive_info_nce(behaviour.tolist(), adapted.tolist(), 0.2), rel=1e-5
    )
    assert not list(trawl.parameters())
    assert len(list(Contrast(4, 3).parameters())) == 4


def test_a_fifth_framework_is_a_module_a_line_and_a_folder(monkeypatch, tmp_path):
    module = ModuleType("tests_fifth_framework")
    module.FRAMEWORK = Framework(
        "fifth",
        framework_named("once").adaptor,
        learning="MLP 1",
        read=lambda kind, answer: (answer.split()[0], False),
        reading="first word",
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(REGISTRY, "fifth", module.__name__)
    monkeypatch.setattr(features.frameworks, "PROMPTS", tmp_path)
    (tmp_path / "fifth").mkdir()
    for file, text in {
        "user.jinja": "Ask {{ person }}.\n",
        "item.jinja": "Ask about {{ title }}.\n",
        "domains.yaml": "general: {person: buyer}\n",
    }.items():
        (tmp_path / "fifth" / file).write_text(text)
    fifth = framework_named("fifth")
    assert asked("fifth", "item")[1] == "Ask about Beta."
    assert asked("fifth", "user") == ["Ask buyer."]
    assert fifth.read("user", "one two") == ("one", False)
    with pytest.raises(ConfigError, match="none of kar, trawl, once, rlmrec, fifth"):
        require_framework("sixth")


@pytest.mark.parametrize("name", REGISTRY)
def test_a_framework_knows_its_name(name):
    assert framework_named(name).name == name
    assert (framework_named(name).auxiliary is None) == (not framework_named(name).auxiliary_weight)


def test_a_wrong_name_ends_any_job_at_once_and_gives_the_nearest(tmp_path, capsys):
    """Before anything is written or looked for."""
    config = tmp_path / "run.yaml"
    config.write_text(
        "run: test\nframework: rlmrek\ncatalog: {source: movielens, path: nowhere}\n"
        "language_model: {path: nowhere}\nencoder: {path: nowhere}\n"
        f"artifacts: {tmp_path / 'artifacts'}\n"
    )
    code = cli.main(lambda *_: None, "", ["--config", str(config)])
    assert code == 2
    error = capsys.readouterr().err
    assert "framework: 'rlmrek' is none of kar, trawl, once, rlmrec; the nearest is rlmrec" in error
    assert not (tmp_path / "artifacts").exists()
