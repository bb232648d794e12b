"""The files of a run, here in a local folder; `pipeline.mirrored_files` has remote ones."""

import time
from pathlib import Path

from pipeline.parts import count_rows, list_parts, write_atomically

MANIFEST = "manifest.json"
BUILDING = "building.json"  # marks an unfinished dataset and the fingerprint it is built for


class RunFiles:
    """A run in the local folder `root`; names are relative to it, with slashes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def address(self) -> str:
        """Where the run is, for people."""
        return str(self.root)

    def local(self, name: str) -> Path:
        """Folder of a complete dataset, to be read file by file."""
        return self.root / name

    def take_over(self, name: str) -> None:
        """Have what is stored of an unfinished dataset in its local folder, and nothing else."""

    def publish(self, *files: Path) -> None:
        """Keep files that have been written in the run's folder, in the order given."""

    def publish_all(self, name: str) -> None:
        """Keep all files of a complete dataset, the manifest last."""
        files = [file for file in (self.root / name).rglob("*") if file.is_file()]
        self.publish(*sorted(files, key=lambda file: (file.name == MANIFEST, file)))

    def remove(self, *files: Path) -> None:
        """Delete files of the run's folder, in the order given."""
        for file in files:
            file.unlink()

    def read(self, name: str) -> bytes | None:
        """Content of a small file; None if it is not there."""
        path = self.root / name
        return path.read_bytes() if path.is_file() else None

    def write(self, name: str, data: bytes) -> None:
        """Write a small file: the old one stays until the new one is whole."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)

    def written_at(self, name: str) -> float | None:
        """When a file was written, in seconds since 1970; None if it is not there."""
        path = self.root / name
        return path.stat().st_mtime if path.is_file() else None

    def exists(self) -> bool:
        """Whether there is such a run."""
        return self.root.is_dir()

    def has_folder(self, name: str) -> bool:
        """Whether anything was ever written under a name."""
        return (self.root / name).exists()

    def stored_rows(self, name: str) -> int | None:
        """Rows of a dataset as far as it is written; None if it was not begun."""
        folder = self.root / name
        return sum(map(count_rows, list_parts(folder))) if folder.is_dir() else None

    def set_aside(self, name: str) -> str:
        """Move what stands in a dataset's place to `superseded/`, and say where; "" if nothing."""
        folder = self.root / name
        if not folder.exists():
            return ""
        aside = self.root / aside_name(name)
        aside.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(aside)
        return str(aside)


def aside_name(name: str) -> str:
    """A new place for what is superseded, relative to its run."""
    stamp = f"{time.strftime('%Y%m%dT%H%M%S')}-{time.time_ns() % 1_000_000:06d}"
    return f"superseded/{name.replace('/', '-')}-{stamp}"
