"""Models by their names on the Hugging Face hub: fetched once, and what to do where one is not had.

What is loaded is one commit of them, a folder of the hub's cache, as any other folder is.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from pipeline.errors import ModelError
from pipeline.weight_files import holds_weights, missing_shards

_SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_WEIGHTS = tuple(  # the first kind that there is is what transformers loads
    (f"{name}.{kind}", f"{name}-*-of-*.{kind}")
    for name, kind in (("model", "safetensors"), ("pytorch_model", "bin"))
)


def unreachable(path: str, section: str, error: BaseException) -> ModelError:
    """What to tell of a model that could not be fetched or read: why, and what to do.

    `error` is of huggingface_hub, or of transformers because of such a one; `section` is of the
    config, and has the key `path`.
    """
    return ModelError(f"{section}.path {path!r} {_reason(path, section, error)}")


@cache
def small_files(path: str, section: str) -> Path:
    """The folder of this machine's cache with configuration and tokenizer; what lacks is fetched.

    The commit is what follows an "@" in `path`, else what the cache calls `main`, else, where
    nothing of the name is here, the hub's latest. A process stays with the one that it met first.

    Raises:
        ModelError: neither the cache nor the hub has it.
    """
    return _fetched(path, section, commit_of(path), _SMALL)


def whole_model(path: str, section: str) -> Path:
    """As `small_files`, with the weights.

    Raises:
        ModelError: neither the cache nor the hub has them.
    """
    folder = small_files(path, section)
    for patterns in _WEIGHTS:
        if not _is_whole(folder):
            _fetched(path, section, folder.name, patterns)
    if not _is_whole(folder):
        name = path.partition("@")[0]
        raise ModelError(
            f"{section}.path {path!r}: {folder} lacks weights; run `hf download {name}` where "
            f"there is a network, and set {section}.path to what it made"
        )
    return folder


def commit_of(path: str) -> str:
    """The commit that a hub name means on this machine; "" where nothing of it was ever fetched."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.file_download import repo_folder_name

    name, _, commit = path.partition("@")
    try:
        folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    except HFValidationError:  # no name, and no folder either; who loads it says so
        return ""
    if commit:
        return commit
    try:
        known = (folder / "refs" / "main").read_text("utf-8").strip()
        return known if known.isalnum() and (folder / "snapshots" / known).is_dir() else ""
    except (OSError, ValueError):  # none, or a broken cache; who loads the model says so
        return ""


def weight_hashes(path: str, section: str) -> dict[str, str]:
    """sha256 of each file that the weights are loaded from, by its name.

    Of files that are not here the hub tells: who plans need not fetch them.

    Raises:
        ModelError: they are not here, and the hub does not tell.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    folder = small_files(path, section)
    if not _is_whole(folder):
        try:
            tree = HfApi().list_repo_tree(path.partition("@")[0], revision=folder.name)
            told = {one.path: getattr(getattr(one, "lfs", None), "sha256", "") for one in tree}
        except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
            raise unreachable(path, section, error) from error
        loaded = _loaded(told)
        if loaded and all(told[name] for name in loaded):
            return {name: told[name] for name in loaded}
        whole_model(path, section)
    return {
        name: _sha256(folder / name) for name in _loaded(file.name for file in folder.iterdir())
    }


def require_reachable_weights(path: str, section: str) -> None:
    """Check that all weights of a hub name are in this machine's cache, or can be fetched.

    Raises:
        ModelError: neither, and the first to find out would be a worker, hours from now.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    folder = small_files(path, section)
    if _is_whole(folder):
        return
    try:
        HfApi().model_info(path.partition("@")[0], revision=folder.name, timeout=30.0)
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        raise unreachable(path, section, error) from error


def _fetched(path: str, section: str, commit: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    name, wanted, never = path.partition("@")[0], list(patterns), ["*/*", "*.py"]
    try:
        return Path(
            snapshot_download(
                name, revision=commit or None, allow_patterns=wanted, ignore_patterns=never
            )
        )
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        raise unreachable(path, section, error) from error


def _is_whole(folder: Path) -> bool:
    return holds_weights(folder) and not missing_shards(folder)


def _loaded(names: Iterable[str]) -> list[str]:
    """Of the files of a model, those that transformers loads its weights from."""
    names = sorted(names)
    for patterns in _WEIGHTS:
        if found := [name for name in names if any(fnmatch(name, one) for one in patterns)]:
            return found
    return []


def _sha256(file: Path) -> str:
    """Of a file of the cache; one that is a link to a large blob has it for its target's name."""
    if re.fullmatch("[0-9a-f]{64}", target := file.resolve().name):
        return target
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _reason(path: str, section: str, error: BaseException) -> str:
    from huggingface_hub import constants, errors

    causes, name = list(_causes(error)), path.partition("@")[0]

    def is_of(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if path.startswith(("/", ".", "~")) or path.count("/") > 1:
        return "is no folder of this machine; correct the path"
    if is_of(errors.HFValidationError):
        return "is no folder, and no name of the hub, which reads owner/name; correct it"
    if is_of(errors.GatedRepoError):
        return (
            f"is gated: accept its terms at {constants.ENDPOINT}/{name}, and set HF_TOKEN to a "
            "token of the account that did"
        )
    if is_of(errors.RepositoryNotFoundError):
        return (
            "is no folder, and the hub has no such model, or it is private; correct the name, or "
            "set HF_TOKEN"
        )
    fetch = f"run `hf download {name}` where there is a network, and set {section}.path to what it "
    fetch += "made"
    if constants.HF_HUB_OFFLINE or is_of(errors.OfflineModeIsEnabled):
        return (
            "is no folder, and not in the hub's cache of this machine, which HF_HUB_OFFLINE keeps "
            f"from asking the hub; unset it, or {fetch}"
        )
    if is_of(errors.LocalEntryNotFoundError, ConnectionError, TimeoutError):
        return (
            "is no folder, and not in the hub's cache of this machine, and the hub does not answer;"
            f" correct the name or mend the network, or {fetch}"
        )
    return f"cannot be loaded: {error}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
