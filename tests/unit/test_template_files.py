"""Wording in a folder that a user edits: what is read, what is refused, and what a change does."""

import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from features.frameworks import PROMPTS, REGISTRY, shipped_templates, templates_of
from jobs import cli, generate_knowledge
from jobs.waves import CATALOG, Identity, plan_wave
from pipeline.config import PromptSettings, RunConfig
from pipeline.decoding_config import GenerationSettings
from pipeline.errors import ConfigError, DataError
from pipeline.knowledge import MEMBER, WaveIdentity, make_tasks
from pipeline.prompts import Prompts
from pipeline.refresh import rows_that_hold
from pipeline.schemas import INTERACTIONS, ITEMS, SCHEMAS, USERS
from pipeline.store import Store
from pipeline.template_files import late_tasks, load_templates
from pipeline.templates import Domain, Templates


@pytest.fixture
def own(tmp_path):
    """A user's own copy of KAR's wording."""
    return shutil.copytree(PROMPTS / "kar", tmp_path / "own")


def edit(folder, file, old, new):
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))


def config(folder=None, **prompts):
    tree = {
        "run": "test",
        "catalog": {"source": "movielens", "path": "nowhere"},
        "language_model": {"path": "nowhere"},
        "encoder": {"path": "nowhere"},
        "prompts": prompts | ({"templates": str(folder)} if folder else {}),
    }
    return RunConfig.model_validate(tree)


def test_a_copy_is_the_same_wording_wherever_it_stands(own):
    assert templates_of(config(own)).hash == templates_of(config()).hash


def test_the_place_of_a_copy_is_nothing_that_texts_depend_on(own):
    assert config(own).prompts.deciding() == config().prompts.deciding()
    assert "templates" not in config().prompts.model_dump()
    assert config(own).model_dump(mode="json")["prompts"]["templates"] == str(own)


def test_a_comment_at_the_top_and_the_marks_of_an_editor_are_no_wording(own):
    before = load_templates(own).hash
    edit(own, "user.jinja", "{# What", "{# Mine: 5 # {{ signs }} %}\n#}\n{# What")
    text = (own / "item.jinja").read_bytes()
    (own / "item.jinja").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    assert load_templates(own).hash == before
    asked = (
        load_templates(own)
        .compiled("user")
        .render(domain="ax", person="user", factors="", attributes=[], history=[], categories=[])
    )
    assert asked.startswith("Analyze a user's ax preferences.")


def rendered(text):
    templates = Templates("Ask.", text, {}, Domain("user"))
    return templates.hash, templates.compiled("item").render()


@pytest.mark.parametrize(
    "head", ["{# a -#}", "{# a +#}", "{#- a -#}", "{#\n#}\n{# a -#}", "{# a #}"]
)
@pytest.mark.parametrize("blanks", ["\n\n  ", "\n", " "])
def test_wording_of_one_hash_reads_the_same(head, blanks):
    """A comment may take the blanks behind it away, or keep a line end that others take."""
    plain = rendered(f"{{# note #}}{blanks}Ask. {{# b #}} more")
    other = rendered(f"{head}{blanks}Ask. {{# b #}} more")
    assert plain[0] != other[0] or plain[1] == other[1]
    assert (plain == other) == (head == "{# a #}")


def test_words_and_numbers_are_written_as_they_are(own):
    for text in ("{{ 1 }} {{ 0.5 }} {{ true }} {{ title | length }}", "{{ title | upper | e }}"):
        shutil.copy(PROMPTS / "kar" / "item.jinja", own)
        edit(own, "item.jinja", "{{ factors }}", text)
        load_templates(own)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("user.jinja", "Analyze", "Study"),
        ("item.jinja", "\nDescribe this", "\n{# now #}\nDescribe this"),
        ("item.jinja", "now.", "now. "),
        ("domains.yaml", "person: reader", "person: patron"),
    ],
)
def test_another_wording_has_another_hash(own, file, old, new):
    before = load_templates(own).hash
    edit(own, file, old, new)
    assert load_templates(own).hash != before


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "user.jinja",
            "{{ person | cap",
            "{{ persn | cap",
            "line 11: 'persn' is unknown; .* person$",
        ),
        (
            "item.jinja",
            "{{ factors }}",
            "{{ history }}",
            "line 5: 'history' is unknown; about an item",
        ),
        ("user.jinja", "{% endfor %}", "", "line 18: Encountered unknown tag|line .*: Unexpected"),
        ("user.jinja", "{% if history %}", "{% if history", "line 14: expected token"),
        ("item.jinja", "| upper", "| uper", "line 7: No filter named 'uper'"),
        (
            "item.jinja",
            "{{ factors }}",
            "{{ factors | random }}",
            "line 5: No filter named 'random'",
        ),
        ("item.jinja", "{{ factors }}", "{{ lipsum() }}", "line 5: 'lipsum' is unknown"),
        ("item.jinja", "{{ factors }}", "{{ 1 // 0 }}", "line 5: .* every item: .*zero"),
        ("item.jinja", "{{ factors }}", "{{ attributes.year }}", "line 5: .*no attribute 'year'"),
        ("item.jinja", "{{ factors }}", "{% include 'a.jinja' %}", "line 5: .* another file"),
        ("item.jinja", "{{ factors }}", "{{ title.__class__ }}", "line 5: .* unsafe"),
        (
            "item.jinja",
            "{{ factors }}",
            "{{ attributes.append(1) }}",
            "line 5: .* unsafe|not safely",
        ),
        (
            "item.jinja",
            "{{ factors }}",
            "{% for n in range(10**9) %}{% endfor %}",
            "line 5: .*ange",
        ),
        (
            "item.jinja",
            "{{ factors }}",
            "{{ attributes | map('upper') }}",
            "line 5: .*forget `. join",
        ),
        ("item.jinja", "{{ factors }}", "{{ title.upper }}", "line 5: .* of parentheses"),
        ("item.jinja", "{{ factors }}", "{{ attributes }}", "line 5: .* no text but a list"),
        ("item.jinja", "{{ factors }}", "{{ [1, 2] }}", "line 5: .* no text but a list"),
        ("item.jinja", "{{ factors }}", "{{ none }}", "line 5: .* no text but a NoneType"),
        ("item.jinja", "{{ factors }}", "{{ title.upper ~ '.' }}", "it writes 'at 0x.* in memory"),
        ("item.jinja", "{{ factors }}", "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}", ".* too deep"),
        ("domains.yaml", "person: viewer", "person: 2001-02-31", "not valid YAML: day"),
        ("domains.yaml", "person: viewer", "person: !!int x", "not valid YAML: invalid literal"),
        ("domains.yaml", "person: viewer", "person: \a", "not valid YAML: .* not allowed"),
        ("domains.yaml", "person: viewer", "person: " + "[" * 9000, "not valid YAML: .*recursion"),
        ("domains.yaml", "  movie:", "  Movie:\n    person: fan\n  movie:", "domains: movie is sp"),
        ("domains.yaml", "person: viewer", "person: [viewer", "line .*: not valid YAML"),
        (
            "domains.yaml",
            "person: viewer",
            "persn: viewer",
            "domains.movie.person: Field required; domains.movie.persn: Extra inputs",
        ),
        ("domains.yaml", "general:", "genral:", "general: Field required"),
        ("domains.yaml", "person: viewer", "person: 7", "domains.movie.person: .* valid string"),
        ("domains.yaml", "person: viewer", "person: ''", "domains.movie.person: .* at least 1"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_line(own, file, old, new, said):
    edit(own, file, old, new)
    with pytest.raises(ConfigError, match=rf"{own}/{file}(, |: )({said})"):
        load_templates(own)


@pytest.mark.parametrize("text", ["", "{# nothing #}\n", "{% if history %}Ask.{% endif %}\n"])
def test_an_empty_prompt_is_refused(own, text):
    (own / "user.jinja").write_text(text)
    with pytest.raises(ConfigError, match=r"user.jinja, line \d: it makes an empty prompt"):
        load_templates(own)


def test_an_empty_prompt_of_one_domain_is_refused(own):
    (own / "item.jinja").write_text("{# Mine. #}\n\n{% if domain != 'book' %}Ask.{% endif %}\n")
    with pytest.raises(ConfigError, match=r"line 3: .* for the domain book"):
        load_templates(own)


def test_a_missing_file_and_one_that_is_no_text_are_named(own):
    (own / "item.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"item.jinja cannot be read as text"):
        load_templates(own)
    (own / "item.jinja").unlink()
    with pytest.raises(ConfigError, match=r"item.jinja is missing; copy it from conf/prompts/"):
        load_templates(own)


def test_a_mistake_ends_any_job_before_any_work(own, tmp_path, capsys):
    edit(own, "user.jinja", "{{ factors }}", "{{ factor }}")
    file = tmp_path / "run.yaml"
    file.write_text(
        "run: test\ncatalog: {source: movielens, path: nowhere}\n"
        "language_model: {path: nowhere}\nencoder: {path: nowhere}\n"
        f"prompts: {{templates: {own}}}\nartifacts: {tmp_path / 'artifacts'}\n"
    )
    assert cli.main(lambda *_: None, "", ["--config", str(file)]) == 2
    assert f"{own}/user.jinja, line 8: 'factor' is unknown" in capsys.readouterr().err
    assert not (tmp_path / "artifacts").exists()
    uri = ["--config", str(file), "--set", "prompts.templates=s3://bucket/prompts"]
    assert cli.main(lambda *_: None, "", uri) == 2
    assert "prompts.templates: Input should be a folder of this machine" in capsys.readouterr().err


def test_words_of_a_domain_are_found_however_it_is_spelled(own):
    edit(own, "domains.yaml", "  movie:", "  Movie:")
    assert load_templates(own).words("MOVIE") == shipped_templates("kar").words("movie")


@pytest.mark.parametrize("name", REGISTRY)
def test_shipped_wording_puts_the_task_first_and_says_so(name):
    for domain in ("movie", "book", "garden tool"):
        assert late_tasks(shipped_templates(name), domain) == []
    for file in (PROMPTS / name).glob("*.jinja"):
        assert "computed once" in file.read_text().partition("#}")[0]


def test_a_task_that_comes_after_the_entity_is_warned_of(own, caplog, monkeypatch):
    task = "Describe it in 3-4 sentences of plain text, for a recommender.\n"
    (own / "item.jinja").write_text("Title: {{ title or 'untitled' }}\n" + task)
    [said] = late_tasks(load_templates(own), "movie")
    assert said.startswith(f"{own}/item.jinja: all prompts share their first 7 characters only")

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(generate_knowledge, "identify", stop)
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        generate_knowledge.run(config(own), None)
    assert said in caplog.text


USER_IDS, ITEM_IDS = ["u", "v"], ["i", "j"]


def prompts_of(templates):
    """About two users, of whom one is known, and two items."""
    users = pa.table([USER_IDS, [[("age", "30")], []]], schema=USERS)
    items = pa.table([ITEM_IDS, ["Alpha", "{{ 7 * 7 }}"], [[], []]], schema=ITEMS)
    return Prompts(users, items, INTERACTIONS.empty_table(), PromptSettings(), templates)


def test_what_cannot_be_filled_in_for_an_entity_names_it():
    templates = Templates("\n{{ 1 // attributes | length }}", "Ask.", {}, Domain("user"))
    with pytest.raises(DataError, match=r"<user template>, line 2: .* for user 'v': .* by zero"):
        prompts_of(templates).take("user", np.arange(2))


def test_text_of_the_catalog_is_never_a_template(own):
    edit(own, "item.jinja", "{{ factors }}", "{{ title | upper }}")
    texts = [prompt.text for prompt in prompts_of(load_templates(own)).take("item", np.arange(2))]
    assert "{{ 7 * 7 }}" in texts[1]
    assert "49" not in texts[1]


def test_changed_wording_writes_its_rows_anew_and_no_others(own, letters):
    identity, generation = WaveIdentity(1, "strict", "", "m", "t"), GenerationSettings()
    members = pa.table(
        [["user"] * 2 + ["item"] * 2, USER_IDS + ITEM_IDS, ["g"] * 4], names=list(MEMBER)
    )

    def tasks(templates):
        return make_tasks(prompts_of(templates), members, letters, identity, generation)

    before = tasks(load_templates(own))
    written = before.append_column("error", pa.array([""] * 4))
    assert rows_that_hold(before, written, identity, generation).tolist() == [0, 1, 2, 3]
    edit(own, "item.jinja", "Describe this", "Tell of this")
    after = tasks(load_templates(own))
    assert rows_that_hold(after, written, identity, generation).tolist() == [0, 1]
    changed = [a != b for a, b in zip(before["prompt_hash"], after["prompt_hash"], strict=True)]
    assert changed == [False, False, True, True]


def test_a_wave_of_another_wording_is_another(own, tmp_path):
    store = Store(tmp_path / "artifacts")
    for name in [*CATALOG, "groups"]:
        store.plan(name, {}).write(SCHEMAS[name][0].empty_table())
    identity = Identity(SimpleNamespace(fingerprint="tokenizer"), "model")

    def wave(folder=None):
        return plan_wave(config(folder), store, 0, identity).fingerprint

    other = shutil.copytree(own, tmp_path / "other")
    edit(other, "item.jinja", "Describe this", "Tell of this")
    assert wave(own) == wave() != wave(other)
