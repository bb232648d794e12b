"""Tiny random models and drafters for everything that decodes, and an object store on loopback."""

import logging
import re
import threading
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import settings
from pyarrow import fs
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from pipeline.engine.types import DraftTree, RowView
from pipeline.errors import DataError
from pipeline.knowledge import MEMBER
from pipeline.prompts import Prompt

# Time measured on a busy machine says nothing; what never ends is ended by pytest-timeout.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

VOCAB = 61
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
UNGROUPED = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
GPT2_SIZES = {name: size for name, size in UNGROUPED.items() if name != "intermediate_size"}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=8),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=12),
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES, head_dim=8, sliding_window=12, query_pre_attn_scalar=8
    ),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen2_sliding": lambda: Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=12, max_window_layers=1
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**UNGROUPED),  # RoPE on a quarter of the head
    "gpt_neox_tied": lambda: GPTNeoXConfig(
        **UNGROUPED, use_parallel_residual=False, tie_word_embeddings=True
    ),
    "gpt2": lambda: GPT2Config(**GPT2_SIZES),
    "gpt2_scaled": lambda: GPT2Config(
        **GPT2_SIZES, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True
    ),
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], PreTrainedModel]:
    """Build a tiny random model by family name; the same weights every time."""

    def build(family: str) -> PreTrainedModel:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS[family]()).eval()
        with torch.no_grad():  # spread the logits, so that argmax never hangs on rounding
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4.0)
        return model

    return build


class NoiseDrafter:
    """Lies: random trees with random claims of survival."""

    def __init__(self, vocab: int = VOCAB, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._vocab = vocab

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        return [self._tree(int(self._random.integers(0, max_nodes + 1))) for _ in rows]

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        for tree, outcome in zip(trees, outcomes, strict=True):
            assert len(tree) == len(outcome)

    def _tree(self, size: int) -> DraftTree:
        parents = [int(self._random.integers(-1, node)) for node in range(size)]
        survival = np.ones(size, np.float32)
        for node, parent in enumerate(parents):
            above = 1.0 if parent == -1 else survival[parent]
            survival[node] = above * self._random.uniform(0.5, 1.0)
        return DraftTree(
            self._random.integers(0, self._vocab, size).astype(np.int32),
            np.array(parents, np.int32),
            survival,
            np.zeros(size, np.int8),
            np.zeros(size, np.int32),
        )


class OracleDrafter:
    """Knows each row's continuation, and hides it among wrong siblings."""

    def __init__(self, continuations: dict[str, np.ndarray], depth: int = 6) -> None:
        self._continuations = continuations
        self._depth = depth

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        return [self._tree(row, max_nodes) for row in rows]

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        pass

    def _tree(self, row: RowView, max_nodes: int) -> DraftTree:
        done = len(row.tokens) - len(row.request.prompt_ids)
        coming = self._continuations[row.request.key][done : done + self._depth]
        tokens, parents, last = [], [], -1
        for token in coming:
            tokens += [(token + 1) % VOCAB, token]  # a wrong sibling first
            parents += [last, last]
            last = len(tokens) - 1
        size = min(len(tokens), max_nodes)
        return DraftTree(
            np.array(tokens[:size], np.int32),
            np.array(parents[:size], np.int32),
            np.ones(size, np.float32),
            np.full(size, 2, np.int8),
            np.zeros(size, np.int32),
        )


@pytest.fixture(scope="session")
def noise_drafter() -> type[NoiseDrafter]:
    return NoiseDrafter


@pytest.fixture(scope="session")
def oracle_drafter() -> type[OracleDrafter]:
    return OracleDrafter


class Letters:
    """A tokenizer of one token per character."""

    def encode(self, message: str) -> np.ndarray:
        """Token ids: (tokens,) int32."""
        return np.array([ord(character) for character in message], np.int32)

    def encode_all(self, messages: list[str]) -> list[np.ndarray]:
        """Token ids of each."""
        return [self.encode(message) for message in messages]

    def decode(self, token_ids: np.ndarray, is_cut: bool = False) -> str:
        """Text of token ids; none of its characters can be cut."""
        return "".join(chr(token) for token in token_ids)


class _Given:
    """Stands in for `Prompts`."""

    asof = 120

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.made = [Prompt("item", name, text, 3, 99) for name, text in texts.items()]

    def rows(self, kind: str, entity_ids: pa.Array) -> np.ndarray:
        names = [prompt.entity_id for prompt in self.made]
        ghosts = [name for name in entity_ids.to_pylist() if name not in names]
        if ghosts:
            raise DataError(f"{kind} {ghosts[0]!r}")
        return np.array([names.index(name) for name in entity_ids.to_pylist()])

    def take(self, kind: str, rows: np.ndarray) -> list[Prompt]:
        assert kind == "item"
        return [self.made[row] for row in rows.tolist()]


@pytest.fixture(scope="session")
def letters() -> Letters:
    """A tokenizer of one token per character."""
    return Letters()


@pytest.fixture(scope="session")
def given() -> Callable[[Mapping[str, str]], tuple[Any, pa.Table]]:
    """Prompts, {item: text}, as those of a catalog; and the items as members of one group."""

    def make(texts: Mapping[str, str]) -> tuple[Any, pa.Table]:
        rows = [["item"] * len(texts), list(texts), ["item/a"] * len(texts)]
        return _Given(texts), pa.table(rows, names=list(MEMBER))

    return make


class ObjectStore:
    """moto's S3 behind a door that counts who comes, and turns away whom `trouble` names.

    `trouble` gets method, path and the key that signed, and returns None or (status, error code).
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from moto.moto_server.werkzeug_app import (
                DomainDispatcherApplication,
                create_backend_app,
            )
            from werkzeug.serving import make_server

            self._inside = DomainDispatcherApplication(create_backend_app)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.seen: list[tuple[str, str]] = []
        self.trouble = lambda *_: None
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.seen.append((method, f"{path}?{environ.get('QUERY_STRING', '')}".rstrip("?")))
        signed_by = re.search(r"Credential=([^/]+)", environ.get("HTTP_AUTHORIZATION", ""))
        trouble = self.trouble(method, path, signed_by and signed_by[1])
        if trouble is None:
            return self._inside(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, code = trouble
        start_response(f"{status} {code}", [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()]

    def written(self):
        """Keys in the order in which they became visible, marks of folders aside."""
        done = {"PUT": lambda path: "?" not in path, "POST": lambda path: "uploadId=" in path}
        return [
            path.partition("?")[0].lstrip("/").partition("/")[2]
            for method, path in self.seen
            if method in done and done[method](path) and not path.endswith("/")
        ]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="session")
def object_store():
    server = ObjectStore()
    yield server
    server.stop()


@pytest.fixture
def bucket(object_store, monkeypatch, tmp_path):
    """URI of an empty bucket of a store that works, with keys and endpoint in the environment."""
    environment = {
        "AWS_ACCESS_KEY_ID": "AKIATESTKEY",
        "AWS_SECRET_ACCESS_KEY": "very/secret+word",
        "AWS_ENDPOINT_URL": object_store.endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    name = f"shop-{uuid.uuid4().hex[:12]}"
    host = object_store.endpoint.removeprefix("http://")
    maker = fs.S3FileSystem(endpoint_override=host, scheme="http", allow_bucket_creation=True)
    object_store.trouble = lambda *_: None
    maker.create_dir(name)
    object_store.seen.clear()
    yield f"s3://{name}"
    object_store.trouble = lambda *_: None
