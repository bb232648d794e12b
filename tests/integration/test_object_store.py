"""The chain with tables, model and artifacts in an object store: killed, and gone on elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from features.build import build_features
from features.encoder import TextEncoder
from jobs import build_catalog, group_entities, train_embeddings
from jobs.generation_actor import make_engine
from jobs.waves import groups_of, identify, open_prompts, tasks_of, wave_identity
from pipeline.config import RunConfig
from pipeline.engine.rules import Strict
from pipeline.engine.types import NoDraft
from pipeline.knowledge import collect, requests_of, with_prompts
from pipeline.mirror import Mirror
from pipeline.runs import open_run
from pipeline.store import Store

ROOT = Path(__file__).parents[2]
FETCHED = ROOT / ".cache/fetched"
CHAIN = """
import sys
from jobs import build_catalog, cli, encode_features, generate_knowledge, group_entities
from jobs import train_embeddings

def chain(config, store):
    for stage in (build_catalog, train_embeddings, group_entities, generate_knowledge,
                  encode_features):
        stage.run(config, store)

sys.exit(cli.main(chain, None))
"""

pytestmark = [
    pytest.mark.faults,
    pytest.mark.ray,
    pytest.mark.assets,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # third parties warn as they please inside workers
]


@pytest.fixture
def chain(tmp_path):
    """Start the chain with a config, as a process of its own."""
    started = []

    def start(tree, name):
        config, script, said = (tmp_path / f"{name}.{end}" for end in ("yaml", "py", "txt"))
        config.write_text(yaml.safe_dump(tree))
        script.write_text(CHAIN)
        with said.open("wb") as file:
            job = subprocess.Popen(
                [sys.executable, str(script), "--config", str(config)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=file,
                stderr=file,
            )
        started.append(job)
        return job, said

    yield start
    for job in started:
        job.kill()
        job.wait()


@pytest.fixture
def trees(config_file, bucket, tmp_path):
    """Two configs of the bookshop: everything here; tables, model and artifacts there."""
    here = yaml.safe_load(config_file.read_text())
    here["artifacts"] = str(tmp_path / "artifacts")
    here["generation"] |= {"rule": "strict", "waves": 1, "block_rows": 8, "max_new_tokens": 8}
    there = yaml.safe_load(yaml.safe_dump(here))
    there["artifacts"] = f"{bucket}/artifacts"
    for table in there["catalog"]["tables"].values():
        table["path"] = moved(Path(table["path"]), bucket)
    there["language_model"]["path"] = moved(Path(there["language_model"]["path"]), bucket)
    return here, there


def moved(path, bucket):
    """Upload a file or a folder; return its URI."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        Mirror(bucket).write(file.relative_to(path.parent).as_posix(), file.read_bytes())
    return f"{bucket}/{path.name}"


@pytest.fixture
def nothing_stays_fetched():
    before = set(FETCHED.glob("*"))
    yield
    for folder in set(FETCHED.glob("*")) - before:
        shutil.rmtree(folder)


@pytest.fixture
def working(trees):
    """The working copy, as the process that runs the chain has it."""
    folder = ROOT / open_run(trees[1]["artifacts"], trees[1]["run"]).root
    yield folder
    shutil.rmtree(folder.parent, ignore_errors=True)


@pytest.mark.usefixtures("nothing_stays_fetched")
def test_a_killed_chain_goes_on_elsewhere_and_ends_like_a_local_one(
    trees, chain, working, object_store, tmp_path
):
    here, there = trees
    job, said = chain(there, "killed")

    def kill_at_the_third_part(method, path, _):
        if "waves/1/knowledge/part-00002" in path:
            job.kill()
            return 503, "SlowDown"
        return None

    object_store.trouble = kill_at_the_third_part
    assert job.wait(120) == -9, said.read_text()
    object_store.trouble = lambda *_: None
    mirror = Mirror(there["artifacts"], there["run"])
    stored = Store(tmp_path / "look", mirror).files.stored_rows("waves/1/knowledge")
    assert stored
    assert stored >= 16

    shutil.rmtree(working)  # as on a machine that has never seen the run
    mirror.delete("lock.json")  # as a minute later
    job, said = chain(there, "resumed")
    assert job.wait(120) == 0, said.read_text()
    assert re.search(rf"waves/1/knowledge: \d+ rows to write, {stored} stored", said.read_text())
    require_like_local(Store(tmp_path / "third", mirror), RunConfig.model_validate(here), tmp_path)
    assert b"done in" in (mirror.read("run.log") or b"")


def require_like_local(remote, config, tmp_path):
    """The stages without Ray are run here, and texts and vectors made one by one."""
    local = Store(tmp_path / "local")
    for stage in (build_catalog, train_embeddings, group_entities):
        stage.run(config, local)
    for name in ("users", "items", "interactions", "embeddings", "groups"):
        assert remote.read(name) == local.read(name), name
    knowledge = remote.read("knowledge")
    assert texts_of(knowledge) == texts_of(plain_knowledge(config, local))
    assert knowledge.num_rows == 79
    settings = config.encoder
    encoder = TextEncoder(settings.path, "cpu", settings.max_tokens, settings.batch_size)
    features = [remote.read("features"), build_features(knowledge, encoder)]
    vectors = [np.stack(table["vector"].to_pylist()) for table in features]
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-5)


def texts_of(knowledge):
    columns = ("kind", "entity_id", "text", "token_ids", "error")
    return sorted(zip(*(knowledge[name].to_pylist() for name in columns), strict=True))


def plain_knowledge(config, store):
    """All texts by plain decoding, which strict texts equal."""
    identity = identify(config)
    wanted = wave_identity(config, 1, identity, "")
    prompts = open_prompts(config, store)
    tasks = tasks_of(config, prompts, groups_of(config, store), identity.tokenizer, wanted)
    tasks = with_prompts(tasks, prompts)
    limits = (config.generation.max_new_tokens, config.prompts.max_tokens)
    requests = requests_of(tasks, identity.tokenizer, *limits)
    engine = make_engine(config, identity.tokenizer)
    engine.use(NoDraft(), Strict())
    done = {row.key: row for row in engine.generate(requests)}
    return collect(tasks, [done[row.key] for row in requests], identity.tokenizer, limits[1])
