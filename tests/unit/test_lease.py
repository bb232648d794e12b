"""One job at a time writes a remote run, on whatever machine."""

import errno
import json
import time
from contextlib import suppress

import pytest

from jobs import lease as lease_module
from jobs.lease import LEASE, holder, leased
from pipeline.errors import ConfigError, DataError
from pipeline.mirror import Mirror
from pipeline.store import Store


@pytest.fixture
def machine(bucket, tmp_path, monkeypatch):
    """The store of a run on a machine by name."""
    monkeypatch.setattr(lease_module, "_SETTLE", 0.0)
    return lambda name: Store(tmp_path / name, Mirror(bucket, "run"))


@pytest.fixture
def often(monkeypatch):
    """Leases are renewed often, and run out after so many seconds."""

    def renew(period, seconds):
        monkeypatch.setattr(lease_module, "PERIOD", period)
        monkeypatch.setattr(lease_module, "_PATIENCE", seconds / period)

    return renew


def stored(store):
    return lease_module._read(store.files.mirror)


def someone(renewed_at, token="theirs"):
    lease = {"host": "far", "pid": 7, "token": token, "renewed_at": renewed_at}
    return json.dumps(lease).encode()


def wait_until(condition):
    end = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_second_job_is_told_who_writes_the_run(machine):
    with leased(machine("a")):
        first = stored(machine("a"))
        with pytest.raises(DataError, match=rf"run is being written .*\(process {first['pid']} on"):
            leased(machine("b")).__enter__()
        assert str(first["pid"]) in holder(machine("b"))
    assert holder(machine("b")) is None
    assert machine("b").files.read(LEASE) is None
    with leased(machine("b")):
        pass


def test_a_lease_is_renewed_while_the_job_lives(machine, often):
    often(0.1, 2.0)
    with leased(machine("a")):
        first = stored(machine("a"))
        wait_until(lambda: stored(machine("a"))["renewed_at"] > first["renewed_at"] + 2.1)
        with pytest.raises(DataError, match="being written"):
            leased(machine("b")).__enter__()


def test_the_lease_of_a_job_that_died_is_taken(machine):
    store = machine("a")
    store.files.mirror.write(LEASE, someone(time.time() - 50))
    with pytest.raises(DataError, match="process 7 on far"):
        leased(store).__enter__()
    store.files.mirror.write(LEASE, someone(time.time() - 61))
    with leased(store):
        assert stored(store)["token"] != "theirs"


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"host": 1}', b"\xff"])
def test_a_damaged_lease_is_nobodys(machine, damage):
    store = machine("a")
    store.files.mirror.write(LEASE, damage)
    with leased(store):
        assert stored(store)["pid"]


def test_a_lease_that_is_read_while_it_is_renewed_is_read_again(machine, monkeypatch):
    store = machine("a")
    store.files.mirror.write(LEASE, someone(time.time()))
    real, torn = Mirror.read, iter([b'{"host": "fa', b"{}"])
    monkeypatch.setattr(Mirror, "read", lambda mirror, name: next(torn, None) or real(mirror, name))
    with pytest.raises(DataError, match="process 7 on far"):
        leased(store).__enter__()


@pytest.mark.parametrize("successor", [someone(9e9), None])
def test_a_job_that_lost_its_lease_writes_nothing_more(machine, often, successor):
    often(0.1, 20.0)
    store, other = machine("a"), machine("b").files.mirror
    with leased(store):
        store.files.write("run.json", b"{}")

        def usurp():  # again where it met a renewal half-way
            if successor:
                other.write(LEASE, successor)
            else:
                other.delete(LEASE)

        who = "process 7 on far" if successor else "whoever has removed lock.json"

        wait_until(lambda: usurp() or not may_write(store))
        with pytest.raises(DataError, match=rf"was lost to {who}; nothing more is written"):
            store.files.write("run.json", b"{ }")
        for action in (
            lambda: store.files.mirror.copy("run.json", "other.json"),
            lambda: store.files.mirror.delete("run.json"),
        ):
            with pytest.raises(DataError, match="was lost to"):
                action()
    assert other.read(LEASE) == successor  # it is not ours to give back


def test_of_two_that_take_a_lease_at_once_the_later_one_has_it(machine, monkeypatch):
    store = machine("a")
    monkeypatch.setattr(
        lease_module.time, "sleep", lambda _: store.files.mirror.write(LEASE, someone(time.time()))
    )
    with pytest.raises(DataError, match="process 7 on far"):
        leased(store).__enter__()
    assert stored(store)["token"] == "theirs"


def test_a_job_that_cannot_renew_for_long_stops_writing(machine, often, object_store):
    often(0.2, 0.6)
    store = machine("a")
    with leased(store):
        object_store.trouble = lambda method, path, _: (
            (403, "AccessDenied") if LEASE in path else None
        )
        wait_until(lambda: not may_write(store))
        with pytest.raises(DataError, match="since it could not be renewed"):
            store.files.write("run.json", b"{}")
        object_store.trouble = lambda *_: None
        wait_until(lambda: may_write(store))  # nobody has taken it: it is ours again


def test_a_full_disk_ends_no_renewals(machine, often, monkeypatch):
    often(0.1, 20.0)
    real, troubles = Mirror.write, [OSError(errno.ENOSPC, "full"), ConfigError("no key")]

    def troubled(mirror, name, data):
        if troubles:
            raise troubles.pop()
        real(mirror, name, data)

    with leased(machine("a")):
        first = stored(machine("a"))
        monkeypatch.setattr(Mirror, "write", troubled)
        wait_until(lambda: stored(machine("a"))["renewed_at"] > first["renewed_at"])
        assert not troubles


@pytest.fixture
def paused(machine, monkeypatch):
    """A held lease, and how to let its job sleep for two minutes behind a call."""
    lease, slept = lease_module._Lease(machine("a").files.mirror), [0.0]
    monkeypatch.setattr(lease_module, "_now", lambda: 1000.0 + slept[0])
    lease.take()

    def sleep_in(place, name, meanwhile):
        real, left = getattr(place, name), [1]

        def sleeping(*arguments):
            answer = real(*arguments)
            if left:
                left.clear()
                slept[0] += 120
                meanwhile()
            return answer

        monkeypatch.setattr(place, name, sleeping)

    return lease, sleep_in


def test_a_job_that_slept_while_it_renewed_leaves_the_lease_to_who_has_it_by_now(paused):
    lease, sleep_in = paused
    sleep_in(lease_module, "_read", lambda: lease.mirror.write(LEASE, someone(time.time())))
    lease.renew()
    assert lease_module._read(lease.mirror)["token"] == "theirs"
    with pytest.raises(DataError, match="was lost to whoever wants it"):
        lease.require()
    lease.renew()
    with pytest.raises(DataError, match="was lost to process 7 on far"):
        lease.require()


def test_a_job_that_slept_and_finds_its_lease_takes_it_as_if_it_were_new(paused, monkeypatch):
    """So it writes nothing before it has read the lease back: another may be taking it."""
    lease, sleep_in = paused
    sleep_in(lease_module, "_read", lambda: None)
    may_write = []

    def settle(seconds):
        with suppress(DataError):
            lease.require()
            may_write.append(seconds)

    monkeypatch.setattr(lease_module.time, "sleep", settle)
    lease.renew()
    assert not may_write
    lease.require()


def test_a_renewal_that_came_too_late_does_not_count(paused):
    lease, sleep_in = paused
    sleep_in(Mirror, "write", lambda: None)
    lease.renew()
    with pytest.raises(DataError, match="since it could not be renewed"):
        lease.require()
    lease.renew()
    lease.require()


def may_write(store):
    try:
        store.files.write("run.json", b"{}")
    except DataError:
        return False
    return True


def test_a_local_run_needs_no_lease(tmp_path):
    with leased(Store(tmp_path)):
        assert not list(tmp_path.iterdir())
