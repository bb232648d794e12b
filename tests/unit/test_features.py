"""FEATURES from KNOWLEDGE with an encoder that needs no weights."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from features.build import build_features, usable_text
from jobs.encode_features import require_owed
from pipeline.errors import DataError
from pipeline.schemas import FEATURES, PROVENANCE, with_vector_width


class LetterEncoder:
    """Counts a and b; remembers what it was asked."""

    dim = 2

    def __init__(self):
        self.asked = []

    def encode(self, texts):
        self.asked += texts
        counts = [[text.count("a"), text.count("b")] for text in texts]
        return np.array(counts, np.float32).reshape(-1, 2)


def knowledge(rows):
    """KNOWLEDGE; the row in place n has seen n events, the latest at 10 n, as of 100 + n."""
    names = ["kind", "entity_id", "text", "error"]
    place = np.arange(len(rows))
    return pa.table(
        [
            *map(list, zip(*rows, strict=True)),
            100 + place,
            10 * place,
            place.astype(np.int32),
            [f"asked {n}" for n in place],
        ],
        names=[*names, *PROVENANCE],
    )


ROWS = [
    ("user", "007", "aab", ""),
    ("user", "8", "", ""),
    ("item", "7", "bb", ""),
    ("item", "8", "half a text", "prompt too long"),
    ("item", "9", " \n\t", ""),
]


def test_every_row_is_answered_in_order_with_its_own_vector():
    features = build_features(knowledge(ROWS), LetterEncoder())
    assert features.schema == with_vector_width(FEATURES, 2)
    assert features["kind"].to_pylist() == ["user", "user", "item", "item", "item"]
    assert features["entity_id"].to_pylist() == ["007", "8", "7", "8", "9"]
    assert features["vector"].to_pylist() == [[2, 1], [0, 0], [0, 2], [0, 0], [0, 0]]


def test_failed_and_blank_rows_are_marked_and_never_encoded():
    encoder = LetterEncoder()
    features = build_features(knowledge(ROWS), encoder)
    assert features["source"].to_pylist() == ["own", "none", "own", "none", "none"]
    assert encoder.asked == ["aab", "bb"]
    assert usable_text(knowledge(ROWS)).to_pylist() == ["aab", "", "bb", "", ""]


def test_an_own_vector_has_the_provenance_of_its_text_and_no_vector_has_none():
    seen = build_features(knowledge(ROWS), LetterEncoder()).select(PROVENANCE)
    nothing = (0, 0, 0, "")
    wanted = [(100, 0, 0, "asked 0"), nothing, (102, 20, 2, "asked 2"), nothing, nothing]
    assert [tuple(row.values()) for row in seen.to_pylist()] == wanted


def test_knowledge_without_any_text_gives_zero_vectors():
    features = build_features(knowledge(ROWS[3:]), LetterEncoder())
    assert features["source"].to_pylist() == ["none", "none"]
    assert features["vector"].to_pylist() == [[0, 0], [0, 0]]


def test_no_rows_give_no_rows():
    assert build_features(knowledge(ROWS).slice(0, 0), LetterEncoder()).num_rows == 0


def test_chunked_knowledge_is_encoded_like_whole_knowledge():
    parts = pa.concat_tables([knowledge(ROWS).slice(0, 2), knowledge(ROWS).slice(2)])
    whole = build_features(knowledge(ROWS), LetterEncoder())
    assert build_features(parts, LetterEncoder()).equals(whole)


def test_a_block_that_loses_swaps_or_invents_rows_is_refused():
    owed = knowledge(ROWS)
    require_owed(owed, owed)
    with pytest.raises(DataError, match=r"came back as 4: 1 missing \[\('user', '007'\)\], 0 not"):
        require_owed(owed.slice(1), owed)
    with pytest.raises(DataError, match="0 missing"):
        require_owed(owed.take([1, 0, 2, 3, 4]), owed)
    with pytest.raises(DataError, match=r"1 not asked for \[\('item', '9'\)\]"):
        require_owed(owed, owed.slice(0, 4))


def test_building_features_loads_no_model_library():
    code = (
        "import sys, features.build, features.encoder, jobs.encoding_actor\n"
        "heavy = {'ray', 'torch', 'sentence_transformers'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
