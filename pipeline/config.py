"""Every setting of a run, frozen and validated; each stage is handed its own section only.

`pipeline.config_file` reads them from conf/*.yaml.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from pipeline.catalog_config import CatalogSettings
from pipeline.ctr_config import AucSettings, CtrSettings
from pipeline.decoding_config import DraftSettings, GenerationSettings, LanguageModelSettings
from pipeline.forecast_config import PlanSettings
from pipeline.generative_config import (
    AlignedDrafterSettings,
    GenerativeBenchmarkSettings,
    RecommendationSettings,
    RecommenderSettings,
    RetrieverSettings,
    SemanticIdSettings,
)
from pipeline.locations import LocalFolder, Location, ModelLocation, without_password
from pipeline.settings import (
    Choices,
    Count,
    CountOrAuto,
    Positive,
    RunName,
    Settings,
    Share,
)


class EmbeddingSettings(Settings):
    """LightGCN (He et al., SIGIR'20)."""

    dim: Count = 64  # width of a vector; wider tells more apart and takes more memory
    # Hops over the graph; more blur neighbours together.
    layers: Annotated[int, Field(ge=1, le=8)] = 3
    learning_rate: Positive = 2e-2  # of Adam; lower it if the loss diverges
    # Of the squared vectors; more keeps them shorter.
    regularisation: Annotated[float, Field(ge=0.0)] = 1e-4
    batch_size: Count = 4096  # interactions a step
    max_epochs: Count = 200  # at most; it stops earlier by `patience`
    evaluate_every: Count = 5  # epochs between evaluations
    patience: Count = 10  # evaluations without a better validation Recall@20
    holdout_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2  # latest part of each user's past


class GroupSettings(Settings):
    """The router and the two kinds of group."""

    min_interactions: Count = 5  # fewer: the attribute route
    user_groups: CountOrAuto = "auto"  # collaborative groups; see `retrieval_pools.grouping`
    item_groups: CountOrAuto = "auto"  # likewise, of items
    user_attributes: list[str] = []  # most important first; dropped from the end when too small
    item_attributes: list[str] = []  # likewise, of items
    min_group_size: Count = 8  # of attribute groups
    representatives: Count = 4  # per group, written in wave 0


class PromptSettings(Settings):
    """What the LLM is asked about, and the wording."""

    domain: Annotated[str, Field(min_length=1)] = "movie"  # what the prompt calls an item
    history_limit: Count = 30  # latest interactions shown of a user
    max_tokens: Count = 1024  # a longer prompt is an error row
    # The user's own copy of conf/prompts/<framework>, which it is otherwise.
    templates: Annotated[LocalFolder | None, Field(exclude_if=lambda folder: folder is None)] = None

    def deciding(self) -> dict[str, Any]:
        """What prompts depend on besides their wording, of which `Templates.hash` tells."""
        return self.model_dump(mode="json", exclude={"templates"})


class EngineSettings(Settings):
    """Sizes of the decoding engine. KV memory = batch_rows x max_length x bytes per token."""

    batch_rows: Count = 16  # rows decoded at once; more is faster and takes more memory
    max_length: Annotated[int, Field(ge=16)] = 1536  # prompt + output + draft nodes of a row
    prefill_tokens: Count = 512  # prompt tokens computed per step
    draft_nodes: Annotated[int, Field(ge=0, le=256)] = 32  # per row, before the budget


class PoolSettings(Settings):
    """The tries."""

    # Tokens that suffixes are sorted by, and the deepest draft.
    depth: Annotated[int, Field(ge=2, le=64)] = 24
    # Of a pool, the global one included, at 12.5 bytes a token; the least worthy texts leave first.
    max_bytes: Annotated[int, Field(ge=16384)] = 50_000_000


class RefreshSettings(Settings):
    """A run over a changed catalog: rows of an earlier run whose prompt is the same are kept."""

    previous: RunName | None = None  # `run` of the earlier one


class EncoderSettings(Settings):
    """A sentence-transformers model: a hub name, or a local or remote folder."""

    path: ModelLocation  # of the model
    batch_size: Count = 64  # texts encoded at once
    max_tokens: Count = 256  # of a text; what is beyond is not read
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one


class ComparisonSettings(Settings):
    """Speed measured on a sample of the last wave, every arm in the same process."""

    # Users, and as many items; 0 leaves the comparison out.
    rows_per_kind: Annotated[int, Field(ge=0)] = 12
    repeats: Count = 1  # times that each arm decodes them; more makes intervals narrower


class BenchmarkSettings(Settings):
    """`make bench`: every arm at every batch size, in turns over blocks of rows."""

    batch_sizes: Choices[Count] = [1, 4, 8, 16, 32]  # rows decoded at once, each measured
    rows: Count = 4  # of a block, of each kind; never fewer than two batches
    blocks: Count = 2  # of rows; what is given in brackets is the spread over them
    max_new_tokens: Count = 48  # of a text
    refresh_rows: Count = 24  # users that `make bench-refresh` measures
    refresh_batch_sizes: Choices[Count] = [1, 16]  # likewise, of `make bench-refresh`
    fan_out_rows: Count = 96  # that `make bench-fan-out` writes each time
    profile_rows: Count = 24  # of each kind, of which `make plan-profile` verifies all drafts


class SweepSettings(Settings):
    """`make sweep`: draft sources varied one at a time, on the texts of a strict run."""

    groups: Choices[Count] = [1, 2, 4, 6, 8, 12, 16, 24]  # collaborative groups of a kind
    texts: Choices[Count] = [4, 8, 16, 32, 64, 128]  # per pool, and then all
    depths: Choices[Annotated[int, Field(ge=2, le=64)]] = [4, 8, 16, 24, 32]  # levels of a draft
    nodes: Choices[Annotated[int, Field(ge=1, le=256)]] = [4, 8, 16, 32, 64]  # of a draft
    seeds: Annotated[int, Field(ge=1, le=100)] = 3  # of whatever is drawn at random
    bootstrap: Annotated[int, Field(ge=100)] = 1000  # resamples behind an interval
    rule_rows: Annotated[int, Field(ge=0)] = 4  # of each kind that rules decode; 0 leaves them out
    rule_top_k: Choices[Count] = [2, 5]  # of one candidate it is strict, which is measured too
    rule_floors: Choices[Share] = [0.01, 0.1, 0.3]  # least probability p of a relaxed token
    rule_nats: Choices[Positive] = [0.02, 0.05, 0.1]  # per token


class ScaleSettings(Settings):
    """`make bench-scale`: what a token, an edge, an entity costs at every size."""

    # What is measured.
    stages: Choices[Literal["pools", "lookups", "lightgcn", "kmeans", "prompts", "knowledge"]] = [
        "pools",
        "lookups",
        "lightgcn",
        "kmeans",
        "prompts",
        "knowledge",
    ]
    text_tokens: Count = 128  # of a made-up text
    texts_per_group: Count = 500  # in a pool of its own
    pool_groups: Choices[Count] = [2, 16, 156, 2000]  # 64,000 tokens each
    lookup_tokens: Choices[Count] = [100_000, 1_000_000, 10_000_000]  # of one pool
    edges: Choices[Count] = [100_000, 1_000_000, 10_000_000]  # interactions that LightGCN trains on
    entities: Choices[Count] = [10_000, 100_000, 1_000_000]  # that k-means puts into groups
    clusters: Count = 256  # groups of k-means
    prompt_users: Choices[Count] = [10_000, 100_000]  # whose prompts are made
    knowledge_rows: Choices[Count] = [1_000, 10_000, 100_000]  # by a tiny model


class StageSettings(Settings):
    """Actors of one stage; each holds a model."""

    actors: Count | None = None  # None: one per GPU; without GPUs one per machine, or per `cores`
    cores: Count | None = None  # of each; None: they share all


class ClusterSettings(Settings):
    """Ray."""

    address: str | None = None  # None starts a local Ray
    knowledge: StageSettings = StageSettings()
    features: StageSettings = StageSettings()
    recommendations: StageSettings = StageSettings()
    # Memory of Ray's object store, MiB; blocks are small.
    object_store_mb: Annotated[int, Field(ge=80)] = 512


class MlflowSettings(Settings):
    """Where a whole run tells its headline, config and report; needs the extra `mlflow`."""

    # Of a server, or file:<folder>; a database such as sqlite:///<file> takes the whole MLflow, as
    # `pip install 'mlflow>=3'` brings it. None: nowhere.
    tracking_uri: Annotated[str | None, AfterValidator(without_password)] = None
    experiment: Annotated[str, Field(min_length=1)] = "laser-knowledge"  # that runs are filed under


class RunConfig(Settings):
    """Everything that decides what a run does."""

    run: RunName  # name of the run and of its folder in `artifacts`
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 2026  # of all that is drawn at random
    artifacts: Location = Path("artifacts")  # of an object store: .cache/working/ is a copy
    catalog: CatalogSettings
    embeddings: EmbeddingSettings = EmbeddingSettings()
    groups: GroupSettings = GroupSettings()
    language_model: LanguageModelSettings
    framework: Annotated[str, Field(min_length=1)] = "kar"  # a name of `features.frameworks`
    prompts: PromptSettings = PromptSettings()
    generation: GenerationSettings = GenerationSettings()
    engine: EngineSettings = EngineSettings()
    drafts: DraftSettings = DraftSettings()
    pools: PoolSettings = PoolSettings()
    refresh: RefreshSettings = RefreshSettings()
    plain_run: RunName | None = None  # decoded plain or strict
    encoder: EncoderSettings
    semantic_ids: SemanticIdSettings = SemanticIdSettings()
    recommender: RecommenderSettings = RecommenderSettings()
    recommendation: RecommendationSettings = RecommendationSettings()
    aligned_drafter: AlignedDrafterSettings = AlignedDrafterSettings()
    retriever: RetrieverSettings = RetrieverSettings()
    ctr: CtrSettings = CtrSettings()
    auc: AucSettings = AucSettings()
    comparison: ComparisonSettings = ComparisonSettings()
    benchmark: BenchmarkSettings = BenchmarkSettings()
    generative_benchmark: GenerativeBenchmarkSettings = GenerativeBenchmarkSettings()
    scale: ScaleSettings = ScaleSettings()
    sweep: SweepSettings = SweepSettings()
    plan: PlanSettings = PlanSettings()
    cluster: ClusterSettings = ClusterSettings()
    mlflow: MlflowSettings = MlflowSettings()

    @model_validator(mode="after")
    def _other_runs_are_others(self) -> "RunConfig":
        others = {
            "refresh.previous": self.refresh.previous,
            "plain_run": self.plain_run,
            "semantic_ids.from_run": self.semantic_ids.from_run,
            "recommender.from_run": self.recommender.from_run,
        }
        for key, name in others.items():
            if name == self.run:
                raise ValueError(
                    f"{key} is {self.run!r}, the run itself; give this run another name"
                )
        return self

    @model_validator(mode="after")
    def _lists_that_are_checked_are_of_the_past(self) -> "RunConfig":
        if "recommendations" in self.ctr.controls and (
            self.recommender.until != "knowledge" or self.recommendation.history != "past"
        ):
            raise ValueError(
                "ctr.controls names recommendations, which must not know a CTR row; set "
                "recommender.until to knowledge and recommendation.history to past"
            )
        return self

    @model_validator(mode="after")
    def _a_method_has_its_models(self) -> "RunConfig":
        method, tower = self.recommendation.method, self.retriever.tower
        towers = {"specgr": "content", "retriever_draft": "content", "specgr_plus": "encoder"}
        if towers.get(method, tower) != tower:
            raise ValueError(
                f"recommendation.method {method} needs a retriever of the other kind; set "
                f"retriever.tower to {towers[method]}"
            )
        reads_head = method == "nezha" or "head" in method
        if reads_head and not self.recommender.placeholder_weight:
            raise ValueError(
                f"recommendation.method {method} needs NEZHA's head, which "
                "recommender.placeholder_weight 0 leaves out; set it above 0"
            )
        return self

    @model_validator(mode="after")
    def _a_row_fits_its_slot(self) -> "RunConfig":
        need = self.prompts.max_tokens + self.generation.max_new_tokens + self.engine.draft_nodes
        if need > self.engine.max_length:
            raise ValueError(
                f"engine.max_length is {self.engine.max_length}, but prompts.max_tokens + "
                f"generation.max_new_tokens + engine.draft_nodes = {need}; raise it to {need}"
            )
        return self
