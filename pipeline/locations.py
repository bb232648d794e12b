"""Where things lie: a local path, or a URI of an object store.

Looks at the text of a setting only; `pipeline.remote` opens what it names.
"""

import re
from pathlib import Path
from typing import Annotated, Any, TypeGuard
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, PlainSerializer, PlainValidator

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")

_URI = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET_NAME = re.compile(r"key|secret|token|password|credential|sig", re.IGNORECASE)
_USER = re.compile(r"(\w://)[^\s'\"]*@")
_SECRET = re.compile(rf"([?&][\w.-]*(?:{_SECRET_NAME.pattern})[\w.-]*=)[^&\s'\"]*", re.IGNORECASE)


def is_remote(location: Path | str) -> TypeGuard[str]:
    """Whether a location is a URI to be opened by `pipeline.remote`."""
    return isinstance(location, str) and _URI.match(location) is not None


def parse_location(value: Any) -> Path | str:
    """A local path, also where it is written as `file:///x`; or a URI without an end slash.

    Raises:
        ValueError: the scheme is unknown, or the URI carries a secret, has no bucket or holds a #.
    """
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise ValueError("Input should be a path or a URI")
    if not is_remote(value):
        return Path(value)
    parts = urlsplit(value)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if parts.scheme not in SCHEMES:
        raise ValueError(
            f"the scheme {parts.scheme}:// is unknown; give a local path, or one of "
            + ", ".join(f"{scheme}://" for scheme in SCHEMES)
        )
    _require_no_secret(value)
    if "#" in value:  # whatever parses it would leave out what follows
        raise ValueError("the URI holds a #, which would end it; write %23 instead")
    if not parts.netloc:
        raise ValueError("the URI names no bucket; write it as scheme://bucket/folder")
    bare, mark, query = value.partition("?")
    return bare.rstrip("/") + mark + query


def without_secrets(text: str) -> str:
    """`text` with whatever a URI in it holds before an `@` or as a secret's value left out."""
    return _SECRET.sub(r"\1...", _USER.sub(r"\1...@", text))


def without_password(uri: str | None) -> str | None:
    """The URI of a tracking server, as it is.

    Raises:
        ValueError: it carries a secret, which would stand in logs and in the config that is logged.
    """
    if uri is not None and without_secrets(uri) != uri:
        raise ValueError(
            "the URI carries a password; put it into the environment (MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN)"
        )
    return uri


def _require_no_secret(uri: str) -> None:
    """A URI stands in logs and manifests, so it must not be a secret."""
    parts = urlsplit(uri)
    rest = uri.partition("://")[2]
    # A secret may hold a slash, which ends the host. The id of an S3 key may stand alone, and holds
    # none: without a colon, an @ behind a slash is part of a name.
    has_secret = ":" in rest.rpartition("@")[0]
    if has_secret or (parts.scheme == "s3" and "@" in rest.partition("/")[0]):
        raise ValueError(
            "the URI carries a key; put it into the environment (S3: AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY), where no log or manifest repeats it"
        )
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if _SECRET_NAME.search(name):
            raise ValueError(f"the URI carries the secret {name}; put it into the environment")


def _parse_model(value: str) -> str:
    """A model is a hub name, a folder or a URI; all of them are text."""
    return str(parse_location(value)) if _URI.match(value) else value


def _parse_local(value: Any) -> Path:
    """A path of this machine."""
    location = parse_location(value)
    if isinstance(location, str):
        raise ValueError("Input should be a folder of this machine, not a URI")
    return location


LocalFolder = Annotated[Path, PlainValidator(_parse_local), PlainSerializer(str)]
Location = Annotated[Path | str, PlainValidator(parse_location), PlainSerializer(str)]
ModelLocation = Annotated[str, AfterValidator(_parse_model)]
