"""`laser validate`: everything that is wrong at once, and what a catalog is like."""

import json

import pytest
from transformers import LlamaConfig

from jobs import build_catalog, validate_catalog
from jobs.soak_shop import save_tokenizer
from jobs.validate_catalog import broken_config_facts, facts_of
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.generative_config import RecommendationSettings
from pipeline.store import Store
from pipeline.table_heads import read_head

START, HOUR = 1_700_000_000, 3600


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tokenizer and an encoder, by their files; neither has weights that could be loaded."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("model", "encoder"):
        LlamaConfig(vocab_size=400).save_pretrained(folder / name)
        (folder / name / "model.safetensors").touch()
    save_tokenizer(folder / "model", ["Describe a book for a recommender."], 400)
    return folder


@pytest.fixture
def tree(tmp_path, models):
    """A config over 30 readers and 20 books; tests change files and settings."""
    readers = [f"r{n},{'nurse' if n % 2 else ''}" for n in range(30)]
    books = [f"b{n},Book {n},{'' if n % 4 == 0 else 'Crime'}" for n in range(20)]
    ratings = [f"r{n % 28},b{n * 7 % 20},{n * 13 % 5 + 1},{START + n * HOUR}" for n in range(1200)]
    (tmp_path / "readers.csv").write_text("\n".join(["card,job", *readers]))
    (tmp_path / "books.csv").write_text("\n".join(["isbn,name,genre", *books]))
    (tmp_path / "ratings.csv").write_text("\n".join(["card,isbn,stars,day", *ratings]))
    ours = {"user_id": "card", "item_id": "isbn", "rating": "stars", "timestamp": "day"}
    return {
        "run": "r",
        "artifacts": str(tmp_path / "artifacts"),
        "catalog": {
            "tables": {
                "users": {
                    "path": str(tmp_path / "readers.csv"),
                    "columns": {"user_id": "card"},
                    "attributes": ["job"],
                },
                "items": {
                    "path": str(tmp_path / "books.csv"),
                    "columns": {"item_id": "isbn", "title": "name"},
                    "attributes": ["genre"],
                },
                "interactions": {"path": str(tmp_path / "ratings.csv"), "columns": ours},
            },
            "split": {"train_share": 0.5, "valid_share": 0.1},
        },
        "groups": {"user_attributes": ["job"], "item_attributes": ["genre"]},
        "prompts": {"domain": "book", "max_tokens": 1024},
        "language_model": {"path": str(models / "model")},
        "encoder": {"path": str(models / "encoder")},
    }


def facts(tree, **sections):
    for name, changes in sections.items():
        tree[name] = tree.get(name, {}) | changes if isinstance(changes, dict) else changes
    return facts_of(RunConfig.model_validate(tree))


def add_rows(tmp_path, name, *rows):
    path = tmp_path / name
    path.write_text(path.read_text() + "".join(f"\n{row}" for row in rows))


def test_a_good_catalog_is_told_in_numbers(tree):
    found = facts(tree)
    assert found["problems"] == []
    assert found["warnings"] == []
    assert found["exit_code"] == 0
    users, items, log = (found["tables"][name] for name in ("users", "items", "interactions"))
    assert (users["rows"], users["without_interactions"]) == (30, 2)
    assert users["attributes_missing_share"] == {"job": 0.5}
    assert items["attributes_missing_share"] == {"genre": 0.25}
    assert items["without_title"] == 0
    assert (log["rows"], log["likes"]) == (1200, 480)
    assert (log["first_day"], log["last_day"]) == ("2023-11-14", "2024-01-03")
    splits = found["splits"]
    assert {name: part["rows"] for name, part in splits.items()} == {
        "knowledge": 600,
        "train": 300,
        "valid": 60,
        "test": 240,
    }
    assert splits["test"]["users"] == 28
    prompts = found["prompts"]
    assert prompts["counted_by"] == "the model's tokenizer"
    assert prompts["longest"]["user"] > prompts["longest"]["item"] > 50
    assert "Book: Book 0" in prompts["examples"]["item"]
    assert json.loads(json.dumps(found)) == found


def test_it_is_printed_and_nothing_is_written(tree, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    code = validate_catalog.run(RunConfig.model_validate(tree), None)
    said = capsys.readouterr().out
    assert code == 0
    assert sorted(tmp_path.rglob("*")) == before
    for words in (
        "users                30 rows, 2 without interactions",
        "job: 50.0% missing",
        "1,200 rows, 40% likes, ratings 1 to 5, 2023-11-14 to 2024-01-03",
        "0.0% of the test rows are of users without a past",
        "  | Describe a book for a recommender.",
        "run r can start; 0 warnings",
    ):
        assert words in said


def test_everything_wrong_is_said_at_once(tree, tmp_path):
    add_rows(tmp_path, "ratings.csv", "ghost,b1,3,1700000001", "r1,b1,good,1700000001")
    add_rows(tmp_path, "books.csv", "b3,Again,Crime")
    found = facts(
        tree,
        language_model={"path": str(tmp_path / "nowhere")},
        encoder={"max_tokens": 100_000},
        groups={"user_attributes": ["jobs"]},
        refresh={"previous": "monday"},
    )
    said = "\n".join(found["problems"])
    for words in (
        "refresh.previous (in `make refresh`: PREVIOUS) is monday",
        "language_model.path",
        "encoder.max_tokens is 100000",
        "name a user that the users table lacks",
        "without a rating that is a finite number",
        "repeat the item_id of an earlier row",
        "groups.user_attributes: no user has jobs; the catalog has job",
    ):
        assert words in said
    assert found["exit_code"] == 3
    assert found["prompts"]["counted_by"] == "an estimate"
    assert found["tables"]["interactions"]["rows"] == 1200  # the good ones


def test_rows_that_are_left_out_are_a_warning(tree, tmp_path):
    add_rows(tmp_path, "ratings.csv", "ghost,b1,3,1700000001")
    found = facts(tree, catalog={"unusable_rows": "drop"})
    assert found["problems"] == []
    assert "left out: interactions: 1 of 1,201 rows name a user" in found["warnings"][0]


def test_of_rows_that_are_repeated_the_first_is_said_to_stay(tree, tmp_path):
    add_rows(tmp_path, "books.csv", "b1,Again,Crime")
    warnings = facts(tree, catalog={"unusable_rows": "drop"})["warnings"]
    assert (
        "items: 1 of 21 rows repeat the item_id of an earlier row, which is kept (row 21: "
        in warnings[0]
    )


def test_more_than_may_be_left_out_is_an_error_and_no_warning(tree, tmp_path):
    add_rows(tmp_path, "ratings.csv", *(f"ghost{n},b1,3,{START + n}" for n in range(400)))
    found = facts(tree, catalog={"unusable_rows": "drop"})
    [problem] = found["problems"]
    assert "interactions: 400 of 1,600 rows: 400 name users that their table lacks" in problem
    assert "catalog.max_unusable_share" in problem
    assert (found["exit_code"], found["warnings"]) == (3, [])
    tree["catalog"]["max_unusable_share"] = 0.3
    assert "left out: interactions: 400 of 1,600 rows name a user" in facts(tree)["warnings"][0]


def test_a_unit_that_fits_no_row_leaves_nothing_out(tree):
    found = facts(tree, catalog={"unusable_rows": "drop", "timestamp_unit": "ms"})
    [problem] = found["problems"]
    assert "set catalog.timestamp_unit: s, which fits all rows" in problem
    assert found["warnings"] == []


def test_tables_that_are_missing_are_all_named_once(tree, tmp_path):
    for name in ("readers.csv", "books.csv"):
        (tmp_path / name).unlink()
    found = facts(tree)
    said = "\n".join(found["problems"])
    assert "readers.csv does not exist" in said
    assert "books.csv does not exist" in said
    assert "tables" not in found
    assert list(validate_catalog.lines(found))[-1].endswith("0 warnings")


def test_a_threshold_that_no_rating_reaches_is_a_problem(tree):
    assert "no rating reaches" in facts(tree, catalog={"positive_rating": 9.0})["problems"][0]


def test_a_split_with_an_empty_part_is_a_problem(tree):
    found = facts(tree, catalog={"split": {"knowledge_share": 1.0}})
    assert "leaves a part empty" in found["problems"][0]
    assert found["exit_code"] == 3


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"catalog": {"positive_rating": 1.0}}, "raise catalog.positive_rating"),
        ({"prompts": {"max_tokens": 60}}, "set prompts.max_tokens: "),
        ({"catalog": {"split": {"knowledge_share": 0.9}}}, "the test part has 12 rows"),
        ({"groups": {"min_interactions": 1000, "user_attributes": []}}, "30 of 30 users have few"),
        ({"catalog": {"split": {"cold_items": 0.1}}}, "cold_items is not for the CTR check"),
    ],
)
def test_what_will_disappoint_is_a_warning_with_a_remedy(tree, sections, words):
    found = facts(tree, **sections)
    assert found["problems"] == []
    assert [warning for warning in found["warnings"] if words in warning]


def test_untitled_items_and_items_without_attributes_are_a_warning(tree, tmp_path):
    add_rows(tmp_path, "books.csv", "b77,,")
    tree["catalog"]["tables"]["items"]["attributes"] = []
    tree["groups"] = {}
    said = "\n".join(facts(tree)["warnings"])
    assert "1 of 21 items have no title" in said
    assert "prompts show titles only" in said


def test_interactions_without_ratings_are_a_warning(tree):
    tree["catalog"]["tables"]["interactions"]["columns"].pop("rating")
    found = facts(tree, catalog={"positive_rating": None})
    assert found["problems"] == []
    assert "it is left out, texts and features are made" in found["warnings"][0]


def test_users_who_come_late_are_a_warning(tree, tmp_path):
    rows = (tmp_path / "ratings.csv").read_text().splitlines()
    late = [row.replace("r", "late", 1) if n > 960 else row for n, row in enumerate(rows)]
    (tmp_path / "ratings.csv").write_text("\n".join(late))
    add_rows(tmp_path, "readers.csv", *(f"late{n},nurse" for n in range(28)))
    warnings = facts(tree)["warnings"]
    assert any("100% of the test rows are of users without a past" in one for one in warnings)


def test_the_command_needs_no_run_and_has_exit_codes(tree, tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(tree))  # YAML too
    assert validate_catalog.main(["--config", str(path)]) == 0
    assert not (tmp_path / "artifacts").exists()
    changed = ["--set", "encoder.max_tokens=100000"]
    assert validate_catalog.main(["--config", str(path), *changed]) == 3
    assert "error: encoder.max_tokens is 100000" in capsys.readouterr().out


def test_titles_that_the_model_cannot_read_are_a_warning_here_and_in_the_log(
    tree, tmp_path, caplog
):
    books = [f"b{n},雾港档案{n}号,Crime" for n in range(20)]
    (tmp_path / "books.csv").write_text("\n".join(["isbn,name,genre", *books]), encoding="utf-8")
    [said] = [one for one in facts(tree)["warnings"] if "titles" in one]
    assert "tokens a letter" in said
    build_catalog.run(RunConfig.model_validate(tree), Store(tmp_path / "r"))
    assert said in caplog.text


def test_without_ratings_none_are_shown(tree):
    tree["catalog"]["tables"]["interactions"]["columns"].pop("rating")
    found = facts(tree, catalog={"positive_rating": None})
    assert found["tables"]["interactions"]["ratings"] is None
    assert "100% likes, no ratings, 2023-11-14 to" in "\n".join(validate_catalog.lines(found))
    assert ", liked\n" in found["prompts"]["examples"]["user"]
    assert " star" not in found["prompts"]["examples"]["user"]


def test_rows_of_another_width_are_told_by_their_lines(tree, tmp_path):
    add_rows(tmp_path, "books.csv", "b3,a,b,c")
    [problem] = facts(tree)["problems"]
    assert "items: 1 of 21 rows have more or fewer cells than the header, in line 22 (" in problem
    found = facts(tree, catalog={"unusable_rows": "drop"})
    assert found["problems"] == []
    assert f"{tmp_path}/books.csv: the header has 3 cells, line 22 has 4" in found["warnings"][0]


def test_rows_are_counted_with_those_of_another_width(tree, tmp_path):
    add_rows(tmp_path, "books.csv", "b3,a,b,c", "b4,Again,Crime")
    [odd, again] = facts(tree, catalog={"unusable_rows": "drop"})["warnings"][:2]
    assert "items: 1 of 22 rows have more or fewer cells" in odd
    assert "items: 1 of 22 rows repeat the item_id of an earlier row" in again
    assert "(row 21 of those that can be read: item_id 'b4'" in again


def encoded(path):
    path.write_bytes(path.read_text().replace("Book", "红楼梦").encode("gb18030"))
    return path


def spreadsheet(path):
    path.with_suffix(".xlsx").write_bytes(b"PK\x03\x04" + bytes(100))
    return path.with_suffix(".xlsx")


def misnamed(path):
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    return path


@pytest.mark.parametrize("make", [encoded, spreadsheet, misnamed])
def test_what_cannot_be_read_is_told_in_the_words_of_init(tree, tmp_path, make):
    path = make(tmp_path / "books.csv")
    with pytest.raises(DataError) as caught:
        read_head(path, 1000)
    tree["catalog"]["tables"]["items"]["path"] = str(path)
    [problem] = facts(tree)["problems"]
    assert problem == f"items: {caught.value}"


def test_text_by_another_name_is_told_what_it_lacks(tree, tmp_path):
    path = (tmp_path / "books.csv").rename(tmp_path / "books.txt")
    tree["catalog"]["tables"]["items"]["path"] = str(path)
    [problem] = facts(tree)["problems"]
    assert (
        'is text, not Parquet; say what stands between its columns, as `separator: ","`' in problem
    )


def test_what_was_not_looked_at_is_said(tree, tmp_path):
    assert facts(tree)["not_looked_at"] == []
    (tmp_path / "readers.csv").unlink()
    found = facts(tree, language_model={"path": str(tmp_path / "nowhere")})
    assert len(found["problems"]) == 2
    assert list(validate_catalog.lines(found))[-1] == (
        "2 to be mended, then what the models are like and the rows of the tables and splits, "
        "groups and prompts can be looked at; 0 warnings"
    )


def broken_facts(tree, tmp_path, *overrides):
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(tree))
    return broken_config_facts(path, overrides)


def test_a_wrong_setting_hides_neither_tables_nor_models(tree, tmp_path):
    tree["groups"]["min_interaction"] = 3
    tree["encoder"]["path"] = str(tmp_path / "nowhere")
    add_rows(tmp_path, "ratings.csv", "ghost,b1,3,1700000001")
    (tmp_path / "books.csv").write_text("isbn,genre\nb1,Crime\n")
    found = broken_facts(tree, tmp_path)
    first, *others = found["problems"]
    assert "groups.min_interaction: unknown key; the nearest valid key is groups.min_inte" in first
    said = "\n".join(others)
    assert "'name' is missing" in said
    assert "nowhere" in said
    assert found["exit_code"] == 2
    assert found["not_looked_at"] == ["the rows of the tables", "splits, groups and prompts"]


def test_a_wrong_setting_of_the_catalog_leaves_its_rows_unseen(tree, tmp_path):
    tree["catalog"]["positve_rating"] = 3
    (tmp_path / "books.csv").unlink()
    (tmp_path / "readers.csv").unlink()
    found = broken_facts(tree, tmp_path)
    said = "\n".join(found["problems"])
    assert "books.csv does not exist" in said
    assert "readers.csv does not exist" in said
    assert found["not_looked_at"] == ["the rows of the tables", "splits, groups and prompts"]
    tree["catalog"]["tables"]["items"]["paht"] = "x"
    found = broken_facts(tree, tmp_path)
    assert "does not exist" not in "\n".join(found["problems"])
    assert found["not_looked_at"][0] == "the tables"


def test_a_config_of_which_nothing_is_left_says_so(tree, tmp_path):
    assert broken_facts(tree, tmp_path) == {}
    del tree["catalog"]
    assert broken_facts(tree, tmp_path)["not_looked_at"] == ["tables and models"]
    found = broken_facts(tree, tmp_path, "engine.batch_rows=many")
    assert "engine.batch_rows" in found["problems"][0]


def test_the_command_tells_more_than_the_config(tree, tmp_path, capsys):
    path = tmp_path / "c.yaml"
    tree["encoder"]["path"] = str(tmp_path / "nowhere")
    path.write_text(json.dumps(tree))
    assert validate_catalog.main(["--config", str(path), "--set", "groups.x=1"]) == 2
    said = capsys.readouterr().out
    assert "groups.x: unknown key" in said
    assert "nowhere" in said


def test_what_is_left_out_is_said_once(tree, tmp_path, caplog):
    add_rows(tmp_path, "ratings.csv", "ghost,b1,3,1700000001")
    facts(tree, catalog={"unusable_rows": "drop"})
    assert "left out" not in caplog.text


def test_a_check_that_is_left_out_is_not_said_to_tell_little(tree, tmp_path):
    few = (tmp_path / "ratings.csv").read_text().splitlines()[:400]
    (tmp_path / "ratings.csv").write_text("\n".join(few))
    assert any("hardly tell anything" in one for one in facts(tree)["warnings"])
    tree["catalog"]["tables"]["interactions"]["columns"].pop("rating")
    said = "\n".join(facts(tree, catalog={"positive_rating": None})["warnings"])
    assert "it is left out" in said
    assert "hardly tell anything" not in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("item_id\nb17\n", None),
        ("isbn\nb17\n", "rename the column that has the ids"),
        (None, "withdrawn.csv does not exist; correct the path"),
    ],
)
def test_the_table_of_withdrawn_items_is_looked_at(tree, tmp_path, text, words):
    if text:
        (tmp_path / "withdrawn.csv").write_text(text)
    found = facts(tree, recommendation={"withdrawn": str(tmp_path / "withdrawn.csv")})
    assert [words in one for one in found["problems"]] == ([True] if words else [])
    assert found["exit_code"] == (3 if words else 0)


def test_a_list_of_withdrawn_items_is_told_to_be_a_table():
    with pytest.raises(ValueError, match="is the path of a table with a column item_id"):
        RecommendationSettings(withdrawn=["b17"])
