"""What a file is goes by its name only where its bytes say nothing else."""

import pytest

from pipeline.errors import DataError
from pipeline.foreign_files import require_table


@pytest.mark.parametrize("name", ["ratings.xls", "ratings.db", "ratings.csv"])
def test_a_text_may_have_the_name_of_something_else_if_its_separator_is_known(tmp_path, name):
    file = tmp_path / name
    file.write_text("a\tb\n1\t2\n")
    require_table(file, name, is_text=True)


@pytest.mark.parametrize(
    ("name", "start", "is_text"),
    [
        ("ratings.xls", b"a\tb\n1\t2\n", False),
        ("ratings.xls", b"\xd0\xcf\x11\xe0" + bytes(20), True),
        ("ratings.csv", b"PK\x03\x04" + bytes(20), True),
        ("ratings.db", bytes(20), True),
    ],
)
def test_what_is_no_text_is_refused_with_a_remedy(tmp_path, name, start, is_text):
    file = tmp_path / name
    file.write_bytes(start)
    with pytest.raises(DataError, match=rf"{name} is a .*, no table .* save it as CSV"):
        require_table(file, name, is_text=is_text)
