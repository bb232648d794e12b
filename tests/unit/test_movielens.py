"""MovieLens in its three layouts, on files of our own."""

import gzip
import re

import pytest

from jobs import build_catalog
from pipeline.catalog import load_catalog
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.readers import raw_files, read_raw
from pipeline.store import Store

START = 1_600_000_000

MOVIES_DAT = """\
1::Tin Boat, The (1991)::Adventure|Children's
2::Ärger: Teil 2: Über Öl (Über Öl, Der) (1975)::Sci-Fi
30::Night::Fall (2001)::Film-Noir|Drama
"""
RATINGS_DAT = f"""\
7::1::3.5::{START}
7::2::5::{START + 1}
12::30::0.5::{START + 2}
"""
MOVIES_CSV = '''\
movieId,title,genres
1,"Tin Boat, The (1991)",Adventure|Children
2,Glass: Part 2 (1975) ,(no genres listed)
30,"""Quoted"" Tale, A (Märchen, Das) (2001)",Drama
31,No Year At All,Comedy
32,Harbour Stories (2006\u20132007),Drama
'''
RATINGS_CSV = f"""\
userId,movieId,rating,timestamp
7,1,3.5,{START}
7,2,5.0,{START + 1}
12,30,0.5,{START + 2}
"""


@pytest.fixture
def folder(tmp_path):
    """Write files, as text or as bytes; give settings that read them."""

    def write(**files):
        for name, text in files.items():
            content = text if isinstance(text, bytes) else text.encode()
            (tmp_path / name.replace("_", ".")).write_bytes(content)
        return CatalogSettings(source="movielens", path=tmp_path)

    return write


def attributes_of(table):
    return [dict(row) for row in table["attributes"].to_pylist()]


def test_100k_texts_are_tidied(tmp_path):
    files = {
        "user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
        "007\t24\tM\twriter\t1\n",
        "item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        "1\tBoot, Das\t1981\tAction War\n"
        '2\tBlue "Angel", The (Blaue Engel, Der)\tV\tunknown\n'
        "3\tEnfer, L'\t\tDrama\n"
        "4\tLand, Sea (1995)\tV\tComedy\n"
        "5\tParis, Texas\t1984\tDrama\n",
        "inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        "007\t1\t3.5\t1600000000.0\n",
    }
    for end, text in files.items():
        (tmp_path / f"ml-100k.{end}").write_text(text, encoding="utf-8")
    raw = read_raw(CatalogSettings(source="movielens", path=tmp_path))
    assert raw.users["user_id"].to_pylist() == ["007"]
    assert attributes_of(raw.users) == [{"age": "24", "gender": "M", "occupation": "writer"}]
    assert raw.items["title"].to_pylist() == [
        "Das Boot",
        'The Blue "Angel" (Der Blaue Engel)',
        "L'Enfer",
        "Land, Sea",
        "Paris, Texas",
    ]
    assert attributes_of(raw.items) == [
        {"year": "1981", "genres": "Action, War", "genre": "Action"},
        {},
        {"genres": "Drama", "genre": "Drama"},
        {"year": "1995", "genres": "Comedy", "genre": "Comedy"},
        {"year": "1984", "genres": "Drama", "genre": "Drama"},
    ]
    assert raw.interactions.to_pylist() == [
        {"user_id": "007", "item_id": "1", "rating": 3.5, "timestamp": 1_600_000_000}
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", r"cannot be read as a text table \("),
        ("user_id:token\n", "has one column only, 'user_id:token': begin"),
    ],
)
def test_100k_damaged_says_where_to_get_it(folder, tmp_path, text, what):
    for end in ("user", "item", "inter"):
        (tmp_path / f"ml-100k.{end}").write_text(text)
    with pytest.raises(DataError) as caught:
        read_raw(folder())
    message = str(caught.value)
    assert re.search(rf"items: .*ml-100k\.item {what}", message)
    assert message.count("get the file anew: run `make assets`") >= 3


def test_100k_is_known_by_its_ratings(folder, tmp_path):
    (tmp_path / "ml-100k.inter").write_text("user_id:token\n")
    with pytest.raises(DataError, match=r"ml-100k\.user does not exist.*100K; run `make assets`"):
        read_raw(folder())


@pytest.mark.parametrize("break_line", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_10m_titles_hold_colons_and_ratings_halves(folder, break_line):
    settings = folder(
        movies_dat=MOVIES_DAT.replace("\n", break_line),
        ratings_dat=RATINGS_DAT.replace("\n", break_line),
    )
    raw = read_raw(settings)
    assert raw.items["item_id"].to_pylist() == ["1", "2", "30"]
    assert raw.items["title"].to_pylist() == [
        "The Tin Boat",
        "Ärger: Teil 2: Über Öl (Der Über Öl)",
        "Night::Fall",
    ]
    assert attributes_of(raw.items) == [
        {"year": "1991", "genres": "Adventure, Children's", "genre": "Adventure"},
        {"year": "1975", "genres": "Sci-Fi", "genre": "Sci-Fi"},
        {"year": "2001", "genres": "Film-Noir, Drama", "genre": "Film-Noir"},
    ]
    assert raw.interactions.to_pylist()[0] == {
        "user_id": "7",
        "item_id": "1",
        "rating": 3.5,
        "timestamp": START,
    }
    assert raw.interactions["rating"].to_pylist() == [3.5, 5.0, 0.5]
    assert raw.users["user_id"].to_pylist() == ["7", "12"]
    assert attributes_of(raw.users) == [{}, {}]
    assert [file.name for file in raw_files(settings)] == ["movies.dat", "ratings.dat"]


@pytest.mark.parametrize("break_line", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_25m_titles_are_quoted_and_may_lack_year_or_genres(folder, break_line):
    raw = read_raw(
        folder(
            movies_csv=MOVIES_CSV.replace("\n", break_line),
            ratings_csv=RATINGS_CSV.replace("\n", break_line),
        )
    )
    assert raw.items["title"].to_pylist() == [
        "The Tin Boat",
        "Glass: Part 2",
        'A "Quoted" Tale (Das Märchen)',
        "No Year At All",
        "Harbour Stories",
    ]
    assert attributes_of(raw.items) == [
        {"year": "1991", "genres": "Adventure, Children", "genre": "Adventure"},
        {"year": "1975"},
        {"year": "2001", "genres": "Drama", "genre": "Drama"},
        {"genres": "Comedy", "genre": "Comedy"},
        {"year": "2006", "genres": "Drama", "genre": "Drama"},
    ]
    assert raw.interactions["item_id"].to_pylist() == ["1", "2", "30"]
    assert raw.interactions["rating"].to_pylist() == [3.5, 5.0, 0.5]
    assert raw.interactions["timestamp"].to_pylist() == [START, START + 1, START + 2]
    assert raw.users["user_id"].to_pylist() == ["7", "12"]


def test_packed_files_read_the_same(folder):
    plain = read_raw(folder(movies_csv=MOVIES_CSV, ratings_csv=RATINGS_CSV))
    settings = folder(ratings_csv_gz=gzip.compress(RATINGS_CSV.encode()))
    (settings.path / "ratings.csv").unlink()
    assert read_raw(settings) == plain


def test_many_batches_make_one_table(folder, monkeypatch):
    rows = "".join(f"{n}::1::4::{START + n}\n" for n in range(1000))
    monkeypatch.setattr("pipeline.text_rows._BATCH_BYTES", 300)
    raw = read_raw(folder(movies_dat=MOVIES_DAT, ratings_dat=rows))
    assert raw.interactions["user_id"].to_pylist() == [str(n) for n in range(1000)]
    assert raw.users.num_rows == 1000
    with pytest.raises(DataError, match=re.escape("line 1001: '1001::1'")):
        read_raw(folder(movies_dat=MOVIES_DAT, ratings_dat=rows + "1001::1\n"))


def test_lines_that_are_no_rows_are_counted_together(folder):
    settings = folder(
        movies_dat=MOVIES_DAT + "no film\n",
        ratings_dat=f"7::1::3\n\n{RATINGS_DAT}7::1::3::4::5\n",
    )
    with pytest.raises(DataError) as caught:
        read_raw(settings)
    films, ratings = str(caught.value).splitlines()
    assert "movies.dat: lines that are not MovieID::Title::Genres: 1 (line 4: 'no film')" in films
    assert "ratings.dat: lines that are not UserID::MovieID::Rating::Timestamp: 2 " in ratings
    assert "(line 1: '7::1::3'; line 6: '7::1::3::4::5'); drop them" in ratings
    assert "ml-10m.zip" in ratings


def test_csv_rows_of_another_width_are_counted_together(folder):
    settings = folder(movies_csv=MOVIES_CSV, ratings_csv=f"{RATINGS_CSV}1,2\n1,2,3,4,5\n")
    with pytest.raises(DataError, match=r"lines that are not rows of 4 columns: 2 \('1,2'; '1,"):
        read_raw(settings)


def test_a_bad_value_is_one_bad_row(folder):
    settings = folder(
        movies_dat=MOVIES_DAT,
        ratings_dat=f"{RATINGS_DAT}7::1::good::{START + 3}\n8::99::4::{START + 4}\n",
    )
    assert read_raw(settings).interactions["rating"].to_pylist() == [3.5, 5.0, 0.5, None, 4.0]
    with pytest.raises(DataError) as caught:
        load_catalog(settings)
    assert "1 of 5 rows without a rating that is a finite number (row 4:" in str(caught.value)
    assert "1 of 5 rows name an item that the items table lacks (row 5:" in str(caught.value)


def test_a_broken_title_is_mended_and_its_row_kept(folder, caplog):
    movies = MOVIES_DAT.encode().replace("Ä".encode(), b"\xc4")
    raw = read_raw(folder(movies_dat=movies, ratings_dat=RATINGS_DAT))
    assert raw.items["title"].to_pylist()[1].startswith("\ufffdrger: Teil 2")
    assert "not UTF-8" in caplog.text


def test_a_cut_archive_is_refused(folder):
    packed = gzip.compress(RATINGS_CSV.encode() * 50)
    settings = folder(movies_csv=MOVIES_CSV, ratings_csv_gz=packed[:-30])
    with pytest.raises(
        DataError, match=r"ratings\.csv\.gz cannot be read as text .* anew: unpack ml-25m\.zip"
    ):
        read_raw(settings)


@pytest.mark.parametrize("name", ["movies_dat", "ratings_dat", "movies_csv", "ratings_csv"])
def test_a_line_without_end_is_no_riddle(folder, monkeypatch, name):
    monkeypatch.setattr("pipeline.text_rows._BATCH_BYTES", 1000)
    kind = name.split("_")[1]
    files = {"dat": {"movies_dat": MOVIES_DAT, "ratings_dat": RATINGS_DAT}}.get(
        kind, {"movies_csv": MOVIES_CSV, "ratings_csv": RATINGS_CSV}
    )
    what = rf"{name.replace('_', '.')} has a line of more than 1,000 bytes; get the file anew: unp"
    with pytest.raises(DataError, match=what):
        read_raw(folder(**files | {name: files[name] + "x" * 5_000}))


@pytest.mark.parametrize("layout", ["100k", "10m", "25m"])
def test_times_of_another_unit_are_refused_by_the_file(folder, layout):
    files = {
        "100k": {
            "ml-100k_user": "user_id:token\tage:token\tgender:token\toccupation:token\n7\t\t\t\n",
            "ml-100k_item": "item_id:token\tmovie_title:token_seq\trelease_year:token"
            "\tclass:token_seq\n1\tNight\t1990\tDrama\n",
            "ml-100k_inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
            f"7\t1\t3\t{START}\n",
        },
        "10m": {"movies_dat": MOVIES_DAT, "ratings_dat": RATINGS_DAT},
        "25m": {"movies_csv": MOVIES_CSV, "ratings_csv": RATINGS_CSV},
    }[layout]
    seconds, millis = "16000000", "16000000000"  # how they begin
    settings = folder(**{name: text.replace(seconds, millis) for name, text in files.items()})
    with pytest.raises(DataError) as caught:
        load_catalog(settings)
    assert "timestamps in ms (16000000" in str(caught.value)
    assert "but is published with s; get the file anew: " in str(caught.value)
    assert "timestamp_unit" not in str(caught.value)


def test_films_that_are_there_twice_are_named(folder):
    settings = folder(movies_dat=MOVIES_DAT + MOVIES_DAT[:40], ratings_dat=RATINGS_DAT)
    with pytest.raises(DataError, match=r"1 of 4 rows repeat the item_id .*; keep one row per id"):
        load_catalog(settings)


@pytest.mark.parametrize("empty", ["ratings_csv", "movies_csv"])
def test_a_file_without_rows_or_columns_is_named(folder, empty):
    files = {"movies_csv": MOVIES_CSV, "ratings_csv": RATINGS_CSV}
    name = empty.replace("_", ".")
    anew = "get the file anew: unpack ml-25m"
    with pytest.raises(DataError, match=rf"{name} cannot be read as text .*; {anew}"):
        read_raw(folder(**files | {empty: ""}))
    with pytest.raises(DataError, match=rf"{name} holds no rows; {anew}"):
        read_raw(folder(**files | {empty: files[empty].splitlines()[0] + "\n"}))
    with pytest.raises(
        DataError, match=rf"(?s){name} has the columns a, b\n.*'movieId' is missing"
    ):
        read_raw(folder(**files | {empty: "a,b\n1,2\n"}))


def test_a_folder_says_what_it_lacks_and_where_to_get_it(folder, tmp_path):
    with pytest.raises(DataError) as caught:
        raw_files(folder())
    message = str(caught.value)
    assert f"catalog.path: {tmp_path} holds no data set that is known" in message
    assert "MovieLens-100K: ml-100k.user, ml-100k.item, ml-100k.inter; run `make assets`" in message
    assert "MovieLens-10M: movies.dat, ratings.dat; unpack ml-10m.zip of https://" in message
    assert "ml-25m.zip" in message
    nowhere = CatalogSettings(source="movielens", path=tmp_path / "nowhere")
    with pytest.raises(DataError, match="nowhere is no folder; correct it"):
        raw_files(nowhere)
    with pytest.raises(DataError, match=r"movies\.dat does not exist.*MovieLens-10M; unpack"):
        raw_files(folder(ratings_dat=RATINGS_DAT))
    with pytest.raises(DataError, match=r"holds ratings\.dat and ratings\.csv; leave one"):
        raw_files(folder(ratings_csv=RATINGS_CSV))


def ratings(users, movies, form):
    rows = [(u, m) for u in range(users) for m in range(movies)]
    return "".join(
        form.format(u + 1, (1, 2, 30)[m], 1 + n % 5, START + n) for n, (u, m) in enumerate(rows)
    )


@pytest.mark.parametrize("layout", ["10m", "25m"])
def test_a_published_folder_becomes_a_catalog(folder, tmp_path, layout):
    if layout == "10m":
        settings = folder(movies_dat=MOVIES_DAT, ratings_dat=ratings(8, 3, "{}::{}::{}::{}\n"))
    else:
        head = "userId,movieId,rating,timestamp\n"
        rows = ratings(8, 3, "{},{},{},{}\n")
        settings = folder(movies_csv=MOVIES_CSV, ratings_csv=head + rows)
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
    assert store.require("users").num_rows == 8
    assert store.read("items")["title"].to_pylist()[0] == "The Tin Boat"
    assert store.require("interactions").facts["splits"]["knowledge"] == 12
