"""The datasets of a run; with `parts`, the only reader and writer of Parquet and manifests.

A dataset is `artifacts/<run>/<name>/` with `part-*.parquet` (or other files) and `manifest.json`,
which is written last: no manifest, no dataset. A dataset is *current* while its fingerprint, a
hash of its settings, its schema version and the versions of its inputs, is the one wanted; a
version is a fingerprint and a hash of the files.
A dataset that is not current is moved to `artifacts/<run>/superseded/`, never deleted.
Of a run with remote artifacts the folder is a working copy; see `pipeline.mirrored_files`.
"""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from pipeline.errors import DataError
from pipeline.mirror import Mirror
from pipeline.mirrored_files import MirroredFiles
from pipeline.parts import (
    append_part,
    content_hash,
    count_rows,
    damaged,
    list_parts,
    parse_json,
    read_parts,
    write_atomically,
)
from pipeline.run_files import BUILDING, MANIFEST, RunFiles
from pipeline.schemas import MADE_BY, SCHEMAS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Manifest:
    """What a dataset is, and from what it was made."""

    dataset: str
    schema_version: int
    fingerprint: str
    settings: dict[str, Any]
    inputs: dict[str, str]  # dataset -> version
    num_rows: int
    facts: dict[str, Any] = field(default_factory=dict)  # small results worth reading later
    created: str = ""
    seconds: float = 0.0  # from planning to the manifest; after a kill, of the last try only
    content: str = ""  # hash of the files; "" in manifests of older programs

    @property
    def version(self) -> str:
        """What other datasets were made from: the same settings may give other rows a second time.

        Relaxed texts, for one, follow the machine's speed.
        """
        return f"{self.fingerprint}-{self.content}" if self.content else self.fingerprint


@dataclass(frozen=True)
class Plan:
    """A dataset to be made: its fingerprint, and the means to write it."""

    store: "Store"
    name: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    fingerprint: str
    began: float = field(default_factory=time.monotonic, compare=False)

    @property
    def is_done(self) -> bool:
        """Whether the dataset on disk is already the one wanted."""
        manifest = self.store.manifest(self.name)
        return manifest is not None and manifest.fingerprint == self.fingerprint

    def write(self, table: pa.Table, facts: Mapping[str, Any] | None = None) -> None:
        """Write a whole dataset at once, atomically."""
        writer = self.open_writer()
        writer.clear()
        writer.append(table)
        writer.finish(facts)

    def write_files(
        self,
        fill: Callable[[Path], None],
        num_rows: int,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Let `fill` write any files into a temporary folder that then becomes the dataset."""
        target = self.store.path(self.name)
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        fill(temporary)
        self._write_manifest(temporary, num_rows, facts)
        self.store.set_aside(self.name)
        temporary.rename(target)
        self.store.files.publish_all(self.name)

    def write_json(self, file: str, result: Mapping[str, Any], num_rows: int) -> None:
        """Write a dataset that is one JSON object, which is its facts as well."""
        text = json.dumps(result, indent=2)
        self.write_files(
            lambda folder: write_atomically(folder / file, text.encode()), num_rows, result
        )

    def open_writer(self) -> "DatasetWriter":
        """Write part by part; parts that an interrupted run left are kept and can be read."""
        return DatasetWriter(self)

    def _write_manifest(self, folder: Path, num_rows: int, facts: Mapping[str, Any] | None) -> None:
        manifest = Manifest(
            self.name,
            _schema_version(self.name),
            self.fingerprint,
            self.settings,
            self.inputs,
            num_rows,
            dict(facts or {}),
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            round(time.monotonic() - self.began, 1),
            content_hash(folder, [MANIFEST, BUILDING]),
        )
        write_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=2).encode())


class DatasetWriter:
    """Appends parts to a dataset; each part is complete or absent, the manifest comes last."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._folder = plan.store.path(plan.name)
        self._schema = SCHEMAS[_table_of(plan.name)][0]
        self._files = plan.store.files
        if self._building_for() != plan.fingerprint:
            plan.store.set_aside(plan.name)
            marker = json.dumps({"fingerprint": plan.fingerprint}).encode()
            self._files.write(f"{plan.name}/{BUILDING}", marker)
        else:
            self._files.take_over(plan.name)

    def _building_for(self) -> str | None:
        marker = self._files.read(f"{self._plan.name}/{BUILDING}")
        where = f"{self._files.address}/{self._plan.name}/{BUILDING}"
        return None if marker is None else parse_json(marker, where).get("fingerprint")

    def clear(self) -> None:
        """Drop the parts of an interrupted run."""
        self._files.remove(*self.parts())

    def existing(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows that are already stored, with all columns or those named."""
        return read_parts(self.parts(), self._schema, columns)

    def append(self, table: pa.Table) -> None:
        """Store `table` as the next part."""
        self._files.publish(append_part(self._folder, table, self._schema, self._plan.name))

    def finish(self, facts: Mapping[str, Any] | None = None, num_rows: int | None = None) -> None:
        """Declare the dataset complete; its rows are those of its parts, unless told."""
        rows = sum(count_rows(part) for part in self.parts()) if num_rows is None else num_rows
        self._plan._write_manifest(self._folder, rows, facts)
        self._files.publish(self._folder / MANIFEST)
        self._files.remove(self._folder / BUILDING)

    def parts(self) -> list[Path]:
        """Files that are already stored."""
        return list_parts(self._folder)


class Store:
    """The datasets of one run."""

    def __init__(self, root: Path, mirror: Mirror | None = None) -> None:
        """`root` is the run's folder, or a working copy of the remote one that `mirror` opens."""
        self.root = root
        self.files = MirroredFiles(root, mirror) if mirror else RunFiles(root)

    def path(self, name: str) -> Path:
        """Folder that a dataset is written in; `files.local` makes sure of what is read."""
        return self.root / name

    def plan(
        self, name: str, settings: Mapping[str, BaseModel | Any], inputs: Sequence[str] = ()
    ) -> Plan:
        """Fix what a dataset depends on.

        Raises:
            DataError: an input has not been made yet.
        """
        plain = {key: _plain(value) for key, value in settings.items()}
        prints = {source: self.require(source).version for source in inputs}
        print_ = fingerprint([name, _schema_version(name), plain, prints])
        return Plan(self, name, plain, prints, print_)

    def manifest(self, name: str) -> Manifest | None:
        """The manifest of a complete dataset, else None."""
        data, path = (
            self.files.read(f"{name}/{MANIFEST}"),
            f"{self.files.address}/{name}/{MANIFEST}",
        )
        if data is None:
            return None
        try:
            return Manifest(**parse_json(data, path))
        except TypeError as error:
            raise damaged(path, error) from error

    def is_consistent(self, name: str) -> bool:
        """Whether a dataset is complete and was made from what its inputs are now."""
        manifest = self.manifest(name)
        return manifest is not None and all(
            (source := self.manifest(used)) is not None and source.version == print_
            for used, print_ in manifest.inputs.items()
        )

    def require(self, name: str) -> Manifest:
        """The manifest of a dataset that must be complete.

        Raises:
            DataError: it is not; the message says how to make it.
        """
        manifest = self.manifest(name)
        if manifest is None:
            command = MADE_BY.get(name.rpartition("/")[2])
            remedy = f"run `laser {command}`" if command else "run the job that writes it"
            raise DataError(
                f"{self.files.address}/{name} has not been made (or not finished); {remedy}"
            )
        return manifest

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a complete dataset, in the order written, with all columns or those named.

        Raises:
            DataError: the dataset is missing, damaged, or of another schema version.
        """
        manifest = self._require_readable(name)
        schema = SCHEMAS[_table_of(name)][0]
        table = read_parts(list_parts(self.files.local(name)), schema, columns)
        if table.num_rows != manifest.num_rows:
            raise DataError(
                f"{self.files.address}/{name} holds {table.num_rows} rows, its manifest says "
                f"{manifest.num_rows}: a part was lost or added; move the folder away and run again"
            )
        return table

    def parts(self, name: str) -> list[Path]:
        """The files of a complete dataset, for who cannot hold all of its rows.

        Raises:
            DataError: the dataset is missing or of another schema version.
        """
        self._require_readable(name)
        return list_parts(self.files.local(name))

    def _require_readable(self, name: str) -> Manifest:
        manifest = self.require(name)
        version = SCHEMAS[_table_of(name)][1]
        if manifest.schema_version != version:
            raise DataError(
                f"{self.files.address}/{name} has schema version {manifest.schema_version}, this "
                f"program reads {version}; run its job again, which moves the old one to "
                "superseded/, or set another `run` name"
            )
        return manifest

    def set_aside(self, name: str, why: str = "was made with other settings or inputs") -> None:
        """Move whatever stands in a dataset's place to `superseded/`; say so, and why."""
        if aside := self.files.set_aside(name):
            inside = aside.removeprefix(f"{self.files.address}/")  # a path may be long
            log.info("%s %s; moved to %s", name, why, inside)


def fingerprint(value: Any) -> str:
    """A short stable hash of any JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _table_of(name: str) -> str:
    """`waves/2/knowledge` is a `knowledge` table."""
    return name.rpartition("/")[2]


def _schema_version(name: str) -> int:
    return SCHEMAS[_table_of(name)][1] if _table_of(name) in SCHEMAS else 1


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
