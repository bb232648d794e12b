"""Texts -> unit vectors, by any sentence-transformers model.

Only the answer of the language model is encoded. The reference code of LASER encodes history and
answer together and cuts at 512 tokens, so that long histories push the knowledge out.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ModelError
from pipeline.fetched import local_copy
from pipeline.hub import unreachable
from pipeline.weight_files import LOADED, is_weights

log = logging.getLogger(__name__)

# Weights, modules, pooling and vocabulary.
_DECIDING = (".safetensors", ".bin", ".json", ".txt", ".model")
_OTHER_FRAMEWORKS = ["onnx/*", "openvino/*", "*.h5", "*.ot", "*.msgpack", "*.onnx"]


def locate_encoder(path: str) -> Path:
    """The local folder of an encoder; a remote folder or a hub name is fetched once.

    Raises:
        ModelError: neither a folder nor a reachable hub name.
        DataError: a remote folder is not there, or cannot be read.
    """
    folder = local_copy(path)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(path, ignore_patterns=_OTHER_FRAMEWORKS))
    except (OSError, HFValidationError, HfHubHTTPError) as error:
        raise unreachable(path, "encoder", error) from error


def weights_fingerprint(folder: Path) -> str:
    """sha256 over the files that decide a vector: weights, pooling, tokenizer.

    Raises:
        ModelError: the folder holds no weights.
    """
    require_weights(folder)
    files = sorted(file for file in folder.rglob("*") if file.suffix in _DECIDING)
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(folder).as_posix().encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def require_weights(folder: Path) -> None:
    """Check that `folder` holds a model.

    Raises:
        ModelError: it holds no weights.
    """
    if not any(map(is_weights, folder.rglob("*"))):
        raise ModelError(f"{folder} holds no weights ({' or '.join(LOADED)}); fetch the model")


def require_positions(folder: Path, max_tokens: int) -> None:
    """Check that the model of `folder` reads `max_tokens` tokens.

    Raises:
        ModelError: it has fewer positions.
    """
    configs = [json.loads(file.read_text("utf-8")) for file in folder.rglob("config.json")]
    limit = min(
        (config.get("max_position_embeddings") or max_tokens for config in configs),
        default=max_tokens,
    )
    if max_tokens > limit:
        raise ModelError(
            f"encoder.max_tokens is {max_tokens}, but {folder} reads {limit} tokens; lower it"
        )


class TextEncoder:
    """A loaded model; `dim` is the width of its vectors, `max_tokens` what it reads of a text.

    Raises:
        ModelError: there is no such model or device, or it reads fewer tokens.
    """

    def __init__(
        self, path: str, device: str = "auto", max_tokens: int = 256, batch_size: int = 64
    ) -> None:
        from sentence_transformers import SentenceTransformer

        folder = locate_encoder(path)
        require_positions(folder, max_tokens)
        self.max_tokens = max_tokens
        self._batch_size = batch_size
        self._model = SentenceTransformer(str(folder), device=_device(device))
        self._model.max_seq_length = max_tokens
        _require_padding(self._model.tokenizer, folder)
        self.dim = len(self._model.encode("a", show_progress_bar=False))
        log.info("encoder %s: %d dimensions, on %s", folder, self.dim, self._model.device)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One vector of length 1 per text, in order: (texts, dim) float32; zero for a blank text.

        Raises:
            ModelError: the model gave a vector that is not finite.
        """
        written = [row for row, text in enumerate(texts) if text.strip()]
        vectors = np.zeros((len(texts), self.dim), np.float32)
        if written:
            vectors[written] = self._model.encode(
                [texts[row] for row in written],
                batch_size=self._batch_size,
                normalize_embeddings=True,
                show_progress_bar=False,
            )
        if not np.isfinite(vectors).all():
            raise ModelError("the encoder gave vectors that are not finite; use another model")
        return vectors

    def is_truncated(self, texts: Sequence[str]) -> np.ndarray:
        """Whether a text is longer than the model reads: (texts,) bool."""
        if not texts:
            return np.zeros(0, bool)
        tokens = self._model.tokenizer(
            list(texts), truncation=True, max_length=self.max_tokens + 1, return_length=True
        )
        return np.array(tokens["length"]) > self.max_tokens


def _require_padding(tokenizer: Any, folder: Path) -> None:
    """Texts of a batch are filled up to one length; any token will do, since it is masked.

    Raises:
        ModelError: the tokenizer has none to fill with.
    """
    if getattr(tokenizer, "pad_token", "") is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        if tokenizer.pad_token is None:
            raise ModelError(
                f"the tokenizer of {folder} has no token to fill up texts with; set pad_token in "
                "its tokenizer_config.json"
            )


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("encoder.device is cuda, but torch sees no GPU; set it to auto or cpu")
    return name
