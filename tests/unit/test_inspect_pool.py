"""What a person sees of the pools of a run."""

import fcntl

import numpy as np
import pytest
import yaml

from jobs import inspect_pool
from pipeline.store import Store
from retrieval_pools.document import Document
from retrieval_pools.pool import build_pools
from retrieval_pools.pool_folder import save_pools


class Letters:
    """One token per character."""

    fingerprint = "letters"

    def encode_exactly(self, text):
        return np.array([ord(letter) for letter in text], np.int32)

    def decode_exactly(self, token_ids):
        return "".join(chr(token) for token in token_ids.tolist())


def a_document(text, is_relaxed=False):
    return Document(np.array([ord(letter) for letter in text], np.int32), is_relaxed)


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inspect_pool, "load_tokenizer", lambda settings: Letters())
    tree = {
        "run": "r",
        "artifacts": str(tmp_path / "artifacts"),
        "catalog": {"source": "movielens", "path": "x"},
        "language_model": {"path": "x"},
        "encoder": {"path": "x"},
        "generation": {"waves": 3},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(tree))
    return ["--config", str(tmp_path / "r.yaml")]


def write_pools(tmp_path, wave, groups):
    store = Store(tmp_path / "artifacts" / "r")
    pools = build_pools(groups, 24, 10**6)
    plan = store.plan(f"waves/{wave}/pools", {})
    plan.write_files(lambda folder: save_pools(pools, folder, "letters"), pools.num_tokens)


@pytest.fixture
def pools(tmp_path):
    write_pools(tmp_path, 1, {"user/old": [a_document("an older wave")]})
    groups = {
        "user/a": [
            a_document("she likes old films"),
            a_document("he likes old films"),
            a_document("she likes new books", is_relaxed=True),
        ],
        "user/b": [a_document("something else")],
    }
    write_pools(tmp_path, 2, groups)


def shown(capsys, arguments):
    assert inspect_pool.main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_every_group_of_the_latest_wave_has_a_line(pools, arguments, capsys):
    lines = shown(capsys, arguments)
    assert lines[0].endswith("bytes per token")
    assert "waves/2/pools" in lines[0]
    assert lines[1].split() == [
        *("group", "texts", "relaxed", "tokens", "bytes", "distinct-3", "similarity")
    ]
    first, second, every = [line.split() for line in lines[2:5]]
    assert first[:5] == ["user/a", "3", "1", "56", "738"]
    assert second == ["user/b", "1", "0", "14", "188", "1.000", "-"]
    assert every[:5] == ["all", "4", "1", "70", "925"]
    assert 0.0 < float(first[6]) < 1.0


def test_the_phrases_of_the_largest_group_are_shown_by_count(pools, arguments, capsys):
    lines = shown(capsys, arguments)
    start = next(number for number, line in enumerate(lines) if "user/a repeats most" in line)
    assert lines[start + 1].split(maxsplit=1) == ["3", "'he likes '"]
    rest = [line.split(maxsplit=1) for line in lines[start + 2 :]]
    assert ["2", "'he likes old films'"] in rest
    assert ["2", "'she likes '"] in rest
    assert not any("drafts after" in line for line in lines)


def test_another_group_can_be_asked_for(pools, arguments, capsys):
    lines = shown(capsys, [*arguments, "--group", "user/b"])
    assert "What user/b repeats most" in lines[6]
    assert lines[7] == "nothing is said twice"


def test_drafts_are_shown_as_a_tree_with_their_survival(pools, arguments, capsys):
    lines = shown(capsys, [*arguments, "--group", "user/a", "--text", "she likes "])
    start = next(number for number, line in enumerate(lines) if "user/a drafts after" in line)
    tree = lines[start + 1 :]
    assert tree[0].endswith("  'o'  group")  # old: two texts, new: a relaxed one
    assert tree[1].endswith("    'l'  group")
    roots = [line for line in tree if line.index("'") == tree[0].index("'")]
    assert [line.split()[1] for line in roots[:2]] == ["'o'", "'n'"]
    survivals = [float(line.split()[0]) for line in tree]
    assert survivals[0] >= survivals[1] > 0.0


def test_before_anything_is_written_the_first_tokens_are_drafted(pools, arguments, capsys):
    lines = shown(capsys, [*arguments, "--group", "user/b", "--text", ""])
    assert lines[-1].strip() != "nothing"
    assert any("'s'  group" in line for line in lines)


def test_an_unknown_group_is_refused_with_the_known_ones(pools, arguments, capsys):
    assert inspect_pool.main([*arguments, "--group", "user/z"]) == 3
    assert "user/z: waves/2/pools has no such group, but user/a, user/b" in capsys.readouterr().err


def test_a_run_without_pools_says_what_to_run(arguments, tmp_path, capsys):
    store = Store(tmp_path / "artifacts" / "r")
    store.plan("interactions", {}).write_json("x.json", {}, 3)
    assert inspect_pool.main(arguments) == 3
    assert "run `laser embed` and `laser group` first" in capsys.readouterr().err
    for name in ("embeddings", "groups"):
        store.plan(name, {}).write_json("x.json", {}, 3)
    assert inspect_pool.main(arguments) == 3
    assert "has no pools; run `laser generate`" in capsys.readouterr().err


def test_a_run_that_a_job_writes_can_be_looked_at(pools, tmp_path, arguments, capsys):
    root = tmp_path / "artifacts" / "r"
    with (root / "lock").open("w") as file:
        before = sorted(root.rglob("*"))
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "waves/2/pools" in shown(capsys, arguments)[0]
    assert sorted(root.rglob("*")) == before


def test_pools_without_text_are_no_pools_to_look_at(tmp_path, arguments, capsys):
    write_pools(tmp_path, 1, {"user/a": []})
    assert inspect_pool.main(arguments) == 3
    assert "waves/1/pools holds no text" in capsys.readouterr().err
