"""What must hold of a run that was disturbed: it is the run that nobody disturbed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.errors import DataError
from pipeline.parts import list_parts
from pipeline.store import Store

Entity = tuple[str, str]  # kind, id
Parts = Mapping[Path, tuple[int, int]]  # part -> size and time of its last change
_NAMED = 3  # entities or files in one complaint


def broken(calm: Store, disturbed: Store) -> list[str]:
    """What does not hold of the knowledge of `disturbed`, [] if all does.

    Both runs must be of one config under the strict rule, where the text of an entity is the same
    whatever was drafted and in whatever order.
    """
    try:
        wanted, found = (_texts(store) for store in (calm, disturbed))
    except DataError as error:
        return [str(error)]
    return [
        *_unlike(dict(wanted), found),
        *_complaint("files left over", map(str, leftovers(disturbed.root))),
    ]


def leftovers(root: Path) -> list[Path]:
    """Files and folders that a finished run has no use for."""
    return sorted(
        path.relative_to(root)
        for path in root.rglob("*")
        if path.name.startswith(".") or path.suffix == ".tmp" or path.name == "building.json"
    )


def stored_parts(store: Store) -> Parts:
    """The parts of knowledge that stand in the folder of a run."""
    folders = [*store.root.glob("waves/*/knowledge"), store.path("knowledge")]
    parts = [part for folder in folders for part in list_parts(folder)]
    return {part: (part.stat().st_size, part.stat().st_mtime_ns) for part in parts}


def rewritten(before: Parts, after: Parts) -> list[str]:
    """Parts that were stored and are not there any more as they were."""
    changed = [part for part, state in before.items() if after.get(part) != state]
    return _complaint("parts written again", map(str, changed))


def _texts(store: Store) -> Sequence[tuple[Entity, tuple[list[int], str]]]:
    """Entity, token ids and error of every row."""
    rows = store.read("knowledge").select(["kind", "entity_id", "token_ids", "error"])
    return [
        ((row["kind"], row["entity_id"]), (row["token_ids"], row["error"]))
        for row in rows.to_pylist()
    ]


def _unlike(
    wanted: Mapping[Entity, tuple[list[int], str]],
    found: Sequence[tuple[Entity, tuple[list[int], str]]],
) -> list[str]:
    counts = Counter(entity for entity, _ in found)
    return [
        *_complaint("rows missing", (_name(one) for one in wanted if one not in counts)),
        *_complaint("rows twice", (_name(one) for one, times in counts.items() if times > 1)),
        *_complaint("rows nobody asked for", (_name(one) for one in counts if one not in wanted)),
        *_complaint(
            "rows unlike the undisturbed run's",
            (_name(one) for one, row in found if one in wanted and wanted[one] != row),
        ),
    ]


def _name(entity: Entity) -> str:
    return " ".join(entity)


def _complaint(what: str, names: Iterator[str]) -> list[str]:
    """No complaint, or one: how many, and the first of them."""
    listed = list(names)
    if not listed:
        return []
    more = ", ..." if len(listed) > _NAMED else ""
    return [f"{len(listed)} {what} ({', '.join(listed[:_NAMED])}{more})"]
