"""What a whole run will need, looked for before its first stage: files only, nothing is loaded."""

from features.encoder import locate_encoder, require_positions, require_weights
from jobs.generation_actor import draft_model_of
from jobs.plain_run import require_plain_run
from jobs.run_record import require_previous
from jobs.wave_names import has_draft_model
from pipeline.config import RunConfig
from pipeline.language_model import require_model_files
from pipeline.readers import raw_files


def check_inputs(config: RunConfig, writes_texts: bool = True) -> None:
    """Refuse now what a later stage would refuse, perhaps hours from now.

    Language models are looked for only if the run `writes_texts`.

    Raises:
        DataError: a table of the catalog, the run that a refresh goes on from or the plain run is
            missing.
        ModelError: a model is missing, or cannot be used as configured.
    """
    raw_files(config.catalog)
    require_previous(config)
    require_plain_run(config)
    if writes_texts:
        require_model_files(config.language_model, "language_model")
    if writes_texts and has_draft_model(config):
        require_model_files(draft_model_of(config), "drafts.model")
    encoder = locate_encoder(config.encoder.path)
    require_weights(encoder)
    require_positions(encoder, config.encoder.max_tokens)
