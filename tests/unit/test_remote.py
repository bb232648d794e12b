"""Object stores: what goes wrong is named at once, and passing trouble is waited out."""

import errno
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import fs

from pipeline import mirror as mirror_module
from pipeline.errors import ConfigError, DataError
from pipeline.mirror import Mirror


def failure(action, kind):
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        action()
    assert time.monotonic() - began < 10.0
    return str(caught.value)


def test_what_is_written_is_read_listed_copied_and_deleted(bucket, tmp_path):
    mirror = Mirror(f"{bucket}/deep", "run")
    assert mirror.files() == {}
    assert mirror.read("a/b.json") is None
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    mirror.upload(tmp_path / "file", "a/file")
    mirror.write("a/b.json", b"{}")
    mirror.copy("a/file", "c/file")
    assert {name: info.size for name, info in mirror.files().items()} == {
        "a/b.json": 2,
        "a/file": 100_000,
        "c/file": 100_000,
    }
    assert list(mirror.files("a")) == ["b.json", "file"]
    mirror.download(mirror.files("c")["file"], tmp_path / "deep" / "back")
    assert (tmp_path / "deep" / "back").read_bytes() == (tmp_path / "file").read_bytes()
    mirror.delete("a/file")
    mirror.delete("a/file")  # it is gone already
    assert list(mirror.files()) == ["a/b.json", "c/file"]
    assert Mirror(f"{bucket}/deep").folders() == ["run"]
    assert mirror.address == f"{bucket}/deep/run"


def test_a_download_that_is_cut_short_leaves_no_file(bucket, tmp_path, monkeypatch):
    Mirror(bucket).write("a", b"whole")
    info = Mirror(bucket).files()["a"]
    target = tmp_path / "a"

    def cut_short(source, path, filesystem, to):
        Path(to).write_bytes(b"who")

    monkeypatch.setattr(mirror_module, "_copy", cut_short)
    message = failure(lambda: Mirror(bucket).download(info, target), DataError)
    assert "has another size than it had just now; run again" in message
    assert not target.exists()


def test_a_store_that_is_busy_is_asked_again(bucket, object_store):
    answers = iter([(503, "SlowDown"), (503, "SlowDown")])
    object_store.trouble = lambda *_: next(answers, None)
    Mirror(bucket).write("a", b"1")
    answers = iter([(500, "InternalError"), (503, "ServiceUnavailable")])
    assert Mirror(bucket).read("a") == b"1"
    assert next(answers, None) is None


def test_a_store_that_stays_busy_is_an_error_that_says_so(bucket, object_store):
    object_store.trouble = lambda *_: (503, "SlowDown")
    message = failure(lambda: Mirror(bucket).write("a", b"1"), DataError)
    assert f"{bucket}/a: the store asks to slow down, after 4 attempts" in message
    assert len(object_store.seen) == 4


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_missing_credentials_are_named_before_anything_is_asked(
    bucket, object_store, monkeypatch, missing
):
    monkeypatch.delenv(missing)
    message = failure(lambda: Mirror(bucket).files(), ConfigError)
    assert f"{bucket}: there are no AWS credentials; set AWS_ACCESS_KEY_ID" in message
    assert not object_store.seen


def test_credentials_may_stand_in_the_file_of_aws(bucket, object_store, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = AKIAFROMFILE\naws_secret_access_key = word\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    signers = set()
    object_store.trouble = lambda method, path, signer: signers.add(signer)
    Mirror(bucket).write("a", b"1")
    assert signers == {"AKIAFROMFILE"}


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("InvalidAccessKeyId", "the store does not know the key in AWS_ACCESS_KEY_ID"),
        ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID"),
        ("AccessDenied", r"has no right .*, set AWS_EC2_METADATA_DISABLED=false"),
        ("ExpiredToken", "the credentials have expired; renew them"),
    ],
)
def test_credentials_that_are_refused_are_named(bucket, object_store, code, remedy):
    object_store.trouble = lambda *_: (403, code)
    for action in (lambda: Mirror(bucket).files(), lambda: Mirror(bucket).write("a", b"1")):
        message = failure(action, DataError)
        assert re.search(remedy, message)
        assert "very/secret+word" not in message


def test_a_bucket_that_is_not_there_is_named(bucket):
    for action in (
        lambda: Mirror("s3://no-such-shop/a").files(),
        lambda: Mirror("s3://no-such-shop/a").write("b", b"1"),
    ):
        assert "s3://no-such-shop/a" in (message := failure(action, DataError))
        assert "there is no such bucket; correct the URI, or make the bucket" in message


def test_a_store_that_cannot_be_reached_is_named(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    message = failure(lambda: Mirror(bucket).files(), DataError)
    assert "the store cannot be reached; check the network, AWS_ENDPOINT_URL" in message


def test_endpoint_and_region_may_stand_in_the_uri(bucket, object_store, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    host = object_store.endpoint.removeprefix("http://")
    uri = f"{bucket}/a?endpoint_override={host}&scheme=http&region=eu-west-1"
    Mirror(uri, "run").write("b", b"1")
    assert Mirror(uri, "run").read("b") == b"1"
    assert object_store.written() == ["a/run/b"]
    message = failure(lambda: Mirror(f"{bucket}?colour=red").files(), ConfigError)
    assert "unknown option colour; use region, scheme, endpoint_override" in message


def test_a_full_disk_of_this_machine_is_not_blamed_on_the_store(bucket, tmp_path, monkeypatch):
    def full(source, path, target, to):
        Path(to).write_bytes(b"")
        raise OSError(errno.ENOSPC, "No space left on device")

    Mirror(bucket).write("a", b"1")
    info = Mirror(bucket).files()["a"]
    monkeypatch.setattr(mirror_module, "_copy", full)
    with pytest.raises(OSError, match=r"no room here for s3://.*/a \(No space left") as caught:
        Mirror(bucket).download(info, tmp_path / "here" / "a")
    assert caught.value.errno == errno.ENOSPC
    assert not list((tmp_path / "here").iterdir())


def test_a_name_that_leads_out_of_its_folder_is_refused(bucket, monkeypatch):
    class Lying:
        def get_file_info(self, selector):
            path = f"{selector.base_dir}/../../x"
            return [SimpleNamespace(path=path, type=fs.FileType.File)]

    monkeypatch.setattr(Mirror, "_open", lambda mirror, name: (Lying(), "shop/a"))
    assert "leads out of its folder; remove it" in failure(Mirror(bucket).files, DataError)
