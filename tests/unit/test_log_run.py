"""MLflow hears of a finished run once, and nothing it does ends one."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from jobs import log_run, run_all
from pipeline.config import RunConfig
from pipeline.errors import CheckError, ConfigError, DataError
from pipeline.store import Store

URI = "http://tracking:5000"
HEADLINE = {
    "entities": 200,
    "speedup": 1.5,
    "rule": "relaxed",
    "refresh": None,
    "speedup_by_kind": {"user": 1.4, "item": 1.6},
    "auc_gains": [{"model": "din", "auc": 0.01, "reason": "", "is_good": True}],
}


def config(uri=URI, **sections):
    return RunConfig.model_validate(
        {
            "run": "shop",
            "catalog": {"source": "movielens", "path": "nowhere"},
            "language_model": {"path": "nowhere"},
            "encoder": {"path": "nowhere"},
            "mlflow": {"tracking_uri": uri},
            **sections,
        }
    )


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "shop")
    write_report(store, HEADLINE)
    return store


def write_report(store, headline, inputs=(), **others):
    report = {"headline": headline, "config": config(seed=7).model_dump(mode="json")} | others

    def fill(folder):
        (folder / "report.json").write_text(json.dumps(report))
        (folder / "report.html").write_text("<html>")

    store.plan("report", {}, inputs).write_files(fill, 1)


class Client:
    """A server that remembers; `broken` names the call that fails."""

    def __init__(self):
        self.experiments, self.runs, self.broken, self.places = {}, {}, "", []

    def __call__(self, tracking_uri):
        self.tracking_uri = tracking_uri
        return self

    def _may_fail(self, call):
        if call in self.broken.split():
            raise OSError(f"http://me:secret@tracking:5000 does not answer ({call})")

    def get_experiment_by_name(self, name):
        self._may_fail("experiment")
        number = self.experiments.get(name)
        return number and SimpleNamespace(experiment_id=number)

    def create_experiment(self, name, artifact_location=None):
        self.places.append(artifact_location)
        return self.experiments.setdefault(name, str(len(self.experiments) + 1))

    def create_run(self, experiment_id, run_name, tags):
        run = {"experiment": experiment_id, "name": run_name, "tags": dict(tags)}
        run |= {"metrics": {}, "params": {}, "files": {}, "batches": []}
        self.runs[f"r{len(self.runs)}"] = run
        return SimpleNamespace(info=SimpleNamespace(run_id=f"r{len(self.runs) - 1}"))

    def log_batch(self, run_id, **entries):
        for name, values in entries.items():
            self.runs[run_id]["batches"].append(len(values))
            self.runs[run_id][name] |= {one.key: one.value for one in values}

    def log_dict(self, run_id, value, name):
        self.runs[run_id]["files"][name] = value

    def log_artifact(self, run_id, path):
        self._may_fail("artifact")
        with open(path) as file:  # noqa: PTH123 (as MLflow is given it)
            self.runs[run_id]["files"][path.rpartition("/")[2]] = file.read()

    def set_terminated(self, run_id, status):
        self._may_fail("end")
        self.runs[run_id]["status"] = status


@pytest.fixture
def client(monkeypatch):
    client = Client()

    def entity(key, value, *_):
        return SimpleNamespace(key=key, value=value)

    mlflow, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    mlflow.MlflowClient = client
    mlflow.__spec__ = SimpleNamespace(name="mlflow")
    entities.Metric = entities.Param = entities.RunTag = entity
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    for name in log_run._MANNERS:
        monkeypatch.setenv(name, "1")
    return client


def test_a_run_is_told_with_headline_config_and_report(store, client):
    log_run.run(config(seed=8), store)  # 7 is the report's
    [run] = client.runs.values()
    assert client.tracking_uri == URI
    assert client.experiments == {"laser-knowledge": run["experiment"]}
    assert (run["name"], run["status"]) == ("shop", "FINISHED")
    assert run["metrics"] == {
        "entities": 200.0,
        "speedup": 1.5,
        "speedup_by_kind.user": 1.4,
        "speedup_by_kind.item": 1.6,
        "auc_gains.din.auc": 0.01,
    }
    assert run["tags"]["rule"] == "relaxed"
    assert "auc_gains.din.reason" not in run["tags"]
    assert run["tags"]["laser.report"] == store.require("report").version
    assert run["params"]["seed"] == "7"
    assert run["params"]["generation.rule"] == config().generation.rule
    assert run["files"].keys() == {"config.json", "report.html", "report.json"}
    assert run["files"]["config.json"] == config(seed=7).model_dump(mode="json")
    assert run["files"]["report.html"] == "<html>"
    assert max(run["batches"]) <= 100 < len(run["params"])


def test_a_report_is_told_once_to_each_server(store, client):
    for _ in range(2):
        log_run.run(config(), store)
    assert len(client.runs) == 1
    log_run.run(config("file:elsewhere"), store)
    assert len(client.runs) == 2
    write_report(store, HEADLINE | {"speedup": 2.0})
    log_run.run(config("file:elsewhere"), store)
    assert len(client.runs) == 3
    (store.root / log_run.RECORD).write_text("[")
    log_run.run(config("file:elsewhere"), store)
    assert len(client.runs) == 4


@pytest.mark.parametrize("broken", ["experiment", "artifact"])
def test_a_server_that_fails_costs_a_warning(store, client, caplog, broken):
    client.broken = broken
    log_run.attempt(config(), store)
    assert "MLflow was not told: http://...@tracking:5000 does not answer" in caplog.text
    assert "laser log" in caplog.text
    assert "secret" not in caplog.text
    assert [run["status"] for run in client.runs.values()] == ["FAILED"] * (broken == "artifact")
    with pytest.raises(DataError, match=rf"^MLflow at {URI} was not told: .* does not answer"):
        log_run.run(config(), store)
    client.broken = ""
    log_run.attempt(config(), store)
    assert list(client.runs.values())[-1]["status"] == "FINISHED"


def test_the_first_error_is_told_where_the_server_fails_again(store, client):
    client.broken = "artifact end"
    with pytest.raises(DataError, match=r"does not answer \(artifact\)"):
        log_run.run(config(), store)


def test_a_report_is_told_once_to_each_experiment(store, client):
    for name in ("one", "one", "other"):
        log_run.run(config(mlflow={"tracking_uri": URI, "experiment": name}), store)
    assert len(client.runs) == 2
    assert set(client.experiments) == {"one", "other"}


def test_a_report_of_datasets_that_have_changed_is_not_told(store, client, caplog):
    store.plan("users", {}).write_files(lambda folder: None, 1)
    write_report(store, HEADLINE, inputs=["users"])
    log_run.run(config(), store)
    store.plan("users", {"other": 1}).write_files(lambda folder: None, 1)
    with pytest.raises(DataError, match=r"made anew since; run `laser report`"):
        log_run.run(config(), store)
    log_run.attempt(config(), store)
    assert "made anew since" in caplog.text
    assert len(client.runs) == 1


def test_settings_that_the_run_was_not_made_with_are_named(store, client):
    write_report(store, HEADLINE, config_differences=[{"setting": "seed"}, {"setting": "run"}])
    log_run.run(config(), store)
    write_report(store, HEADLINE | {"speedup": 2.0}, config=None)  # of an older program
    log_run.run(config(), store)
    told, older = client.runs.values()
    assert told["tags"]["laser.made_with_other"] == "seed, run"
    assert "laser.made_with_other" not in older["tags"]
    assert older["params"] == {}
    assert "config.json" not in older["files"]


@pytest.mark.parametrize(
    ("artifacts", "place"),
    [("/runs here", "file:///runs%20here/mlflow"), ("s3://bucket/runs", "s3://bucket/runs/mlflow")],
)
def test_files_of_a_database_lie_with_the_runs(store, client, monkeypatch, artifacts, place):
    monkeypatch.setattr(log_run, "find_spec", lambda name: name)
    log_run.run(config("sqlite:////tmp/mlflow.db", artifacts=artifacts), store)
    other = {"tracking_uri": URI, "experiment": "of a server"}
    log_run.run(config(artifacts=artifacts, mlflow=other), store)
    assert client.places == [place, None]


@pytest.mark.parametrize("uri", ["sqlite:///m.db", "postgresql+psycopg2://db/m", "mysql://db/m"])
def test_a_database_takes_the_whole_mlflow(store, client, monkeypatch, uri):
    monkeypatch.setattr(log_run, "find_spec", lambda name: name in ("mlflow", "sqlalchemy"))
    for job in (run_all.run, log_run.run):
        with pytest.raises(ConfigError, match=r"is a database, .* run `pip install 'mlflow>=3'`"):
            job(config(uri), store)
    log_run.require_mlflow(config("file:mlruns"))
    log_run.require_mlflow(config(URI))


def whole_run(config, store, monkeypatch, error=None):
    """`run_all` with a stage that may fail."""

    def stage(*_):
        if error:
            raise error

    monkeypatch.setattr(run_all, "STAGES", ("write_report",))
    monkeypatch.setattr("jobs.write_report.run", stage)
    monkeypatch.setattr("jobs.preflight.check_inputs", lambda _: None)
    run_all.run(config, store)


def test_a_whole_run_tells_last_and_goes_on_whatever_the_server_does(store, client, monkeypatch):
    client.broken = "artifact"
    whole_run(config(), store, monkeypatch)
    client.broken = ""
    missed = CheckError("AUC missed the threshold")
    with pytest.raises(CheckError):
        whole_run(config(), store, monkeypatch, missed)
    assert list(client.runs.values())[-1]["tags"]["laser.missed"] == "AUC missed the threshold"


def test_nobody_is_told_unless_asked(store, client, monkeypatch):
    whole_run(config(None), store, monkeypatch)
    assert not client.runs
    assert not (store.root / log_run.RECORD).exists()
    with pytest.raises(ConfigError, match=r"mlflow\.tracking_uri is not set"):
        log_run.run(config(None), store)


def test_mlflow_asked_for_and_not_installed_ends_a_run_before_any_work(store, monkeypatch):
    monkeypatch.setattr(log_run, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"not installed; run `pip install 'mlflow-skinny>=3'`"):
        run_all.run(config(), store)
    with pytest.raises(ConfigError, match="not installed"):
        log_run.run(config(), store)
    log_run.require_mlflow(config(None))


def test_a_run_without_a_report_is_no_run_to_tell_of(tmp_path, client):
    with pytest.raises(DataError, match="report has not been made"):
        log_run.run(config(), Store(tmp_path / "empty"))


def test_a_password_in_the_uri_is_refused():
    with pytest.raises(ValueError, match="carries a password; put it into the environment"):
        config("https://me:secret@tracking")
    assert config("sqlite:////tmp/mlflow.db").mlflow.tracking_uri == "sqlite:////tmp/mlflow.db"
