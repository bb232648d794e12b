"""Models by their names on the Hugging Face hub: what to do where one cannot be had."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import ModelError
from pipeline.weight_files import holds_weights, missing_shards


def unreachable(path: str, section: str, error: BaseException) -> ModelError:
    """What to tell of a model that could not be fetched or read: why, and what to do.

    `error` is of huggingface_hub, or of transformers because of such a one; `section` is of the
    config, and has the key `path`.
    """
    return ModelError(f"{section}.path {path!r} {_reason(path, section, error)}")


def revision_of(path: str) -> str:
    """The commit that a hub name means on this machine; "" where nothing of it was ever fetched.

    It is what the cache calls `main`. Whoever loads any file of the name while the hub answers
    moves that to the commit of the moment.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.file_download import repo_folder_name

    try:
        name = repo_folder_name(repo_id=path, repo_type="model")
    except HFValidationError:  # no name, and no folder either; who loads it says so
        return ""
    folder = Path(constants.HF_HUB_CACHE) / name
    main = folder / "refs" / "main"
    commit = main.read_text("utf-8").strip() if main.is_file() else ""
    return commit if commit and (folder / "snapshots" / commit).is_dir() else ""


def require_reachable_weights(path: str, section: str) -> None:
    """Check that all weights of a hub name are in this machine's cache, or can be fetched.

    Raises:
        ModelError: neither, and the first to find out would be a worker, hours from now.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(path, local_files_only=True))
        if holds_weights(cached) and not missing_shards(cached):
            return
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    try:
        HfApi().model_info(path, timeout=30.0)
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        raise unreachable(path, section, error) from error


def _reason(path: str, section: str, error: BaseException) -> str:
    from huggingface_hub import constants, errors

    causes = list(_causes(error))

    def is_of(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if path.startswith(("/", ".", "~")) or path.count("/") > 1:
        return "is no folder of this machine; correct the path"
    if is_of(errors.HFValidationError):
        return "is no folder, and no name of the hub, which reads owner/name; correct it"
    if is_of(errors.GatedRepoError):
        return (
            f"is gated: accept its terms at {constants.ENDPOINT}/{path}, and set HF_TOKEN to a "
            "token of the account that did"
        )
    if is_of(errors.RepositoryNotFoundError):
        return (
            "is no folder, and the hub has no such model, or it is private; correct the name, or "
            "set HF_TOKEN"
        )
    fetch = f"run `hf download {path}` where there is a network, and set {section}.path to what it "
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
