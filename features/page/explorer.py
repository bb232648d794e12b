"""The texts of a run for the page's explorer: packed small, unpacked by the reader's browser.

The page holds them as base64 of gzipped JSON, so no text of a catalog is ever part of the markup.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.formats import clipped
from features.page.asked import Asked, asked_of
from features.page.pieces import Decode, Piece, Splitter, origin_of
from pipeline.half_characters import without_half_character
from pipeline.prompts import Prompts
from pipeline.row_batches import Batches, rows_among
from pipeline.schemas import KINDS, SOURCES

ORIGINS = "token_origins"  # column of KNOWLEDGE
COLUMNS = (
    *("kind", "entity_id", "group_id", "wave", "rule", "finish_reason", "text", "token_ids"),
    *("forward_passes", "relaxed_tokens", "relaxed_cost", "error", "prompt_hash"),
)
# Ids of users and of items -> what makes their prompts; None if nothing can.
PromptsOf = Callable[[pa.Array, pa.Array], Prompts | None]
_MOST_ROWS = 10_000
_MOST_CHARACTERS = 20_000_000  # of all texts: some ten megabytes of page
_SOURCE_NAMES = {
    "previous": "earlier text",
    "own": "own prompt and text",
    "group": "pool of the group",
    "global": "pool of all",
    "model": "draft model",
}
_FIRST = 48  # "0": a small number n is the character 48 + n


@dataclass(frozen=True)
class Explorer:
    """What the page is told of the texts; `data` is base64 of gzipped JSON."""

    data: str
    rows: int
    of_rows: int
    failed: int
    of_failed: int
    has_origins: bool
    has_prompts: bool = False  # or, of each text, why its prompt is not there
    asked: int = 0  # texts whose prompt stands beside them

    @property
    def is_sample(self) -> bool:
        """Whether some texts were left out."""
        return self.rows < self.of_rows


def pack(
    knowledge: Batches,
    items: pa.Table,
    decode: Decode | None,
    most_rows: int = _MOST_ROWS,
    prompts_of: PromptsOf | None = None,
) -> Explorer:
    """The texts of a run; of a large one evenly spaced rows that failed, and that did not.

    Args:
        knowledge: reads KNOWLEDGE; in memory are a few of its rows, and those that are shown.
        items: ITEMS, for the titles.
        decode: turns token ids into text; None if nobody can, then no token has a colour.
        most_rows: of the explorer.
        prompts_of: for the entities shown; None if nobody makes prompts, then no text has one.
    """
    is_failed, most = _looked_over(knowledge, most_rows)
    rows = _chosen(is_failed, most)
    chosen = rows_among(knowledge([*COLUMNS, ORIGINS]), rows)
    splitter = Splitter(decode) if decode is not None else None
    columns: dict[str, list[Any]] = {name: [] for name in ("text", "lengths", "origins")}
    for batch in chosen.to_batches(max_chunksize=1000):
        for row in batch.to_pylist():
            for name, value in zip(columns, _pieces_of(row, splitter), strict=True):
                columns[name].append(value)
    asked = _asked(chosen, prompts_of)
    packed = {
        "sources": [[name, _SOURCE_NAMES.get(name, name)] for name in SOURCES],
        "columns": _described(chosen, items) | columns | _reasons(asked),
        "lines": asked.lines,
    }
    text = json.dumps(packed, ensure_ascii=False, separators=(",", ":"))
    data = gzip.compress(text.encode("utf-8", "replace"), compresslevel=6, mtime=0)
    return Explorer(
        base64.b64encode(data).decode(),
        len(rows),
        len(is_failed),
        int(is_failed[rows].sum()),
        int(is_failed.sum()),
        has_origins=any(columns["origins"]),
        has_prompts=bool(asked.prompts),
        asked=asked.why_not.count(""),
    )


def _asked(chosen: pa.Table, prompts_of: PromptsOf | None) -> Asked:
    """What was asked, if anybody can make it again."""
    if prompts_of is None:
        return Asked()
    users, items = (
        chosen.filter(pc.equal(chosen["kind"], kind))["entity_id"].combine_chunks()
        for kind in KINDS
    )
    prompts = prompts_of(users, items)
    return Asked() if prompts is None else asked_of(chosen, prompts)


def _reasons(asked: Asked) -> dict[str, Any]:
    return {"asked": asked.prompts, "unasked": _indexed(asked.why_not)}


def _looked_over(knowledge: Batches, most_rows: int) -> tuple[np.ndarray, int]:
    """Which rows failed, (rows,) bool, and how many of all can be shown."""
    failed, characters = [], 0
    for batch in knowledge(["error", "text"]):
        failed.append(pc.not_equal(batch["error"], "").to_numpy())
        characters += pc.sum(pc.utf8_length(batch["text"])).as_py() or 0
    is_failed = np.concatenate(failed)
    return is_failed, min(most_rows, max(1, _MOST_CHARACTERS * len(is_failed) // (characters or 1)))


def _chosen(is_failed: np.ndarray, most: int) -> np.ndarray:
    """Rows to show, in order: evenly spaced; those that failed are all there if half has room."""
    failed, others = np.flatnonzero(is_failed), np.flatnonzero(~is_failed)
    if len(is_failed) <= most:
        return np.arange(len(is_failed))
    failed = failed[_spaced(len(failed), max(most // 2, most - len(others)))]
    return np.sort(np.concatenate([failed, others[_spaced(len(others), most - len(failed))]]))


def _spaced(rows: int, wanted: int) -> np.ndarray:
    return np.linspace(0, rows - 1, min(rows, wanted)).round().astype(np.int64)


def _described(chosen: pa.Table, items: pa.Table) -> dict[str, Any]:
    """All but the text; words that come again and again are a list of them, and places in it."""
    items = items.filter(pc.is_in(items["item_id"], value_set=chosen["entity_id"]))
    titles = dict(zip(items["item_id"].to_pylist(), items["title"].to_pylist(), strict=True))
    ids, kinds = chosen["entity_id"].to_pylist(), chosen["kind"].to_pylist()
    plain = {
        "wave": chosen["wave"].to_pylist(),
        "passes": chosen["forward_passes"].to_pylist(),
        "tokens": pc.list_value_length(chosen["token_ids"]).to_pylist(),
        "relaxed": chosen["relaxed_tokens"].to_pylist(),
        "cost": [round(cost, 3) for cost in chosen["relaxed_cost"].to_pylist()],
        "error": chosen["error"].to_pylist(),
    }
    return {
        "id": ids,
        "title": [
            clipped(titles.get(name, "")) if kind == KINDS[1] else ""
            for name, kind in zip(ids, kinds, strict=True)
        ],
        "kind": _indexed(kinds),
        "group": _indexed(chosen["group_id"].to_pylist()),
        "rule": _indexed(chosen["rule"].to_pylist()),
        "finish": _indexed(chosen["finish_reason"].to_pylist()),
        **plain,
    }


def _indexed(values: Sequence[str]) -> dict[str, Any]:
    names = sorted(set(values))
    places = {name: place for place, name in enumerate(names)}
    return {"names": names, "places": [places[value] for value in values]}


def _pieces_of(row: dict[str, Any], splitter: Splitter | None) -> tuple[str, str, str]:
    """Text, and a character for each piece: its length as JavaScript counts it, and its origin.

    Without origins both are empty.
    """
    ids, origins = row["token_ids"], row.get(ORIGINS) or []
    if splitter is None or not ids or len(origins) != len(ids):
        return row["text"], "", ""
    lengths: list[int] = []
    marks: list[int] = []
    texts: list[str] = []
    token = 0
    for piece in _shown(splitter.split(ids), row["finish_reason"] == "length"):
        texts.append(piece.text)
        lengths.append(len(piece.text.encode("utf-16-le", "surrogatepass")) // 2)
        marks.append(origin_of(origins[token : token + piece.tokens]))
        token += piece.tokens
    return "".join(texts), _characters(lengths), _characters(marks)


def _shown(pieces: list[Piece], is_cut: bool) -> list[Piece]:
    """Without the character in which a text was cut, if it was."""
    if not is_cut or not pieces:
        return pieces
    last = pieces[-1]._replace(text=without_half_character(pieces[-1].text))
    return [*pieces[:-1], last] if last.text else pieces[:-1]


def _characters(numbers: Sequence[int]) -> str:
    """Numbers as characters; one too large for it, which no token is, stands for the largest."""
    return "".join(chr(_FIRST + min(number, 50_000)) for number in numbers)
