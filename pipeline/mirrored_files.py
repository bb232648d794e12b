"""The files of a run whose artifacts are remote; the local folder is a working copy.

The remote folder is the truth: whether a dataset is complete, what is stored of an unfinished one
and what kind of run it is are asked there each time. Files go there as soon as they are written,
the manifest last, so another machine can go on at any moment; what was written here and never got
there is dropped. Engines, pools and encoders read local files, as everywhere.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from pyarrow import fs

from pipeline.errors import DataError
from pipeline.made_once import alone
from pipeline.mirror import Mirror, is_copy
from pipeline.parts import content_hash, parse_json, write_atomically
from pipeline.run_files import BUILDING, MANIFEST, RunFiles, aside_name


class MirroredFiles(RunFiles):
    """A run in the remote folder of `mirror`, with a working copy in `root`."""

    def __init__(self, root: Path, mirror: Mirror) -> None:
        super().__init__(root)
        self.mirror = mirror

    @property
    def address(self) -> str:
        """The remote folder."""
        return self.mirror.address

    def local(self, name: str) -> Path:
        """As `RunFiles.local`; fetches what is missing here or differs.

        Any number of processes may ask at once: one fetches, the others wait for it.

        Raises:
            DataError: the files are not those of the manifest, or the store cannot be asked.
        """
        if (wanted := self._missing_manifest(name)) is not None:
            with alone(self.root):
                # A job that sets the dataset aside meanwhile has the folder for what it writes.
                if (wanted := self._missing_manifest(name)) is not None:
                    self._fetch(name, wanted)
        return self.root / name

    def _missing_manifest(self, name: str) -> bytes | None:
        """The remote manifest; None if there is none, or it is here as well."""
        wanted = self.mirror.read(f"{name}/{MANIFEST}")
        return None if _content(self.root / name / MANIFEST) == wanted else wanted

    def _fetch(self, name: str, manifest: bytes) -> None:
        """Bring a complete dataset; here too its manifest comes last."""
        folder = self.root / name
        told = parse_json(manifest, f"{self.address}/{name}/{MANIFEST}").get("content")
        # Stores tell times in seconds: a file may look like the one that has taken its place.
        for _ in ("with what is here", "anew"):
            (folder / MANIFEST).unlink(missing_ok=True)
            self._bring(name, (MANIFEST, BUILDING))
            if told in ("", None, content_hash(folder, [MANIFEST, BUILDING])):
                write_atomically(folder / MANIFEST, manifest)
                return
            shutil.rmtree(folder)
        raise DataError(
            f"the files in {self.address}/{name} are not those that its {MANIFEST} tells of: "
            "another job has written it just now, or it is damaged; run again, and if that does "
            "not help, remove the folder"
        )

    def take_over(self, name: str) -> None:
        """As `RunFiles.take_over`: parts that are here only go, since others may have gone on."""
        self._bring(name, (MANIFEST,))

    def _bring(self, name: str, leave_out: tuple[str, ...]) -> None:
        """Make the local folder what the remote one is, but for some files."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        wanted: Mapping[str, fs.FileInfo] = {
            below: info for below, info in self.mirror.files(name).items() if below not in leave_out
        }
        for file in folder.rglob("*"):
            if file.is_file() and file.relative_to(folder).as_posix() not in wanted:
                file.unlink()
        for below, info in wanted.items():
            if not is_copy(folder / below, info):
                self.mirror.download(info, folder / below)

    def publish(self, *files: Path) -> None:
        """Upload files, in the order given."""
        for file in files:
            self.mirror.upload(file, self._name_of(file))

    def remove(self, *files: Path) -> None:
        """Delete files in both places."""
        for file in files:
            self.mirror.delete(self._name_of(file))
            file.unlink()

    def read(self, name: str) -> bytes | None:
        """Content of a small remote file."""
        return self.mirror.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file in both places."""
        super().write(name, data)
        self.publish(self.root / name)

    def written_at(self, name: str) -> float | None:
        """When the remote file was written, by the clock of the store."""
        info = self.mirror.info(name)
        return info.mtime_ns / 1e9 if info else None

    def exists(self) -> bool:
        """Whether there is anything in the remote folder."""
        return bool(self.mirror.files())

    def has_folder(self, name: str) -> bool:
        """Whether there is anything in a remote folder."""
        return bool(self.mirror.files(name))

    def stored_rows(self, name: str) -> int | None:
        """Rows of the parts that are there; the working copy is left alone."""
        files = self.mirror.files(name)
        parts = [info for below, info in files.items() if below.startswith("part-")]
        return sum(map(self.mirror.count_rows, parts)) if files else None

    def set_aside(self, name: str) -> str:
        """As `RunFiles.set_aside`, by copies within the store.

        Wherever it stops, nothing is lost and nothing mixed. While files are copied, the dataset
        stands as it was, and the copy has no manifest yet. Then its manifest goes, then the mark of
        an unfinished dataset: whatever is left counts as neither, and the next one who wants the
        place sets it aside as well, before writing anything. Parts go last: with the mark in place
        they would be taken for all that was stored. The working copy goes when the manifest has
        gone: before that, whoever reads the dataset here would fetch it once more.
        """
        files = self.mirror.files(name)
        aside = aside_name(name)
        ordered = sorted(files, key=lambda below: (below != MANIFEST, below != BUILDING, below))
        for below in reversed(ordered):
            self.mirror.copy(f"{name}/{below}", f"{aside}/{below}")
        marks = [below for below in ordered if below in (MANIFEST, BUILDING)]
        for below in marks:
            self.mirror.delete(f"{name}/{below}")
        with alone(self.root):  # whoever fetches it is done
            shutil.rmtree(self.root / name, ignore_errors=True)
        for below in ordered[len(marks) :]:
            self.mirror.delete(f"{name}/{below}")
        return f"{self.address}/{aside}" if files else ""

    def _name_of(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
