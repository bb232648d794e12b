"""The sections of a config about the CTR check."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from pipeline.settings import Choices, Count, Positive, Settings, without_repeats


class CtrSettings(Settings):
    """The CTR check; `features.ctr.arms` says what its arms are."""

    # That are trained with every arm.
    models: Choices[Literal["lr", "deepfm", "xdeepfm", "autoint", "din", "dcnv2"]] = [
        "din",
        "dcnv2",
    ]
    # Beside base, knowledge and shuffled, and plain where `plain_run` names its run.
    controls: Annotated[
        list[Literal["zeros", "raw_text", "history", "canary", "recommendations"]],
        AfterValidator(without_repeats),
    ] = ["zeros", "raw_text", "history", "canary"]
    # Trainings of each arm; more makes intervals narrower.
    seeds: Annotated[int, Field(ge=2, le=100)] = 5
    max_epochs: Count = 20  # at most; it stops earlier by `patience`
    patience: Count = 2  # epochs without a better validation AUC
    batch_size: Count = 512  # rows a step
    # Every arm of every model takes what is best on its validation rows, by its first seed.
    learning_rates: Choices[Positive] = [1e-3]
    # Of embedded fields and adapted knowledge; lr embeds nothing, so its base arm has none.
    dropouts: Choices[Annotated[float, Field(ge=0.0, lt=1.0)]] = [0.0, 0.5]
    weight_decay: Annotated[float, Field(ge=0.0)] = 1e-5  # of AdamW
    embedding_dim: Count = 32  # width of an id's or attribute's vector
    adaptor_dim: Count = 32  # width of knowledge as a CTR model gets it
    history_length: Count = 20  # latest items of a user that din reads
    # Resamples of users and seeds behind an interval.
    bootstrap: Annotated[int, Field(ge=100)] = 2000
    # No model gains as much and, if it is above 0, helps by the verdict: exit code 5.
    min_auc_gain: float | None = None
    lossless_margin: Positive = 1e-3  # AUC that acceleration may cost and be called lossless
    require_lossless: bool = False  # not all models show that it is: exit code 5


class AucSettings(Settings):
    """`make auc`: the check for several frameworks, relaxed against plainly decoded texts."""

    # Splits that are checked; see `catalog.split`.
    protocols: Choices[Literal["global_time", "per_user_prefix"]] = [
        "global_time",
        "per_user_prefix",
    ]
    frameworks: dict[str, Count] = {"kar": 64, "once": 32}  # and tokens that a text may have
    sliced: dict[str, Count] = {"trawl": 64, "rlmrec": 64}  # on the most active and most rated:
    slice_users: Count = 100  # most active users of `sliced`
    slice_items: Count = 100  # most rated items of `sliced`

    @model_validator(mode="after")
    def _something_is_checked(self) -> "AucSettings":
        if not self.frameworks and not self.sliced:
            raise ValueError("frameworks and sliced name no framework, so nothing is checked")
        return self
