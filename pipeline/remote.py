"""Opens what a URI names, and says in our words what went wrong there.

Keys come from the environment or from AWS's own files, never from a URI. Requests are repeated by
the AWS SDK (`_ATTEMPTS`, with growing pauses) or by pyarrow's client of the store.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from pipeline.errors import ConfigError, DataError, UserError, is_no_room

OBJECT_STORES = ("s3", "gcs", "abfs")  # as pyarrow calls them: no folders, and a put is atomic

_ATTEMPTS = 4
_CONNECT_TIMEOUT = 3.0  # s
_PATIENCE = "retry_limit_seconds"  # option of pyarrow's for GCS
_S3_OPTIONS = ("region", "scheme", "endpoint_override")
# Any of these names a source of credentials, though not that it holds some.
_AWS_SOURCES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_AWS_ERROR = re.compile(r"AWS Error (\w+)")
_REMEDIES = {
    "NO_SUCH_BUCKET": "there is no such bucket; correct the URI, or make the bucket",
    "ACCESS_DENIED": "access is denied; the key is wrong, or has no right to list, read, write and "
    "delete there; on a machine of Amazon's that has a role, set AWS_EC2_METADATA_DISABLED=false",
    "INVALID_ACCESS_KEY_ID": "the store does not know the key in AWS_ACCESS_KEY_ID; correct it",
    "SIGNATURE_DOES_NOT_MATCH": "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID; "
    "correct it",
    "EXPIRED_TOKEN": "the credentials have expired; renew them",
    "NETWORK_CONNECTION": "the store cannot be reached; check the network, AWS_ENDPOINT_URL and "
    "AWS_REGION",
    "SLOW_DOWN": f"the store asks to slow down, after {_ATTEMPTS} attempts; run again later",
    "SERVICE_UNAVAILABLE": f"the store is out of service, after {_ATTEMPTS} attempts; run again "
    "later",
}


def open_location(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system that a URI names, and the path in it.

    Raises:
        ConfigError: no credentials, or an option that a URI cannot have.
        DataError: the store cannot be asked.
    """
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    if parts.scheme != "s3":
        if parts.scheme in ("gs", "gcs") and _PATIENCE not in options:  # it would try for minutes
            uri += f"{'&' if parts.query else '?'}{_PATIENCE}=30"
        with explained(uri):
            return _by_pyarrow(uri)
    for name in options:
        if name not in _S3_OPTIONS:
            raise ConfigError(f"{uri}: unknown option {name}; use {', '.join(_S3_OPTIONS)}")
    _require_aws_credentials(uri)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    scheme, _, host = endpoint.rpartition("://")
    place = {
        "scheme": options.get("scheme") or scheme or "https",
        "endpoint_override": options.get("endpoint_override") or host.rstrip("/"),
        "region": options.get("region") or _region(parts.netloc, bool(host), uri),
    }
    key = os.environ.get("AWS_ACCESS_KEY_ID", "")
    return _s3(key, **place), unquote(f"{parts.netloc}{parts.path}").rstrip("/")


def is_object_store(filesystem: fs.FileSystem) -> bool:
    """Whether a file is there as a whole or not at all, and folders are names only."""
    return filesystem.type_name in OBJECT_STORES


@contextmanager
def explained(place: str) -> Iterator[None]:
    """Turn the errors of pyarrow and AWS into ours, but for two.

    A file that is not there stays what it is; a full disk is this machine's, and stays an OSError.

    Raises:
        DataError: naming `place`, the reason and the remedy.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and is_no_room(error):
            raise OSError(error.errno, f"no room here for {place} ({error.strerror})") from error
        raise _explanation(place, str(error)) from error


def _explanation(place: str, message: str) -> UserError:
    found = _AWS_ERROR.search(message)
    # The SDK names some errors itself, and quotes the store's own name of the others.
    names = {name.replace("_", "").lower(): remedy for name, remedy in _REMEDIES.items()}
    if found and found[1] in _REMEDIES:
        return DataError(f"{place}: {_REMEDIES[found[1]]} ({message})")
    told = message.replace("_", "").lower()
    remedy = next((text for name, text in names.items() if name in told), None)
    return DataError(f"{place}: {remedy or 'it cannot be read or written'} ({message})")


@cache
def _s3(key: str, scheme: str, endpoint_override: str, region: str) -> fs.FileSystem:
    """One client for all that ask alike; `key` only tells clients of other keys apart."""
    return fs.S3FileSystem(
        scheme=scheme,
        endpoint_override=endpoint_override or None,
        region=region,
        connect_timeout=_CONNECT_TIMEOUT,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


def _region(bucket: str, has_endpoint: bool, uri: str) -> str:
    """The configured region; else AWS is asked where the bucket is."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region or has_endpoint:
        return region or "us-east-1"
    with explained(uri):
        return fs.resolve_s3_region(bucket)


@cache
def _by_pyarrow(uri: str) -> tuple[fs.FileSystem, str]:
    return fs.FileSystem.from_uri(uri)


def _require_aws_credentials(uri: str) -> None:
    """Fail at once, where the SDK would ask a metadata service for half a minute, or sign nothing.

    On a machine of Amazon's that has a role, AWS_EC2_METADATA_DISABLED=false says to ask.
    """
    environment: Mapping[str, str] = os.environ
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    asks = environment["AWS_EC2_METADATA_DISABLED"].lower() == "false"
    files = (
        environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        environment.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    has_key = environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY")
    if has_key or asks or any(environment.get(name) for name in _AWS_SOURCES):
        return
    if not any(Path(file).expanduser().is_file() for file in files):
        raise ConfigError(
            f"{uri}: there are no AWS credentials; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials, or set "
            "AWS_EC2_METADATA_DISABLED=false on a machine of Amazon's that has a role"
        )
