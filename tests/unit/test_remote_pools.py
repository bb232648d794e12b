"""Pools of a remote run, on a machine that has none of its files."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.mirror import Mirror
from pipeline.store import Store
from retrieval_pools.document import Document
from retrieval_pools.pool import build_pools
from retrieval_pools.pool_folder import save_pools

ROOT = Path(__file__).parents[2]
# As a generation actor does: it gets a function that finds or fetches the folder.
ELSEWHERE = """
import json, pickle, sys
import numpy as np
from pipeline.engine.row import Row
from pipeline.engine.stops import Stops
from pipeline.engine.types import Request
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.pool_folder import open_pools

folder = pickle.loads(sys.stdin.buffer.read())()
drafter = PoolDrafter(open_pools(folder, "letters"), 8, ("group", "global"))
row = Row(Request("a", np.empty(0, np.int32), 9, "user/a"), 0)
for token in (1, 2, 3):
    row.append(token, Stops([]))
(tree,) = drafter.propose([row], 4)
print(json.dumps([str(folder), tree.token_ids.tolist()]))
"""


def test_an_actor_with_a_working_copy_of_its_own_fetches_pools_and_drafts_from_them(
    bucket, tmp_path
):
    texts = [np.arange(1, 8, dtype=np.int32)] * 3
    pools = build_pools({"user/a": [Document(text, False) for text in texts]}, 8, 10**6)
    store = Store(tmp_path / "driver" / "run", Mirror(bucket, "run"))
    plan = store.plan("waves/1/pools", {})
    plan.write_files(lambda folder: save_pools(pools, folder, "letters"), pools.num_tokens)
    # The lease of the driver does not go with it.
    store.files.mirror = replace(store.files.mirror, may_write=lambda: None)
    store.files.root = Path("working/run")  # relative, as every working copy is
    (tmp_path / "actor").mkdir()
    said = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=pickle.dumps(partial(store.files.local, "waves/1/pools")),
        cwd=tmp_path / "actor",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(said.stdout) == ["working/run/waves/1/pools", [4, 5, 6, 7]]
    assert (tmp_path / "actor" / "working/run/waves/1/pools/pools.json").is_file()
