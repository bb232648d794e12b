"""Step costs survive on disk; what is damaged is measured again, and said so."""

import numpy as np
import pytest

from pipeline.config import EngineSettings
from pipeline.cost_cache import cost_file, read_costs, write_costs
from pipeline.engine.budget import CostTable

TABLE = CostTable(
    np.array([64, 512]),
    np.array([1, 4]),
    np.array([1, 1.5, 9]),
    1.0 + np.arange(12.0).reshape(2, 2, 3),
)


def test_costs_come_back_as_they_went(tmp_path):
    path = tmp_path / "deep" / "costs.json"
    write_costs(path, TABLE)
    got = read_costs(path)
    assert got is not None
    for name in ("contexts", "rows", "per_row", "seconds"):
        np.testing.assert_array_equal(getattr(got, name), getattr(TABLE, name))
    assert [file.name for file in path.parent.iterdir()] == ["costs.json"]


def test_no_file_is_no_costs_and_no_warning(tmp_path, caplog):
    assert read_costs(tmp_path / "none.json") is None
    assert not caplog.records


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"contexts": [8], "rows": [1], "per_row": [1, 2], "seconds": [[1, 2]]}',
        '{"contexts": [8], "rows": 5, "per_row": [1, 2], "seconds": [[[1, 2]]]}',
        '{"contexts": [8], "rows": [1], "per_row": [1, 2], "seconds": [[[0, 2]]]}',
        '{"contexts": [8], "rows": [1], "per_row": [1, 2], "seconds": [[[NaN, 2]]]}',
        '{"contexts": [8], "rows": [1], "per_row": [2, 1], "seconds": [[[1, 2]]]}',
        '{"contexts": [8], "rows": ["a"], "per_row": [1, 2], "seconds": [[[1, 2]]]}',
    ],
)
def test_a_damaged_file_is_named(tmp_path, caplog, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    assert read_costs(path) is None
    assert str(path) in caplog.text


def test_every_size_and_shape_has_a_file_of_its_own(tiny_model):
    model, other = tiny_model("llama"), tiny_model("mistral")
    files = {
        cost_file(model, EngineSettings(batch_rows=4)),
        cost_file(model, EngineSettings(batch_rows=8)),
        cost_file(other, EngineSettings(batch_rows=4)),
    }
    assert len(files) == 3
