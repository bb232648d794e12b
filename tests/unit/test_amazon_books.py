"""Amazon-Books of three years, on files of our own: JSON, Python literals, and what is wrong."""

import gzip
import json
import time

import pytest

from jobs import build_catalog
from pipeline.book_texts import author_of, genre_of, title_of
from pipeline.catalog import load_catalog
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.readers import raw_files, read_raw
from pipeline.store import Store

START = 1_500_000_000
SCRIPT = "var aPage = (new Date()).getTime(); function ue(a){ return a; }"


def review(user, book, stars, second, **more):
    return {
        "overall": stars,
        "reviewerID": user,
        "asin": book,
        "reviewText": 'Long, "quoted" {text}\n',
        "unixReviewTime": START + second,
        **more,
    }


REVIEWS = [
    review("A1", "0001", 5.0, 0),
    review("A1", "B2", 3.0, 1, vote="7"),
    review("A2", "0001", 4, 2),
    review("A2", "B3", 1.0, 3),
]
BOOKS = [
    {
        "asin": "0001",
        "title": "Salt &amp; Ash: A Träum\n",
        "brand": "Visit Amazon's Ann Example Page",
        "category": ["Books", "Literature &amp; Fiction", "Poetry"],
        "rank": ["1", "2"],
    },
    {"asin": "B2", "title": SCRIPT, "brand": "", "category": [], "price": "$1"},
    {"asin": "unrated", "title": "Nobody's", "category": ["Books", "Cooking"]},
]


def lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def literals(records):
    return "".join(f"{record!r}\n" for record in records)


@pytest.fixture
def folder(tmp_path):
    """Write files, packed where the name says so; give settings that read them."""

    def write(files):
        for name, text in files.items():
            content = text if isinstance(text, bytes) else text.encode()
            packed = gzip.compress(content) if name.endswith(".gz") else content
            (tmp_path / name).write_bytes(packed)
        return CatalogSettings(source="amazon_books", path=tmp_path)

    return write


def facts_of(items):
    """Title and attributes by id."""
    rows = items.to_pylist()
    return {row["item_id"]: (row["title"], dict(row["attributes"])) for row in rows}


@pytest.mark.parametrize("reviews", ["Books_5.json.gz", "Books.json.gz", "Books_5.json"])
def test_2018_is_read_and_its_texts_are_tidied(folder, reviews, caplog):
    settings = folder({reviews: lines(REVIEWS), "meta_Books.json.gz": lines(BOOKS)})
    raw = read_raw(settings)
    assert raw.interactions.to_pylist()[1] == {
        "user_id": "A1",
        "item_id": "B2",
        "rating": 3.0,
        "timestamp": START + 1,
    }
    assert raw.users["user_id"].to_pylist() == ["A1", "A2"]
    attributes = {"author": "Ann Example", "genre": "Literature & Fiction"}
    assert facts_of(raw.items) == {
        "0001": ("Salt & Ash: A Träum", attributes),
        "B2": (None, {}),
        "B3": (None, {}),
    }
    assert "1 titles are scripts of a page" in caplog.text
    assert "1 of 3 rated books are not in it" in caplog.text
    assert [file.name for file in raw_files(settings)] == ["meta_Books.json.gz", reviews]


def test_2014_meta_data_are_python_literals(folder):
    books = [
        {"asin": "0001", "title": 'It\'s "Salt"', "categories": [["Books", "Poetry"], ["Books"]]},
        {"asin": "B2", "categories": [["Books"]], "salesRank": {"Books": 1}, "brand": None},
        {"asin": "B3", "title": "Ünder", "brand": "Bo", "related": {"also_bought": ["0001"]}},
    ]
    files = {"reviews_Books_5.json.gz": lines(REVIEWS), "meta_Books.json.gz": literals(books)}
    raw = read_raw(folder(files))
    assert raw.interactions["rating"].to_pylist() == [5.0, 3.0, 4.0, 1.0]
    assert facts_of(raw.items) == {
        "0001": ('It\'s "Salt"', {"genre": "Poetry"}),
        "B2": (None, {}),
        "B3": ("Ünder", {"author": "Bo"}),
    }


def test_2023_has_other_names_and_milliseconds(folder):
    reviews = [
        {
            "rating": 4.0,
            "title": "of the review",
            "asin": "child",
            "parent_asin": "P1",
            "user_id": "AE",
            "timestamp": START * 1000 + 999,
        }
    ]
    books = [
        {
            "parent_asin": "P1",
            "title": "Ash",
            "author": {"avatar": "https://", "name": "Ann", "about": ["x"]},
            "categories": ["Books", "History"],
        }
    ]
    raw = read_raw(folder({"Books.jsonl.gz": lines(reviews), "meta_Books.jsonl.gz": lines(books)}))
    assert raw.interactions.to_pylist() == [
        {"user_id": "AE", "item_id": "P1", "rating": 4.0, "timestamp": START}
    ]
    assert facts_of(raw.items) == {"P1": ("Ash", {"author": "Ann", "genre": "History"})}


@pytest.mark.parametrize(
    ("name", "factor", "unit", "right"),
    [
        ("Books.jsonl", 1, "s", "ms"),
        ("Books.jsonl", 10**6, "us", "ms"),
        ("Books.jsonl", 10**9, "ns", "ms"),
        ("Books.json", 1_000, "ms", "s"),
        ("reviews_Books_5.json", 10**6, "us", "s"),
    ],
)
def test_times_of_another_unit_are_refused_by_the_file(folder, name, factor, unit, right):
    good = {"s": 1, "ms": 1_000}[right]
    times = [START * good, START * factor + 1, START * factor + 2, 5]
    old = [{**one, "unixReviewTime": at} for one, at in zip(REVIEWS, times, strict=True)]
    new = [{"rating": 1, "parent_asin": "P", "user_id": "U", "timestamp": at} for at in times]
    reviews = lines(new if right == "ms" else old)
    meta = name.replace("reviews_", "").replace("_5", "")
    settings = folder({name: reviews, f"meta_{meta}": lines(BOOKS)})
    with pytest.raises(DataError) as caught:
        load_catalog(settings)
    message = str(caught.value)
    assert f"{name} has 2 of 4 timestamps in {unit} ({times[1]} = 2" in message
    assert " UTC, ...), but is publ" in message
    assert f"published with {right}; get the file anew: download" in message
    assert "timestamp_unit" not in message


def test_a_time_of_no_unit_is_a_bad_row(folder):
    reviews = [*REVIEWS, review("A3", "B2", 4.0, 10_000_000_000)]
    settings = folder({"Books.json": lines(reviews), "meta_Books.json": lines(BOOKS)})
    with pytest.raises(DataError, match="1 of 5 rows have a timestamp outside 1990 to tomorrow"):
        load_catalog(settings)


def test_repeated_reviews_and_books_are_left_out_with_their_number(folder, caplog):
    reviews = [*REVIEWS, review("A1", "0001", 2.0, 0), review("A1", "0001", 2.0, 9)]
    books = [*BOOKS, {"asin": "0001", "title": "Another"}]
    raw = read_raw(folder({"Books.json": lines(reviews), "meta_Books.json": lines(books)}))
    assert raw.interactions["rating"].to_pylist() == [5.0, 3.0, 4.0, 1.0, 2.0]
    assert "1 of 6 reviews repeat another, left out" in caplog.text
    assert "1 of 3 rated books repeat another" in caplog.text
    assert facts_of(raw.items)["0001"][0] == "Salt & Ash: A Träum"
    assert raw.items.num_rows == 3


def test_lines_that_are_no_records_are_counted_together(folder, monkeypatch):
    monkeypatch.setattr("pipeline.json_rows._BATCH_BYTES", 150)
    text = lines(REVIEWS[:3]) + '{"asin": \n\n[1]\n__import__("os").getcwd()\n' + lines(REVIEWS[3:])
    with pytest.raises(DataError) as caught:
        read_raw(folder({"Books.json": text, "meta_Books.json": lines(BOOKS)}))
    assert "Books.json: lines that are not records in braces: 3 (line 4: " in str(caught.value)
    assert "line 6: '[1]'; line 7: " in str(caught.value)
    assert "nijianmo" in str(caught.value)


def test_a_bad_value_is_one_bad_row(folder):
    reviews = [
        *REVIEWS,
        review("A3", "B2", "five", 4),
        review(None, "B2", 4.0, 5),
        review(None, "B2", 4.0, 5),
    ]
    settings = folder({"Books.json": lines(reviews), "meta_Books.json": lines(BOOKS)})
    ratings = read_raw(settings).interactions["rating"].to_pylist()
    assert ratings == [5.0, 3.0, 4.0, 1.0, None, 4.0, 4.0]
    with pytest.raises(DataError) as caught:
        load_catalog(settings)
    assert "1 of 7 rows without a rating that is a finite number (row 5:" in str(caught.value)
    assert "2 of 7 rows without user_id (rows 6, 7:" in str(caught.value)


BROKEN = {"byte": "T\udce9", "surrogate": "T \ud83d"}


def spelt(records, form):
    """One record a line, as JSON or as Python, with broken text as it is found in files."""
    if form == "Python":
        text = "".join(f"{record!r}\n" for record in records)  # surrogates as escapes
        return text.replace("\\udce9", "\udce9").encode("utf-8", "surrogateescape")
    text = lines(records).replace("\ud83d", "\\ud83d")
    return text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("form", ["JSON", "JSON with a line of Python", "Python"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_text_is_mended_and_its_book_kept(folder, caplog, broken, form):
    text = BROKEN[broken]
    books = [
        {"asin": "0001", "title": text, "brand": text, "category": ["Books", text]},
        {"asin": "B2", "title": "Whole", "description": [text]},
        {"asin": text, "title": text, "brand": text, "category": [text, text]},  # nobody rated it
    ]
    meta = spelt(books, form)
    if form == "JSON with a line of Python":
        meta += b"{'asin': 'B3', 'title': None}\n"
    settings = folder({"Books.json": lines(REVIEWS), "meta_Books.json": meta})
    mended = text[:-1] + "\ufffd"
    facts = facts_of(read_raw(settings).items)
    assert facts["0001"] == (mended, {"author": mended, "genre": mended})
    assert facts["B2"] == ("Whole", {})
    assert len(facts) == 3
    assert "column title: 1 of 3 values are not UTF-8, the first in data row 1" in caplog.text


def test_broken_names_of_authors_of_2023_are_mended(folder):
    reviews = [{"rating": 4.0, "parent_asin": "P", "user_id": "U", "timestamp": START * 1000}]
    books = [{"parent_asin": "P", "author": {"name": text}} for text in BROKEN.values()]
    for book in books:
        files = {"Books.jsonl": lines(reviews), "meta_Books.jsonl": spelt([book], "JSON")}
        (attributes,) = (
            dict(row) for row in read_raw(folder(files)).items["attributes"].to_pylist()
        )
        assert attributes == {"author": book["author"]["name"][:-1] + "\ufffd"}


@pytest.mark.parametrize("form", ["JSON", "Python"])
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("field", ["asin", "reviewerID"])
def test_broken_ids_are_refused_and_all_are_counted(folder, monkeypatch, broken, field, form):
    monkeypatch.setattr("pipeline.json_rows._BATCH_BYTES", 150)
    reviews = [*REVIEWS, *(review("A4", "B2", 4.0, n) | {field: BROKEN[broken]} for n in (5, 6))]
    settings = folder({"Books.json": spelt(reviews, form), "meta_Books.json": lines(BOOKS)})
    message = rf"column {field} \(our .*: 2 ids are not UTF-8, the first in data row 5"
    with pytest.raises(DataError, match=message):
        read_raw(settings)


def test_books_in_another_encoding_are_refused(folder):
    books = [{"asin": book, "title": "Ärger"} for book in ("0001", "B2", "B3")]
    meta = lines(books).encode("latin-1")
    with pytest.raises(
        DataError, match=r"title: 3 of 3 values are not UTF-8, .* store its text as"
    ):
        read_raw(folder({"Books.json": lines(REVIEWS), "meta_Books.json": meta}))


def test_batches_make_one_table_and_a_last_line_needs_no_end(folder, monkeypatch):
    text = lines(review(f"A{n}", "0001", 4.0, n) for n in range(200)).rstrip("\n")
    monkeypatch.setattr("pipeline.json_rows._BATCH_BYTES", 50)
    raw = read_raw(folder({"Books.json.gz": text, "meta_Books.json.gz": lines(BOOKS)}))
    assert raw.users["user_id"].to_pylist() == [f"A{n}" for n in range(200)]
    assert raw.items.num_rows == 1


@pytest.mark.parametrize("name", ["Books.json.gz", "meta_Books.json.gz"])
@pytest.mark.parametrize("batch", [100, 10**6])
def test_a_cut_archive_is_refused_wherever_it_was_cut(folder, tmp_path, monkeypatch, name, batch):
    monkeypatch.setattr("pipeline.json_rows._BATCH_BYTES", batch)
    settings = folder({"Books.json.gz": lines(REVIEWS), "meta_Books.json.gz": lines(BOOKS)})
    whole = (tmp_path / name).read_bytes()
    for length in range(1, len(whole), 17):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(DataError, match=rf"{name} is damaged .* get the file anew: download"):
            read_raw(settings)


def test_a_file_cut_in_a_line_is_refused(folder):
    text = lines(REVIEWS)
    files = {"Books.json": text[:-30], "meta_Books.json": lines(BOOKS)}
    with pytest.raises(DataError, match=r"not records in braces: 1 \(line 4: .* anew: download"):
        read_raw(folder(files))


@pytest.mark.parametrize("name", ["Books.json", "Books.json.gz", "meta_Books.json"])
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_rows_is_refused(folder, tmp_path, name, content):
    settings = folder({"Books.json": lines(REVIEWS), "meta_Books.json": lines(BOOKS)})
    if name == "Books.json.gz":
        (tmp_path / "Books.json").unlink()
    (tmp_path / name).write_bytes(content.encode() if name.endswith("json") else b"")
    with pytest.raises(DataError, match=rf"{name} holds no rows; get the file anew: download"):
        read_raw(settings)


@pytest.mark.parametrize("start", ["", lines(REVIEWS)], ids=["from the start", "later"])
@pytest.mark.parametrize("end", ["", "\n", "\n" + lines(REVIEWS)], ids=["cut", "end", "more"])
def test_a_line_without_end_is_refused_before_it_fills_the_memory(folder, monkeypatch, start, end):
    monkeypatch.setattr("pipeline.json_rows._BATCH_BYTES", 100)
    monkeypatch.setattr("pipeline.json_rows._LONGEST_LINE", 1_000)
    files = {"meta_Books.json": lines(BOOKS)}
    with pytest.raises(
        DataError, match=r"Books\.json has a line of more than 1,000 bytes; get the file anew: down"
    ):
        read_raw(folder(files | {"Books.json": start + " " * 1_001 + end}))
    text = lines([review("A3", "B2", 4.0, 9, text="x" * 800)])
    assert read_raw(folder(files | {"Books.json": start + text + end})).interactions.num_rows >= 1


def test_a_folder_says_what_it_lacks_and_where_to_get_it(folder, tmp_path):
    with pytest.raises(DataError) as caught:
        raw_files(folder({}))
    assert f"catalog.path: {tmp_path} holds no data set that is known" in str(caught.value)
    assert "2018, 5-core: meta_Books.json.gz, Books_5.json.gz; download" in str(caught.value)
    with pytest.raises(DataError, match=r"meta_Books\.json\.gz does not exist, which belongs to A"):
        raw_files(folder({"Books.json.gz": ""}))
    with pytest.raises(DataError, match=r"holds Books_5\.json and Books\.json\.gz; leave one"):
        raw_files(folder({"Books_5.json": ""}))


def test_texts_of_a_page_are_no_titles():
    assert title_of("  Tom &amp;amp; <span class='a'>Eve</span>\n II ") == "Tom & Eve II"
    assert title_of("<b> </b>") is None
    assert title_of("x" * 501) is None
    assert title_of(None) is None
    assert title_of(".a { color: red; }") is None
    for title in ("A Document. And Windows", "I <3 You", "Function and Form (new)", "Var & Co = 2"):
        assert title_of(title) == title
    assert title_of("<script>x</script>") is None
    assert author_of("Visit Amazon's Dr. Who Page") == "Dr. Who"
    assert author_of("Bo Page") == "Bo Page"
    assert genre_of(["Books"]) is None
    assert genre_of([["Books", "Art &amp; Craft"], ["Books", "Other"]]) == "Art & Craft"
    assert genre_of(None) is None


CUT = ["{a:b;", "{a" + "a:b;" * 99, "{", "<a ", "function ", "var a", "window.a", " " * 99 + "y"]


@pytest.mark.parametrize("bound", [10**6, None], ids=["rules", "length"])
@pytest.mark.parametrize("unit", CUT)
def test_a_cut_page_takes_no_time(monkeypatch, unit, bound):
    if bound:  # without it, what is below has to be quick by itself
        monkeypatch.setattr("pipeline.book_texts._LONGEST_RAW", bound)
    for start in ("", "{a:", "function a", "var a"):
        began = time.monotonic()
        assert title_of(start + unit * (100_000 // len(unit)) + "x") is None
        assert time.monotonic() - began < 1


def test_an_entity_of_many_digits_is_no_title():
    assert title_of("&#" + "9" * 4_000) is None


def test_a_rule_of_a_style_sheet_has_a_colon_before_a_semicolon():
    for text in ("x {a:b;c}", "{a:b:c;d;}", "{;a:b;}", "{{a:b;}", "{:;}"):
        assert title_of(text) is None
    for text in ("{a;b:c}", "{a:b}", "{a:b;c", "{a:}b;", "a:b;}"):
        assert title_of(text) == text


def test_a_published_folder_becomes_a_catalog(folder, tmp_path):
    names = ["0001", "B2", "B3"]
    reviews = [review(f"A{n // 3}", names[n % 3], float(1 + n % 5), n) for n in range(24)]
    settings = folder({"Books_5.json.gz": lines(reviews), "meta_Books.json.gz": lines(BOOKS)})
    config = RunConfig.model_validate(
        {
            "run": "test",
            "catalog": settings,
            "language_model": {"path": "none"},
            "encoder": {"path": "none"},
        }
    )
    store = Store(tmp_path / "run")
    build_catalog.run(config, store)
    assert store.read("items")["title"].to_pylist() == ["Salt & Ash: A Träum", "", ""]
    assert store.require("users").num_rows == 8
    assert store.require("interactions").facts["splits"]["knowledge"] == 12
