"""A run in an object store: complete or absent there at every moment, and equal everywhere."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pytest

from pipeline.errors import DataError
from pipeline.mirror import Mirror
from pipeline.parts import append_part
from pipeline.run_files import BUILDING, MANIFEST
from pipeline.schemas import USERS
from pipeline.store import Store


class Killed(BaseException):
    """Stands for a process that ends here: nothing may catch it."""


def make_users(*ids):
    rows = [{"user_id": user, "attributes": [("age", "30")]} for user in ids]
    return pa.Table.from_pylist(rows, schema=USERS)


def users_in(table):
    return table["user_id"].to_pylist()


@pytest.fixture
def machine(bucket, tmp_path):
    """The store of a run on a machine by name: each has a working copy of its own."""
    return lambda name: Store(tmp_path / name / "run", Mirror(bucket, "run"))


def die_at(patch, number, after):
    """Let the process die at its n-th change of the remote folder, just before or just after it.

    Returns a function that tells whether it did.
    """
    left = [number]

    def dying(real):
        def change(*arguments):
            left[0] -= 1
            if left[0] == 0 and not after:
                raise Killed
            real(*arguments)
            if left[0] == 0:
                raise Killed

        return change

    for name in ("_put", "copy", "delete"):
        patch.setattr(Mirror, name, dying(getattr(Mirror, name)))
    return lambda: left[0] <= 0


def test_what_one_machine_writes_another_reads(machine):
    plan = machine("a").plan("users", {"seed": 1})
    assert not plan.is_done
    plan.write(make_users("u1", "u2"), {"note": "fine"})
    assert plan.is_done
    other = machine("b")
    assert other.read("users") == make_users("u1", "u2")
    assert other.require("users") == plan.store.require("users")
    assert other.plan("users", {"seed": 1}).is_done
    with pytest.raises(DataError, match=r"s3://shop-.*/run/items has not been made"):
        other.read("items")


def test_files_become_a_dataset_when_the_manifest_is_put_last(machine, object_store):
    def fill(folder):
        (folder / "deep").mkdir()
        (folder / "deep" / "z.npy").write_bytes(b"z")
        (folder / "a.json").write_text("{}")

    machine("a").plan("report", {}).write_files(fill, 1)
    assert [key.removeprefix("run/report/") for key in object_store.written()] == [
        "a.json",
        "deep/z.npy",
        MANIFEST,
    ]
    folder = machine("b").files.local("report")
    assert (folder / "deep" / "z.npy").read_bytes() == b"z"


def test_parts_appear_while_they_are_written_and_another_machine_goes_on(machine, object_store):
    writer = machine("a").plan("users", {}).open_writer()
    writer.append(make_users("u1"))
    writer.append(make_users("u2"))
    part = "run/users/part-0000"
    assert object_store.written() == [
        f"run/users/{BUILDING}",
        f"{part}0.parquet",
        f"{part}1.parquet",
    ]
    other = machine("b")
    assert other.files.stored_rows("users") == 2
    assert not other.path("users").exists()  # who only looks fetches nothing
    again = other.plan("users", {}).open_writer()
    assert users_in(again.existing()) == ["u1", "u2"]
    again.append(make_users("u3"))
    again.finish()
    assert object_store.written()[-1] == f"run/users/{MANIFEST}"
    assert users_in(machine("c").read("users")) == ["u1", "u2", "u3"]
    assert BUILDING not in machine("c").files.mirror.files("users")


def test_parts_that_never_got_there_are_dropped_when_another_machine_has_gone_on(machine):
    """Kept, they would double the rows that the other machine has written in their place."""
    first = machine("a").plan("users", {}).open_writer()
    first.append(make_users("u1"))
    for user in ("u2", "u3"):  # died before the upload
        append_part(first._folder, make_users(user), USERS, "users")
    second = machine("b").plan("users", {}).open_writer()
    second.append(make_users("u2"))
    third = machine("a").plan("users", {}).open_writer()
    assert users_in(third.existing()) == ["u1", "u2"]


def test_a_part_of_equal_name_and_size_is_not_taken_for_the_remote_one(machine):
    first = machine("a").plan("users", {}).open_writer()
    first.append(make_users("u1"))
    part = first.parts()[0]
    others = machine("b").plan("users", {})
    others.open_writer().clear()
    others.open_writer().append(make_users("u2"))
    assert part.stat().st_size == others.open_writer().parts()[0].stat().st_size
    os.utime(part, (1.5, 1.5))  # both were written within one second
    assert users_in(machine("a").plan("users", {}).open_writer().existing()) == ["u2"]


def write_in_parts(store, settings):
    """A job: what is stored stays, what is missing is written, in order."""
    plan = store.plan("users", settings)
    if plan.is_done:
        return
    writer = plan.open_writer()
    stored = users_in(writer.existing())
    assert stored == ["u1", "u2", "u3"][: len(stored)]
    for user in ["u1", "u2", "u3"][len(stored) :]:
        writer.append(make_users(user))
    writer.finish()


def write_as_files(store, settings):
    def fill(folder):
        for name in ("a", "b"):
            (folder / name).write_text(json.dumps(settings))

    plan = store.plan("users", settings)
    if not plan.is_done:
        plan.write_files(fill, 2)


def assert_whole(store, job, seed):
    assert store.require("users").settings == {"seed": seed}
    if job is write_in_parts:
        assert users_in(store.read("users")) == ["u1", "u2", "u3"]
    else:
        folder = store.files.local("users")
        assert {file.name for file in folder.iterdir()} == {"a", "b", MANIFEST}
        assert json.loads((folder / "a").read_text()) == {"seed": seed}


def superseded(store):
    """Names of the files of each dataset that was set aside."""
    found = {}
    for name in store.files.mirror.files("superseded"):
        folder, _, file = name.partition("/")
        found.setdefault(folder, set()).add(file)
    return list(found.values())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("job", [write_in_parts, write_as_files])
@pytest.mark.parametrize("before", ["nothing", "complete", "unfinished"])
def test_a_death_at_any_change_loses_nothing_and_doubles_nothing(
    tmp_path, monkeypatch, job, before, after
):
    """On a file system, which is faster than HTTP; the order of changes is the same."""
    (tmp_path / "remote").mkdir()
    for number in range(1, 40):
        mirror = Mirror(f"file://{tmp_path}/remote", f"run{number}")
        first, second, third, looker = (
            Store(tmp_path / f"{name}{number}", mirror)
            for name in ("first", "second", "third", "looker")
        )
        if before == "complete":
            job(first, {"seed": 1})
        elif before == "unfinished":
            first.plan("users", {"seed": 1}).open_writer().append(make_users("old"))
        with monkeypatch.context() as patch:
            died = die_at(patch, number, after)
            with suppress(Killed):
                job(first, {"seed": 2})
        if (manifest := looker.manifest("users")) is not None:
            assert_whole(looker, job, manifest.settings["seed"])
        job(second, {"seed": 2})
        job(first, {"seed": 2})  # the first machine is back
        assert_whole(third, job, 2)
        assert_whole(first, job, 2)
        whole = {write_in_parts: 4, write_as_files: 3}[job]  # files of a complete dataset
        copies = [files for files in superseded(third) if MANIFEST in files]
        assert bool(copies) == (before == "complete")
        assert all(len(files) == whole for files in copies)
        if before != "nothing":
            expected = {"complete": {MANIFEST}, "unfinished": {BUILDING}}[before]
            assert any(expected < files for files in superseded(third))
        if not died():
            assert number > 3
            return
    raise AssertionError("the job has no end")


def test_what_is_set_aside_leaves_no_mark_that_its_parts_could_be_taken_for_all(
    machine, monkeypatch
):
    """Without its first part the rest would be read as a beginning."""
    writer = machine("a").plan("users", {}).open_writer()
    writer.append(make_users("u1"))
    writer.append(make_users("u2"))
    deletes = 0
    for number in range(1, 8):
        with monkeypatch.context() as patch:
            die_at(patch, number, after=True)
            with suppress(Killed):
                machine("b").set_aside("users")
        stored = users_in(machine("c").plan("users", {}).open_writer().existing())
        assert stored in (["u1", "u2"], [])
        deletes += not stored
        if not stored:
            break
    assert deletes


def test_whatever_was_set_aside_is_there_in_full(machine):
    old = machine("a").plan("users", {"seed": 1})
    old.write(make_users("u1"))
    machine("b").plan("users", {"seed": 2}).write(make_users("u2"))
    assert superseded(machine("c")) == [{"part-00000.parquet", MANIFEST}]
    assert users_in(machine("a").read("users")) == ["u2"]


def test_only_what_differs_is_fetched(machine, object_store):
    machine("a").plan("users", {}).write(make_users("u1"))

    def reads():
        return [path for method, path in object_store.seen if method == "GET" and "part" in path]

    other = machine("b")
    assert not reads()
    other.read("users")
    other.read("users")
    machine("a").read("users")  # its own
    assert len(reads()) == 1
    (other.path("users") / MANIFEST).unlink()  # as if it had died before its end
    other.read("users")
    assert len(reads()) == 1


def test_many_who_want_the_same_at_once_fetch_it_once(machine, object_store):
    machine("a").plan("users", {}).write(make_users("u1"))
    object_store.seen.clear()
    store = machine("b")
    with ThreadPoolExecutor(4) as threads:
        tables = list(threads.map(store.read, ["users"] * 8))
    assert all(table == make_users("u1") for table in tables)
    assert sum(m == "GET" and "part" in path for m, path in object_store.seen) == 1


def test_a_worker_elsewhere_opens_the_run_for_itself(machine):
    machine("a").plan("users", {}).write(make_users("u1"))
    store = machine("b")
    store.files.mirror = replace(store.files.mirror, may_write=lambda: None)  # as a lease does
    local = pickle.loads(pickle.dumps(partial(store.files.local, "users")))
    assert (local() / MANIFEST).is_file()


def test_damage_is_found_when_a_dataset_is_fetched(machine):
    machine("a").plan("users", {}).write(make_users("u1"))
    machine("b").files.mirror.write("users/part-00000.parquet", b"rotten")
    with pytest.raises(DataError, match=r"run/users are not those that its manifest.json tells"):
        machine("b").read("users")
    machine("b").files.mirror.write("users/manifest.json", b"rotten")
    with pytest.raises(DataError, match=r"s3://.*/run/users/manifest.json is damaged"):
        machine("b").read("users")


class Asking(Mirror):
    """Lets something happen before each copy or behind each read of a manifest."""

    meanwhile: ClassVar[list] = []

    def copy(self, name, to):
        for act in self.meanwhile:
            act()
        super().copy(name, to)

    def read(self, name):
        data = super().read(name)
        while name.endswith(MANIFEST) and self.meanwhile:
            self.meanwhile.pop()()
        return data


def test_who_reads_a_dataset_while_it_is_set_aside_does_not_bring_it_back(
    machine, bucket, monkeypatch
):
    plan = machine("a").plan("users", {"seed": 1})
    plan.write(make_users("u1"))
    job = Store(plan.store.root, Asking(bucket, "run"))
    monkeypatch.setattr(Asking, "meanwhile", [lambda: machine("a").read("users")])
    job.set_aside("users")
    assert not job.path("users").exists()


def test_who_wants_a_dataset_that_is_set_aside_just_then_leaves_its_folder_alone(
    machine, bucket, monkeypatch
):
    """By then a job writes there."""
    machine("a").plan("users", {"seed": 1}).write(make_users("u1"))
    job = machine("b").plan("users", {"seed": 2})
    part = make_users("u2")
    written = []

    def replace_it():
        writer = job.open_writer()
        written.append(append_part(writer._folder, part, USERS, "users"))  # not uploaded yet

    monkeypatch.setattr(Asking, "meanwhile", [replace_it])
    reader = Store(machine("b").root, Asking(bucket, "run"))
    reader.files.local("users")
    assert written[0].is_file()
