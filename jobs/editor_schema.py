"""The JSON Schema beside a config, by which an editor completes and checks the settings."""

import json
import os
import tempfile
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.config_schema import json_schema

NAME = "schema.json"
_MOST = 10_000_000  # bytes that are looked at


def first_line(folder: Path) -> str:
    """What a config in `folder` begins with: where its schema is, or that there is none."""
    file = folder / NAME
    if not file.exists() or _is_ours(file):
        return f"# yaml-language-server: $schema={NAME}"
    return f"# {NAME} here is another file; `laser schema --output FILE` writes one for editors"


def write_schema(folder: Path) -> None:
    """Write the schema into `folder`, unless there is a file of its name, whatever it is."""
    file = folder / NAME
    if os.path.lexists(file):
        return
    with tempfile.TemporaryDirectory(dir=folder, prefix=".laser-schema-") as aside:
        written = Path(aside) / NAME  # a cut file would pass for somebody else's
        written.write_text(json.dumps(json_schema(RunConfig), indent=2) + "\n", encoding="utf-8")
        written.replace(file)


def _is_ours(file: Path) -> bool:
    """Whether it is a schema of our configs, of this version or another one."""
    try:
        with file.open(encoding="utf-8") as stream:
            schema = json.loads(stream.read(_MOST))
    except (OSError, ValueError):
        return False
    return isinstance(schema, dict) and schema.get("title") == RunConfig.__name__
