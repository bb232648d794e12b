"""The sections of a config about generative recommendation."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.locations import Location, ModelLocation
from pipeline.settings import Choices, Count, CountOrAuto, Positive, RunName, Settings, Share


class TrainingSettings(Settings):
    """AdamW until a figure of held-out events no longer rises."""

    learning_rate: Positive = 1e-3  # of AdamW
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01  # of AdamW
    batch_size: Count = 32  # windows of histories a step
    max_epochs: Count = 40  # at most; it stops earlier by `patience`
    patience: Count = 4  # epochs without a better figure
    warm_up: Annotated[int, Field(ge=0)] = 100  # steps up to the learning rate


def _require_even_shares(hidden_dim: int, heads: int) -> None:
    """Of the width every head has its share, which RoPE turns pair by pair."""
    if hidden_dim % (2 * heads):
        raise ValueError(
            f"hidden_dim is {hidden_dim} and heads is {heads}, but every head takes an even share "
            f"of hidden_dim; set hidden_dim to a multiple of {2 * heads}, or other heads"
        )


class RecommenderSettings(Settings):
    """A decoder-only model over semantic IDs, with a head that reads placeholders (NEZHA)."""

    # A run of the same artifacts whose recommender serves in this one, with the drafter and the
    # retriever that were trained beside it; nothing is trained. Goes with semantic_ids.from_run.
    from_run: Annotated[RunName | None, Field(exclude_if=lambda name: name is None)] = None
    # Latest split that is trained on; of the next one are the events that decide when to stop.
    until: Literal["knowledge", "train"] = "train"
    # A causal LM to begin with, a hub name or a folder; it brings hidden_dim, layers and heads.
    backbone: ModelLocation | None = None
    prompt: str = ""  # text before every history, in the words of the backbone
    hidden_dim: Count = 96  # width of the decoder; a multiple of 2 x heads
    layers: Count = 3  # of the decoder
    heads: Count = 4  # of its attention
    history_length: Count = 20  # latest items of a history that the model reads
    # Share of activations left out in training.
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    placeholder_weight: Annotated[float, Field(ge=0.0)] = 1.0  # of the head's loss; 0: no head
    placeholder_groups: Count = 3  # cuts of each window that the head learns from
    training: TrainingSettings = TrainingSettings()

    @model_validator(mode="after")
    def _a_prompt_needs_a_backbone(self) -> "RecommenderSettings":
        if self.prompt and self.backbone is None:
            raise ValueError(
                "prompt is set, but only a language model can read it; set backbone, or leave "
                "prompt empty"
            )
        return self

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "RecommenderSettings":
        if self.backbone is None:
            _require_even_shares(self.hidden_dim, self.heads)
        return self


class AlignedDrafterSettings(Settings):
    """`make align-drafter`: a small model that drafts beams for the recommender (AtSpeed)."""

    hidden_dim: Count = 32  # width; smaller drafts faster and worse
    layers: Count = 1  # of the drafter
    heads: Count = 2  # of its attention
    # What draws it to the recommender; atspeed_s serves strict verification, atspeed_r sampling;
    # sft does not: it learns from what was liked only.
    loss: Literal["atspeed_s", "atspeed_r", "forward_kl", "reverse_kl", "sft"] = "atspeed_s"
    alpha: Share = 0.7  # of that loss; the rest is of what was liked
    teacher_contexts: Count = 3000  # histories that the recommender searches
    teacher_beams: Count = 20  # of each
    training: TrainingSettings = TrainingSettings()

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "AlignedDrafterSettings":
        _require_even_shares(self.hidden_dim, self.heads)
        return self

    def shape(self, history_length: int) -> RecommenderSettings:
        """Settings of such a model."""
        return RecommenderSettings(
            hidden_dim=self.hidden_dim,
            layers=self.layers,
            heads=self.heads,
            history_length=history_length,
            dropout=0.0,
        )


class RqVaeSettings(Settings):
    """RQ-VAE (Lee et al., CVPR'22) as TIGER uses it (Rajput et al., NeurIPS'23)."""

    hidden_dim: Count = 256  # width of encoder and decoder
    latent_dim: Count = 32  # width of what is quantized
    commitment: Positive = 0.25  # weight of the loss that draws vectors to their codes
    learning_rate: Positive = 1e-3  # of Adam
    batch_size: Count = 1024  # items a step
    max_epochs: Count = 300  # at most; it stops earlier by `patience`
    patience: Count = 30  # epochs without a better reconstruction of held-out items


class SemanticIdSettings(Settings):
    """`make semantic-ids`: items as sequences of codes, coarse to fine."""

    # Vectors that say what an item is like: of the texts of the language model (`features`), or of
    # what the catalog says by itself, which needs no language model. Defaults of this and the next
    # are left out of what a dataset is made from: runs from before there was a choice stay current.
    content: Annotated[
        Literal["knowledge", "raw_text"], Field(exclude_if=lambda name: name == "knowledge")
    ] = "knowledge"
    # A run of the same artifacts whose codebooks and ids go on holding; only new items get an id.
    from_run: Annotated[RunName | None, Field(exclude_if=lambda name: name is None)] = None
    # What makes codes of vectors; rq_vae learns an encoder too.
    quantizer: Literal["rq_kmeans", "rq_vae"] = "rq_kmeans"
    levels: Annotated[int, Field(ge=1, le=8)] = 3  # without the collision digit
    codebook_size: CountOrAuto = "auto"  # of every level; auto: the root of the items fitted on
    # Items with equal codes: get one more code, a number below the codebook size; take the nearest
    # last code that is free; or share an id.
    collisions: Literal["counter", "reassign", "bucket"] = "counter"
    # How far collaborative vectors count beside content vectors; 0 leaves them out.
    collaborative_weight: Annotated[float, Field(ge=0.0)] = 1.0
    rq_vae: RqVaeSettings = RqVaeSettings()


class ThresholdSettings(Settings):
    """SpecGR: items are drafted whole, and accepted if they are likely enough."""

    drafted: Count = 50  # items a round, delta of the paper
    beams: Count = 20  # that drafts keep to, beta
    threshold: float = -1.8  # of the mean log-probability of a code, in nats; gamma
    guided_from: Literal[1, 2] = 1  # codes that beams have when drafts begin to keep to them
    # Codes of an item the recommender has not trained on that count: all but the last, or those
    # that a warm item begins with too, and `least_prefix` in any case.
    unseen: Literal["drop_last", "warm_prefix"] = "warm_prefix"
    least_prefix: CountOrAuto = "auto"  # as published: 2; of an encoder tower all but the last
    cold_only: bool = False  # only items without interactions are drafted, beside whole beam search


class RecommendationSettings(Settings):
    """`make recommend`: the best items for every user."""

    # See `pipeline.generative.methods`. The first six give the lists of the recommender's own beam
    # search; the next five sample; nezha's are of its draft head; the others find new items too.
    method: Literal[
        "beam",
        "exhaustive",
        "atspeed_s",
        "head_draft",
        "head_and_exhaustive",
        "retriever_draft",
        "sampled_beam",
        "sampled_exhaustive",
        "sampled_drafts",
        "sampled_head_draft",
        "atspeed_r",
        "nezha",
        "specgr",
        "specgr_plus",
    ] = "beam"
    top_k: Count = 10  # items of a list
    beams: Count = 20  # kept at every level; more is slower and finds more
    draft_nodes: Count = 128  # exhaustive: that may be guessed for a user and call
    draft_beams: Count = 40  # of a drafter that searches, N
    temperature: Positive = 1.0  # of what samples
    specgr: ThresholdSettings = ThresholdSettings()
    constrained: bool = True  # nothing but ids of items is ever written
    exclude_seen: bool = True  # nothing that the user has an interaction with, liked or not
    # The path of a table with a column item_id, data/withdrawn.csv say: recommended to nobody.
    withdrawn: Location | None = None
    # past: of the splits up to recommender.until, as a CTR check has to have it; all: of the log.
    history: Literal["past", "all"] = "all"
    batch_users: Count = 64  # searched at once
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one
    max_error_share: Share = 0.01  # more error rows than this: exit code 4

    @field_validator("withdrawn", mode="before")
    @classmethod
    def _withdrawn_is_a_table(cls, value: Any) -> Any:
        if value is None or isinstance(value, str | Path):
            return value
        raise ValueError(
            "is the path of a table with a column item_id; write the ids into a file, "
            "data/withdrawn.csv say, and name that"
        )

    @model_validator(mode="after")
    def _beams_fill_the_list(self) -> "RecommendationSettings":
        if self.beams < self.top_k:
            raise ValueError(f"beams is {self.beams}, below top_k {self.top_k}; raise it")
        return self


class RetrieverSettings(Settings):
    """`make retriever`: scores of all items, new ones too, for SpecGR (Ding et al., AAAI'26)."""

    # An item by its text, beside a frozen recommender; or by its semantic ID, through a copy of the
    # recommender that is trained on for both (SpecGR++).
    tower: Literal["content", "encoder"] = "content"
    dim: Count = 64  # width of the vectors that are compared
    temperature: Positive = 0.07  # of the softmax over items; lower is sharper
    contrastive_weight: Positive = 6.0  # encoder, stage 1: beside the loss of the next code
    ranking_weight: Positive = 6.0  # encoder, stage 2
    training: TrainingSettings = TrainingSettings()  # batches are of windows of histories


class GenerativeBenchmarkSettings(Settings):
    """`make bench-generative`: all methods on the same events."""

    events: Count = 2000  # of the split test
    widths: Annotated[Choices[Count], Field(min_length=3, max_length=3)] = [10, 50, 200]  # beams
    timed_users: Count = 100  # one at a time
    batch_sizes: Choices[Count] = [16, 64]  # users searched at once, each measured
    swept_events: Count = 300  # of warm items, for relations that vary a setting
