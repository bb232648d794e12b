"""What a whole run will need, looked for before its first stage: files only, nothing is loaded."""

from collections.abc import Callable, Collection, Iterator

from features.encoder import locate_encoder, require_positions, require_weights
from jobs.generation_actor import draft_model_of
from jobs.log_run import require_mlflow
from jobs.plain_run import require_plain_run
from jobs.run_record import require_previous
from jobs.wave_names import has_draft_model
from pipeline.config import RunConfig
from pipeline.errors import UserError
from pipeline.language_model import require_context, require_model_files
from pipeline.readers import raw_files


def check_inputs(config: RunConfig, writes_texts: bool = True) -> None:
    """Refuse now what a later stage would refuse, perhaps hours from now.

    Language models are looked for only if the run `writes_texts`.

    Raises:
        ConfigError: MLflow is asked for, and not installed.
        DataError: a table of the catalog, the run that a refresh goes on from or the plain run is
            missing.
        ModelError: a model is missing, or cannot be used as configured.
    """
    for complaint in complaints(config, writes_texts):
        raise complaint


def complaints(
    config: RunConfig, writes_texts: bool = True, but_for: Collection[str] = ()
) -> Iterator[UserError]:
    """Everything that `check_inputs` would refuse, one after another, but for some sections."""
    checks: list[tuple[str, Callable[[RunConfig], object]]] = [
        ("mlflow", require_mlflow),
        ("catalog", lambda config: raw_files(config.catalog)),
        ("refresh", require_previous),
        ("plain_run", require_plain_run),
    ]
    if writes_texts:
        checks.append(("language_model", _require_language_model))
    if writes_texts and has_draft_model(config):
        checks.append(("drafts", _require_draft_model))
    for section, check in [*checks, ("encoder", _require_encoder)]:
        try:
            if section not in but_for:
                check(config)
        except UserError as error:
            yield error


def _require_language_model(config: RunConfig) -> None:
    require_model_files(config.language_model, "language_model")
    require_context(config.language_model, config.engine.max_length)


def _require_draft_model(config: RunConfig) -> None:
    require_model_files(draft_model_of(config), "drafts.model")


def _require_encoder(config: RunConfig) -> None:
    encoder = locate_encoder(config.encoder.path)
    require_weights(encoder)
    require_positions(encoder, config.encoder.max_tokens)
