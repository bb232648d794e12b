"""A run remembers what it is: a first run, or a refresh of another."""

import json
import os

import pytest

from features import provenance
from jobs import run_record
from jobs.commands import durations
from jobs.run_record import as_recorded, record, require_previous, require_run
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.runs import is_refresh, runs_in
from pipeline.schemas import KNOWLEDGE
from pipeline.store import Store


@pytest.fixture
def config_of(tmp_path):
    """A config of the run tuesday, as a refresh of another or not."""

    def build(previous=None):
        return RunConfig.model_validate(
            {
                "run": "tuesday",
                "artifacts": str(tmp_path),
                "catalog": {"source": "movielens", "path": "x"},
                "language_model": {"path": "x"},
                "encoder": {"path": "x"},
                "refresh": {"previous": previous},
            }
        )

    return build


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "tuesday"
    folder.mkdir()
    return folder


def make(root, name="knowledge", **settings):
    Store(root).plan(name, settings).write(KNOWLEDGE.empty_table())


def recorded(config, root):
    """What a job does before its work."""
    config = as_recorded(config, Store(root))
    record(config, Store(root))
    return config.refresh.previous


def test_a_refresh_stays_a_refresh_where_the_config_forgets_it(config_of, root, tmp_path):
    make(tmp_path / "monday")
    assert recorded(config_of("monday"), root) == "monday"
    assert json.loads((root / "run.json").read_text()) == {"previous": "monday"}
    make(root, "waves/0/knowledge")
    assert recorded(config_of(), root) == "monday"
    assert recorded(config_of("monday"), root) == "monday"


def test_a_first_run_is_recorded_as_one_and_may_go_on(config_of, root):
    assert recorded(config_of(), root) is None
    assert json.loads((root / "run.json").read_text()) == {"previous": None}
    make(root)
    assert recorded(config_of(), root) is None


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_first_run_with_knowledge_never_becomes_a_refresh(config_of, root, tmp_path, is_recorded):
    make(tmp_path / "monday")
    if is_recorded:
        record(config_of(), Store(root))
    make(root, "waves/0/knowledge")
    before = sorted(root.rglob("*"))
    with pytest.raises(ConfigError, match=r"previous is monday, but .*tuesday is a first run") as e:
        as_recorded(config_of("monday"), Store(root))
    assert "another `run`" in str(e.value)
    assert sorted(root.rglob("*")) == before


def test_a_refresh_of_one_run_never_becomes_that_of_another(config_of, root, tmp_path):
    for name in ("monday", "sunday"):
        make(tmp_path / name)
    recorded(config_of("monday"), root)
    make(root, "waves/0/knowledge")
    with pytest.raises(ConfigError, match=r"is sunday, but .*tuesday is a refresh of monday"):
        as_recorded(config_of("sunday"), Store(root))


def test_a_run_without_knowledge_may_still_become_another_kind(config_of, root, tmp_path):
    make(tmp_path / "monday")
    assert recorded(config_of(), root) is None
    assert recorded(config_of("monday"), root) == "monday"


def test_a_refresh_that_came_to_nothing_may_become_a_first_run(config_of, root, tmp_path):
    make(tmp_path / "monday")
    assert recorded(config_of("monday"), root) == "monday"
    assert recorded(config_of(), root) is None
    assert json.loads((root / "run.json").read_text()) == {"previous": None}


def test_a_refresh_without_a_record_is_not_taken_for_a_first_run(config_of, root, tmp_path):
    make(tmp_path / "monday")
    make(root, "waves/0/knowledge", earlier="fingerprint")
    with pytest.raises(ConfigError, match=r"is a refresh, and has no run\.json"):
        recorded(config_of(), root)
    assert not (root / "run.json").exists()
    assert recorded(config_of("monday"), root) == "monday"


def test_a_run_whose_folder_was_renamed_does_not_refresh_itself(config_of, root):
    (root / "run.json").write_text('{"previous": "tuesday"}')
    make(root)
    with pytest.raises(ConfigError, match=r"run\.json makes tuesday a refresh of itself"):
        as_recorded(config_of(), Store(root))


def test_a_refresh_of_what_is_not_there_is_not_recorded(config_of, root, tmp_path):
    make(tmp_path / "monday")
    make(tmp_path / "demo")
    (tmp_path / "half" / "users").mkdir(parents=True)
    (tmp_path / "half" / "run.json").write_text('{"previous": null}')
    (tmp_path / "plots").mkdir()
    assert runs_in(tmp_path) == ["demo", "half", "monday"]
    for name in ("yesterday", "half", "plots"):
        with pytest.raises(DataError, match=rf"is {name}, .* there are: demo, monday"):
            record(config_of(name), Store(root))
    assert not (root / "run.json").exists()
    require_previous(config_of("monday"))


def test_of_many_runs_the_newest_are_named(config_of, root, tmp_path):
    for number in range(13):
        make(tmp_path / f"run{number}")
        (tmp_path / f"run{number}" / "run.json").write_text('{"previous": null}')
        os.utime(tmp_path / f"run{number}" / "run.json", (number, number))
    newest = ", ".join(f"run{number}" for number in range(12, 2, -1))
    with pytest.raises(DataError, match=rf"there are: {newest} and 3 more\."):
        require_previous(config_of("yesterday"))
    missing = config_of().model_copy(update={"run": "missing"})
    with pytest.raises(DataError, match=rf"there are: {newest} and 3 more$"):
        require_run(missing, Store(tmp_path / "missing"))


def test_a_damaged_record_is_named(config_of, root):
    (root / "run.json").write_text("[]")
    with pytest.raises(DataError, match=r'run\.json is damaged .*write \{"previous": null\}'):
        as_recorded(config_of(), Store(root))


def test_a_refresh_is_known_by_its_first_wave_before_it_is_whole(root):
    """The report, dry runs and the record ask the same function."""
    assert not is_refresh(Store(root))
    make(root, "waves/0/knowledge")
    assert not is_refresh(Store(root))
    make(root, "waves/0/knowledge", earlier="fingerprint")
    assert is_refresh(Store(root))
    assert provenance.is_refresh is run_record.is_refresh is durations.is_refresh is is_refresh
