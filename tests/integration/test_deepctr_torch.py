"""Our CTR models against those of DeepCTR-Torch 0.3.0, on the same rows of MovieLens-100K.

Runs where the library is, which the project does not ask for: `make test-peers`.

Both sides read ids and attributes of the base arm (DIN also the history), and train on the same
rows with AdamW, the same learning rate (for LR ten times, which our scaled weights come to), batch
size, length of embeddings, width and number of layers, and initial weights. Each has its own
training loop, stopped by the same rule on the same validation rows; the library's L2 penalties are
off, as ours has none. It differs where it leaves no choice:

- In DIN signal and item of an event stand side by side, where ours are added, and the product of
  interest and target is no input.
- A head of its AutoInt is half as wide as a vector, ours as wide; its CIN has biases.
"""

import logging
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from features.ctr.arms import BASE, Arm
from features.ctr.data import LIKED, make_ctr_data
from features.ctr.metrics import auc
from features.ctr.models import MODELS
from features.ctr.models.rows import SIGNALS
from features.ctr.training import Task, Trial, fit_one
from pipeline.catalog import load_catalog
from pipeline.config import CatalogSettings, CtrSettings

pytestmark = [
    pytest.mark.assets,
    pytest.mark.filterwarnings("default"),  # the library's own
]

log = logging.getLogger(__name__)

ML100K = Path(__file__).parents[2] / ".cache/assets/recbole/dataset_example/ml-100k"
SEEDS = range(3)
LEAST_TOLERANCE = 0.004
DIM = 16
LEARNING_RATE = 1e-3
HISTORY = 10
SETTINGS = CtrSettings(embedding_dim=DIM)
HIDDEN = (4 * DIM, 2 * DIM)  # as in `hidden_layers`


@pytest.fixture(scope="module")
def library():
    """The library; it would ask the network for a newer version of itself."""

    def refused(*_):
        raise OSError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("requests.get", refused)
        yield pytest.importorskip("deepctr_torch", exc_type=ImportError)


@pytest.fixture(scope="module")
def data(library):
    """Every fourth user; of each the earliest half is trained on, and the last quarter tested."""
    settings = {"source": "movielens", "path": str(ML100K)}
    catalog = load_catalog(CatalogSettings.model_validate(settings))
    table = catalog.interactions
    owners = table["user_id"].to_numpy(zero_copy_only=False).astype(int)
    table = table.filter(pa.array(owners % 4 == 0))  # in the order of their times
    return make_ctr_data(
        table.set_column(table.column_names.index("split"), "split", pa.array(by_time(table))),
        catalog.users,
        catalog.items,
        HISTORY,
    )


def by_time(interactions):
    """The split of every row by its place among the rows of its user."""
    _, owners, totals = np.unique(
        interactions["user_id"].to_numpy(zero_copy_only=False),
        return_inverse=True,
        return_counts=True,
    )
    order = np.argsort(owners, kind="stable")
    place = np.empty(len(owners))
    place[order] = np.arange(len(owners)) - np.repeat(np.cumsum(totals) - totals, totals)
    return np.array(["train", "train", "valid", "test"])[(4 * place / totals[owners]).astype(int)]


def columns_of(data):
    """Every field of the rows, by name, and how many codes it has."""
    codes = np.concatenate(
        [data.user_fields.codes[data.users], data.item_fields.codes[data.items]], axis=1
    )
    names = [f"user_{name}" for name in data.user_fields.names]
    names += [f"item_{name}" for name in data.item_fields.names]
    sizes = (*data.user_fields.sizes, *data.item_fields.sizes)
    return dict(zip(names, codes.T, strict=True)), dict(zip(names, sizes, strict=True))


def inputs_of(data):
    """What the library reads: all rows, by feature."""
    columns, _ = columns_of(data)
    return columns | {
        "hist_item_id": data.history_items,
        "hist_signal": data.history_signals,
        "events": (data.history_signals > 0).sum(axis=1),
        "signal": np.full(len(data.labels), LIKED),
    }


def peer(model, data, seed):
    """The library's model of that name, with weights that start as ours do."""
    network = untrained(model, data, seed)
    for layer in network.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.reset_parameters()
        elif isinstance(layer, torch.nn.Embedding):
            torch.nn.init.normal_(layer.weight, std=0.05)
    return network


def untrained(model, data, seed):
    from deepctr_torch import models
    from deepctr_torch.inputs import SparseFeat

    _, sizes = columns_of(data)
    fields = [SparseFeat(name, size, DIM) for name, size in sizes.items()]
    shared = {"seed": seed, "l2_reg_embedding": 0}
    deep = shared | {"dnn_hidden_units": HIDDEN}
    if model == "lr":
        return models.WDL(fields, [], l2_reg_linear=0, **shared)
    if model == "deepfm":
        return models.DeepFM(fields, fields, l2_reg_linear=0, **deep)
    if model == "xdeepfm":
        cin = {"cin_layer_size": (16, 16), "cin_split_half": False, "cin_activation": "linear"}
        return models.xDeepFM(fields, fields, l2_reg_linear=0, **cin, **deep)
    if model == "autoint":
        layers = {"att_layer_num": 2, "att_head_num": 2, "dnn_hidden_units": ()}
        return models.AutoInt([], fields, **layers, **shared)
    if model == "dcnv2":
        cross = {"cross_num": 2, "cross_parameterization": "matrix", "l2_reg_cross": 0}
        return models.DCN([], fields, l2_reg_linear=0, **cross, **deep)
    return models.DIN(
        [*fields, SparseFeat("signal", SIGNALS, DIM), *history_of(sizes["item_id"])],
        ["item_id", "signal"],
        att_hidden_size=(DIM,),
        att_activation="relu",
        **deep,
    )


def history_of(items):
    """The library's features of an event; those of the target have the same tables."""
    from deepctr_torch.inputs import SparseFeat, VarLenSparseFeat

    return [
        VarLenSparseFeat(
            SparseFeat(f"hist_{name}", size, DIM, embedding_name=name),
            HISTORY,
            length_name="events",
        )
        for name, size in (("item_id", items), ("signal", SIGNALS))
    ]


def auc_of_peer(model, data, seed):
    """Its AUC on the test rows, trained by its own `fit`, epoch by epoch."""
    network = peer(model, data, seed)
    inputs = inputs_of(data)

    def rows(split):
        chosen = data.splits[split]
        return {name: inputs[name][chosen] for name in network.feature_index}, data.labels[chosen]

    step = 10 if model == "lr" else 1
    optimizer = torch.optim.AdamW(
        network.parameters(), LEARNING_RATE * step, weight_decay=SETTINGS.weight_decay
    )
    network.compile(optimizer, "binary_crossentropy")
    (train, labels), (valid, valid_labels), (test, test_labels) = map(
        rows, ("train", "valid", "test")
    )
    best, best_epoch, scores = -math.inf, 0, np.empty(0)
    for epoch in range(SETTINGS.max_epochs):
        network.fit(train, labels, batch_size=SETTINGS.batch_size, epochs=1, verbose=0)
        reached = auc(valid_labels, network.predict(valid, 8192)[:, 0])
        if reached > best:
            best, best_epoch = reached, epoch
            scores = network.predict(test, 8192)[:, 0]
        elif epoch - best_epoch >= SETTINGS.patience:
            break
    return auc(test_labels, scores)


def auc_of_ours(model, data, seed):
    task = Task(model, BASE, seed, Trial(LEARNING_RATE, 0.0))
    fit = fit_one(data, Arm(None), task, SETTINGS)
    return auc(data.labels[data.splits["test"]], fit.test_probabilities)


@pytest.fixture
def one_thread():
    """As ours train."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", MODELS)
def test_auc_is_that_of_the_library(model, data, one_thread):
    if model != "din":
        nothing = np.zeros_like(data.history_items)
        data = replace(data, history_items=nothing, history_signals=nothing)
    ours = np.array([auc_of_ours(model, data, seed) for seed in SEEDS])
    theirs = np.array([auc_of_peer(model, data, seed) for seed in SEEDS])
    deviation = math.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / len(SEEDS))
    gap = ours.mean() - theirs.mean()
    log.info(
        "%s: AUC %.4f, the library's %.4f, difference %+.4f (sd %.4f)",
        *(model, ours.mean(), theirs.mean(), gap, deviation),
    )
    assert abs(gap) <= max(3 * deviation, LEAST_TOLERANCE)
