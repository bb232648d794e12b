"""Quotes that take rows into a cell are found; line breaks that belong to a cell are left alone."""

import csv
import gzip
import io
import random

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from pipeline import text_marks
from pipeline.column_files import read_columns
from pipeline.errors import DataError
from pipeline.open_quotes import find_open_quote
from pipeline.text_marks import count_lines

HEADER = "user_id,item_id,rating,timestamp,review\n"
RATINGS = [f"u{n},i{n % 7},{n % 5},{1_600_000_000 + n}," for n in range(900)]
REMEDIES = dict.fromkeys(["user_id", "item_id"], "name it")


def table_of(*reviews, newline="\n"):
    """900 ratings, of which some have a review, by their row."""
    words = dict(reviews)
    lines = [row + words.get(n, "") for n, row in enumerate(RATINGS)]
    return (HEADER + "\n".join(lines) + "\n").replace("\n", newline).encode()


def read(path, content):
    path.write_bytes(content)
    return read_columns(path, REMEDIES, "interactions", "write it anew").num_rows


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "reviews",
    [
        [(100, '"The end is bad')],
        [(100, '"The end, is bad'), (600, '"Good, all of it"')],
        [(100, '"The end is bad'), (101, '"Good"')],
        [(100, '"The end is bad'), (600, '", they said"')],
        [(100, '"The end is bad'), (300, '""'), (600, 'and closed"')],
    ],
)
def test_a_quote_that_takes_in_rows_is_refused_with_its_line(tmp_path, reviews, newline):
    with pytest.raises(DataError, match=r"ratings\.csv, line 102: a quote opens .* as Parquet if"):
        read(tmp_path / "ratings.csv", table_of(*reviews, newline=newline))


def test_the_first_column_may_be_the_open_one(tmp_path):
    content = table_of().replace(b"\nu5,", b'\n"u5,').replace(b"\nu9,", b'\n"u9",')
    with pytest.raises(DataError, match="line 7: a quote opens a cell that takes in whole rows"):
        read(tmp_path / "ratings.csv", content)


def test_a_cell_too_long_for_arrow_is_told_by_its_quote(tmp_path):
    content = table_of((3, '"open')) + table_of() * 80
    with pytest.raises(DataError, match="line 5: a quote opens a cell that takes in all the rest"):
        read(tmp_path / "ratings.csv", content)


@pytest.mark.parametrize(
    "review",
    [
        '"Two\nlines"',
        '"One, two\nthree, four, five, six, and\nseven"',
        '"He said ""no, no, no, no""\n\nand left\n"',
        '"\n"',
        '"Dear all,\nit is good, long, rich, and well told"',
        'a 5" screen',
        '"closed" and more',
    ],
)
def test_line_breaks_and_odd_quotes_that_lose_no_row_are_read(tmp_path, review):
    assert read(tmp_path / "ratings.csv", table_of((100, review), (300, '"x\ny"'))) == 900


@pytest.mark.parametrize("block", [64, 1_000, 1 << 23])
def test_real_reviews_pass_whatever_the_block(tmp_path, monkeypatch, block):
    monkeypatch.setattr(text_marks, "BLOCK", block)
    draw = random.Random(0)
    pieces = ["good", "bad, very", '"so" to say', "\n", "\r\n", "1,000 pages", ", ", "the end."]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["item_id", "text", "year"])
    for n in range(2_000):
        writer.writerow([f"B{n}", " ".join(draw.choices(pieces, k=draw.randint(1, 9))), 1990 + n])
    content = text.getvalue().encode()
    assert find_open_quote(pa.BufferReader(content), ",", 3) is None
    broken = content.replace(b"\nB1500,", b'\nB1499,"open,1\nB1500,', 1)
    line = count_lines(pa.BufferReader(broken[: broken.index(b'"open,1')]))
    found = find_open_quote(pa.BufferReader(broken), ",", 3)
    assert found is not None
    assert found.startswith(f"line {line}: a quote opens a cell that takes in whole rows")


@pytest.mark.parametrize("block", [5, 1 << 23])
def test_quotes_are_read_as_arrow_reads_them(monkeypatch, block):
    """Random text: as many rows as Arrow finds, by the breaks outside quoted cells."""
    monkeypatch.setattr(text_marks, "BLOCK", block)
    draw = random.Random(1)
    options = pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    names = pacsv.ReadOptions(column_names=["a"])
    for _ in range(2_000):
        text = "x" + "".join(draw.choices('"\n\rx', [4, 2, 1, 3], k=draw.randint(1, 12))) + "y\n"
        marks = text_marks.marks_in(text.encode(), ",")
        rows = len(marks.outside(marks.breaks)) + marks.is_open
        read = pacsv.read_csv(
            pa.BufferReader(text.encode()),
            read_options=names,
            parse_options=options,
            convert_options=pacsv.ConvertOptions(column_types={"a": pa.string()}),
        )
        assert read.num_rows == rows, text


def test_lines_are_counted_whatever_ends_them():
    for text, lines in ((b"", 0), (b"a", 1), (b"a\nb\n", 2), (b"a\r\nb", 2), (b"a\rb\r", 2)):
        assert count_lines(pa.BufferReader(text)) == lines


@pytest.mark.parametrize("name", ["ratings.CSV", "ratings.tsv", "ratings.TSV.gz", "ratings.Csv.GZ"])
def test_text_tables_are_known_by_their_suffix_in_any_case(tmp_path, name):
    tab = ".tsv" in name.lower()
    content = table_of((7, '"a\nb"')).replace(b",", b"\t" if tab else b",")
    packed = gzip.compress(content) if name.lower().endswith(".gz") else content
    assert read(tmp_path / name, packed) == 900
    open_ = content.replace(b'"a\nb"', b'"a b')
    packed = gzip.compress(open_) if name.lower().endswith(".gz") else open_
    with pytest.raises(DataError, match="line 9: a quote opens"):
        read(tmp_path / name, packed)


def test_a_packed_table_that_is_cut_is_named_with_the_remedy(tmp_path):
    packed = gzip.compress(table_of((7, '"a\nb"')))
    with pytest.raises(DataError, match=r"cannot be read as a text table .*; write it anew"):
        read(tmp_path / "ratings.csv.gz", packed[: len(packed) // 2])


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_header_that_is_not_utf8_is_named_with_the_remedy(tmp_path, encoding):
    with pytest.raises(DataError, match=r"ratings\.csv is not UTF-8; .*iconv -f"):
        read(tmp_path / "ratings.csv", "user_id,item_id,café\n1,2,3\n".encode(encoding))
