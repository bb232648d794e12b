"""Rows with more or fewer cells than the header: told by their lines, and left out if asked."""

import csv
import gzip
import io
import random

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from pipeline import text_marks
from pipeline.catalog import load_catalog
from pipeline.catalog_config import CatalogSettings
from pipeline.errors import DataError, UnusableCatalog
from pipeline.row_widths import odd_rows
from pipeline.table_heads import read_head

READERS = ["user_id,job", *(f"r{n},nurse" for n in range(10))]
BOOKS = ["item_id,title", *(f"b{n},Book {n}" for n in range(30))]
RATINGS = ["user_id,item_id,rating,timestamp"]
RATINGS += [f"r{n % 10},b{n % 30},{n % 5 + 1},{1_700_000_000 + n * 3600}" for n in range(60)]


@pytest.fixture
def settings(tmp_path):
    """Settings for lines of the three tables."""

    def write(books=BOOKS, **sections):
        tables = {}
        for name, lines in (("users", READERS), ("items", books), ("interactions", RATINGS)):
            path = tmp_path / f"{name}.csv"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            tables[name] = {"path": str(path)}
        return CatalogSettings.model_validate({"tables": tables, **sections})

    return write


def broken():
    """Lines of books, of which the fourth and the last are none, with breaks in cells before."""
    lines = list(BOOKS)
    lines[1] = '"b0","Book\n\n0"'
    lines[2] = '"b1","Book, 1"'
    lines[5] = "b4,Book,4"
    lines.append("b99")
    return lines


def test_rows_of_another_width_are_refused_with_file_and_lines(settings, tmp_path):
    with pytest.raises(UnusableCatalog) as caught:
        load_catalog(settings(broken()))
    said = str(caught.value)
    assert "items: 2 of 31 rows have more or fewer cells than the header, in lines 8, 34 (" in said
    assert (
        f"{tmp_path}/items.csv: the header has 2 cells, line 8 has 3, 'b4,Book,4'; line 34" in said
    )
    assert "line 34 has 1, 'b99'" in said
    assert "quote the cells" in said
    assert caught.value.found[0].endswith("than the header, in lines 8, 34")


def test_they_are_left_out_and_counted_with_all_others(settings, caplog):
    books = [*broken(), "b1,Again"]
    asked = {"unusable_rows": "drop", "max_unusable_share": 0.5}
    catalog = load_catalog(settings(books, **asked))
    assert catalog.items.num_rows == 29
    assert "items: 2 of 32 rows have more or fewer cells than the header; left out" in caplog.text
    assert "items: 1 of 32 rows repeat the item_id" in caplog.text
    with pytest.raises(UnusableCatalog, match=r"items: 3 of 32 rows: 2 have more or fewer cells"):
        load_catalog(settings(books, unusable_rows="drop", max_unusable_share=0.09))


def test_a_head_goes_without_them_unless_most_are_so(tmp_path):
    path = tmp_path / "books.csv"
    path.write_text("\n".join(broken()))
    assert read_head(path, 1000).table.num_rows == 29
    path.write_text("\n".join(["Books of 2024", "", *BOOKS]))
    with pytest.raises(DataError) as caught:
        read_head(path, 1000)
    said = str(caught.value)
    assert "31 of 31 rows have more or fewer cells than the header" in said
    assert "line 3 has 2, 'item_id,title'" in said
    assert "begin the file with the names of the columns" in said


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("block", [7, 1 << 23])
def test_lines_are_those_of_the_file(monkeypatch, newline, block):
    monkeypatch.setattr(text_marks, "BLOCK", block)
    draw = random.Random(3)
    text, wanted = io.StringIO(newline=""), []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["a", "b", "c"])
    for _ in range(200):
        cells = draw.choices(
            ["x", "a, b", "two\nlines", 'so "to" say', ""], k=draw.choice([3, 3, 2, 4])
        )
        if len(cells) != 3:
            wanted.append((text.getvalue().count("\n") + 1, len(cells)))
        writer.writerow(cells)
        text.write("\n" * draw.choice([0, 0, 1]))  # an empty line is no row
    content = text.getvalue().replace("\n", newline).encode()
    found = [(row.line, row.cells) for row in odd_rows(pa.BufferReader(content), ",", 3)]
    assert found == wanted
    assert list(odd_rows(pa.BufferReader(b""), ",", 3)) == []


def widths_by_arrow(text):
    """Cells of the rows of another width."""
    seen = []

    def skip(row):
        seen.append(row.actual_columns)
        return "skip"

    options = pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
    read = pacsv.ReadOptions(use_threads=False)
    pacsv.read_csv(pa.BufferReader(text.encode()), read_options=read, parse_options=options)
    return seen


@pytest.mark.parametrize("block", [5, 1 << 23])
def test_rows_are_as_wide_as_arrow_finds_them(monkeypatch, block):
    monkeypatch.setattr(text_marks, "BLOCK", block)
    draw = random.Random(5)
    for _ in range(2_000):
        text = "a,b\n" + "".join(draw.choices('"\n,x', [3, 3, 4, 3], k=draw.randint(1, 14))) + "\n"
        marks = text_marks.marks_in(text.encode(), ",")
        if not marks.is_open:  # else Arrow takes a row that is not closed, or leaves it out
            found = [row.cells for row in odd_rows(pa.BufferReader(text.encode()), ",", 2)]
            assert found == widths_by_arrow(text), text


def test_a_last_line_without_an_end_and_a_packed_file(tmp_path):
    path = tmp_path / "books.csv.gz"
    path.write_bytes(gzip.compress("\n".join([*BOOKS, "b77,a,b"]).encode()))
    assert read_head(path, 1000).table.num_rows == 30
    content = b"a,b\n1,2\n3"
    assert [row.line for row in odd_rows(pa.BufferReader(content), ",", 2)] == [3]


def test_a_cell_of_megabytes_is_read(settings):
    books = list(BOOKS)
    books[4] = f"b3,{'long ' * 600_000}"
    catalog = load_catalog(settings(books))
    assert len(catalog.items["title"][3].as_py()) > 2_999_990


def test_a_table_without_rows_is_named_and_not_only_who_misses_them(settings):
    with pytest.raises(UnusableCatalog, match="items: no rows"):
        load_catalog(settings(BOOKS[:1], unusable_rows="drop", max_unusable_share=1.0))
