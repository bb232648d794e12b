"""Jobs whose artifacts are in an object store: lock, log, status and refresh, without a secret."""

import errno
import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from jobs import cli, remote_log, show_status
from jobs import lease as lease_module
from jobs.lease import LEASE
from pipeline import runs
from pipeline.errors import DataError
from pipeline.mirror import Mirror
from pipeline.runs import open_run, runs_in
from pipeline.schemas import ITEMS, KNOWLEDGE, USERS


@pytest.fixture
def on(bucket, tmp_path, monkeypatch):
    """Run a job on a machine by name: an exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lease_module, "_SETTLE", 0.0)
    tables = {name: {"path": "x.csv"} for name in ("users", "items", "interactions")}
    tree = {
        "run": "monday",
        "artifacts": f"{bucket}/artifacts",
        "catalog": {"tables": tables},
        "language_model": {"path": "none"},
        "encoder": {"path": "none"},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(tree))

    def run(machine, job, *overrides):
        monkeypatch.setattr(runs, "_WORKING", tmp_path / machine)
        arguments = ["--config", str(tmp_path / "r.yaml")]
        for override in overrides:
            arguments += ["--set", override]
        return job(arguments) if job is show_status.main else cli.main(job, None, arguments)

    return run


@pytest.fixture
def remote(bucket):
    return Mirror(f"{bucket}/artifacts", "monday")


def a_user(name):
    return pa.Table.from_pylist([{"user_id": name, "attributes": []}], schema=USERS)


def write_users(config, store):
    plan = store.plan("users", {})
    if not plan.is_done:
        plan.write(a_user("a"))


def write_knowledge(config, store):
    store.plan("knowledge", {}).write(KNOWLEDGE.empty_table())


def test_the_log_of_all_machines_is_in_the_store(on, remote, bucket, capsys):
    def fail(config, store):
        raise DataError("rotten")

    assert on("a", write_users) == 0
    assert on("b", fail) == 3
    assert on("a", write_users) == 0
    lines = remote.read("run.log").decode().splitlines()
    said = [line.partition("jobs ")[2].split() for line in lines]
    assert [words[0] for words in said] == ["done", "error:", "done"]
    assert f"outputs in {bucket}/artifacts/monday" in capsys.readouterr().err
    assert remote.read(LEASE) is None


def test_the_log_is_there_while_the_job_works(on, remote, monkeypatch):
    monkeypatch.setattr(remote_log, "PERIOD", 0.05)

    def job(config, store):
        cli.log.info("half way")
        end = time.monotonic() + 10
        while b"half way" not in (remote.read("run.log") or b"") and time.monotonic() < end:
            time.sleep(0.02)
        assert b"half way" in (remote.read("run.log") or b"")

    assert on("a", job) == 0


def test_a_log_that_cannot_be_uploaded_does_not_end_the_job(on, object_store, capsys):
    object_store.trouble = lambda method, path, _: (
        (403, "AccessDenied") if method != "HEAD" and "run.log" in path else None
    )
    assert on("a", write_users) == 0
    assert "run.log is not uploaded" in capsys.readouterr().err


@pytest.mark.parametrize("trouble", ["full disk", "no log"])
def test_nor_does_a_log_that_cannot_be_read_or_kept(on, monkeypatch, tmp_path, trouble):
    real = Mirror.write

    def full(mirror, name, data):
        if name == "run.log":
            raise OSError(errno.ENOSPC, "full")
        real(mirror, name, data)

    def job(config, store):
        if trouble == "no log":
            (store.root / "run.log").unlink()
        else:
            monkeypatch.setattr(Mirror, "write", full)

    assert on("a", job) == 0


def test_lines_that_another_job_wrote_while_this_one_waited_are_not_uploaded_as_its_own(
    on, remote, monkeypatch, tmp_path
):
    real = cli._locked

    def locked(file):
        with (Path(file.name).parent / "run.log").open("a") as log:
            log.write("another's last line\n")
        return real(file)

    monkeypatch.setattr(cli, "_locked", locked)
    assert on("a", write_users) == 0
    assert b"done in" in remote.read("run.log")
    assert b"another's" not in remote.read("run.log")


def test_a_job_on_another_machine_is_refused_and_leaves_no_trace(on, remote, capsys):
    other = {"host": "far", "pid": 7, "token": "theirs", "renewed_at": time.time() + 60}
    remote.write(LEASE, json.dumps(other).encode())
    assert on("a", write_users) == 3
    assert "is being written by another job (process 7 on far)" in capsys.readouterr().err
    assert list(remote.files()) == [LEASE]


def test_a_job_that_loses_its_lease_ends_and_writes_nothing_more(on, remote, monkeypatch, capsys):
    monkeypatch.setattr(lease_module, "PERIOD", 0.05)
    monkeypatch.setattr(lease_module, "_PATIENCE", 400)

    def job(config, store):
        other = {"host": "far", "pid": 7, "token": "theirs", "renewed_at": time.time() + 60}
        end = time.monotonic() + 10
        while time.monotonic() < end:  # again where it met a renewal half-way
            remote.write(LEASE, json.dumps(other).encode())
            time.sleep(0.05)
            store.files.mirror.may_write()
        write_users(config, store)

    assert on("a", job) == 3
    assert "was lost to process 7 on far" in capsys.readouterr().err
    assert list(remote.files()) == [LEASE, "run.json"]


def test_a_job_without_a_store_ends_at_once_and_says_why(on, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    began = time.monotonic()
    assert on("a", write_users) == 3
    assert time.monotonic() - began < 10.0
    told = capsys.readouterr().err
    assert "the store cannot be reached; check the network" in told
    assert "lease" not in told
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert on("a", write_users) == 2
    assert "there are no AWS credentials; set AWS_ACCESS_KEY_ID" in capsys.readouterr().err


def test_the_status_is_that_of_the_store(on, remote, bucket, capsys):
    assert on("b", show_status.main) == 3
    assert "no such run: monday" in capsys.readouterr().err
    assert on("a", write_users) == 0
    items = open_run(f"{bucket}/artifacts", "monday").plan("items", {}).open_writer()
    capsys.readouterr()
    assert on("b", show_status.main) == 6
    out = capsys.readouterr().out
    assert f"{bucket}/artifacts/monday: no job is running" in out
    assert "users                1 rows" in out
    assert "items                unfinished, 0 rows stored" in out
    assert "s; outputs in s3://" in out.splitlines()[-1]
    assert items
    held = {"host": "far", "pid": 7, "token": "theirs", "renewed_at": time.time()}
    remote.write(LEASE, json.dumps(held).encode())
    on("b", show_status.main)
    assert "monday: process 7 on far is writing it" in capsys.readouterr().out


def test_a_part_that_goes_while_the_status_is_taken_is_named(on, bucket, capsys, monkeypatch):
    """It is told of like any other trouble, without a traceback."""
    assert on("a", write_users) == 0
    writer = open_run(f"{bucket}/artifacts", "monday").plan("items", {}).open_writer()
    writer.append(pa.Table.from_pylist([{"item_id": "a", "title": "", "attributes": []}], ITEMS))
    real = Mirror.files

    def files(mirror, name=""):
        found = real(mirror, name)
        if "part-00000.parquet" in found:
            mirror.delete(f"{name}/part-00000.parquet")
        return found

    monkeypatch.setattr(Mirror, "files", files)
    assert on("b", show_status.main) == 3
    assert "part-00000.parquet has gone while it was read; run again" in capsys.readouterr().err


def test_a_run_without_a_record_is_one_if_it_holds_a_dataset(on, remote, bucket):
    assert on("a", write_users) == 0
    remote.delete("run.json")
    Mirror(f"{bucket}/artifacts", "other").write("plots/a.svg", b"")
    assert runs_in(f"{bucket}/artifacts") == ["monday"]


def test_a_refresh_goes_on_from_a_remote_run(on, bucket, capsys):
    assert on("a", write_users) == 0
    settings = ("run=tuesday", "refresh.previous=monday")
    assert on("b", write_users, *settings) == 3
    assert "has no such finished run; there are: none" in capsys.readouterr().err
    assert on("a", write_knowledge) == 0
    assert on("b", write_users, *settings) == 0
    assert runs_in(f"{bucket}/artifacts") == ["monday", "tuesday"]
    record = Mirror(f"{bucket}/artifacts", "tuesday").read("run.json")
    assert json.loads(record or b"") == {"previous": "monday"}


def test_no_secret_reaches_the_store_or_the_log(on, remote, object_store, capsys, tmp_path):
    def job(config, store):
        store.plan("users", {"catalog": config.catalog, "artifacts": config.artifacts}).write(
            a_user("a")
        )

    assert on("a", job) == 0
    object_store.trouble = lambda method, path, _: (403, "SignatureDoesNotMatch")
    assert on("a", job) == 3
    object_store.trouble = lambda *_: None
    told = capsys.readouterr().err
    contents = [remote.read(name) or b"" for name in remote.files()]
    contents += [file.read_bytes() for file in (tmp_path / "a").rglob("*") if file.is_file()]
    assert "AWS_SECRET_ACCESS_KEY does not belong" in told or "access is denied" in told
    assert len(contents) > 5
    for secret in (b"very/secret+word", b"AKIATESTKEY"):
        assert secret not in told.encode()
        assert not any(secret in content for content in contents)
