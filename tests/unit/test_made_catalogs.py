"""The tables of tests/bookshop and tests/foreign are what their scripts write."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["bookshop", "foreign"])
def test_tables_are_what_the_script_writes(name, tmp_path):
    script = TESTS / name / "make.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    tables = sorted(script.parent.glob("*.csv"))
    assert len(tables) == 3
    for table in tables:
        assert (tmp_path / table.name).read_bytes() == table.read_bytes(), table.name
