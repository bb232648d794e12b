"""The sections of a config that decide what text is written: model, rule, drafts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.locations import ModelLocation
from pipeline.settings import Choices, Count, Positive, Settings, Share


class LanguageModelSettings(Settings):
    """Any Hugging Face causal LM: hub name, or folder, local or remote (with `gguf_file` in it)."""

    path: ModelLocation  # hub name, or folder
    gguf_file: str | None = None  # name of the file in the folder, if the model is GGUF
    # float32 gives the same bits in any step, on a CPU.
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU if there is one


class RelaxedSettings(Settings):
    """When a drafted token may stand in for the most probable one; see `pipeline.engine.rules`.

    `top_k_floor` (LASER) reads top_k and floor, `top_k_delta` top_k and delta, `typical` epsilon
    and alpha; `budget` keeps the mean log-probability lost per token at nats_per_token.
    """

    # What makes a token good enough; see above what each reads.
    criterion: Literal["top_k_floor", "top_k_delta", "typical", "budget"] = "top_k_floor"
    # A token among so many most probable; more accepts more.
    top_k: Annotated[int, Field(ge=1, le=64)] = 2
    floor: Share = 0.1  # least probability of a token; less accepts more
    delta: Share = 0.3  # most by which it may be less probable than the best
    # Threshold on the probability; less accepts more.
    epsilon: Annotated[float, Field(gt=0.0, le=1.0)] = 0.09
    alpha: Positive = 0.3  # share of exp(-entropy); less accepts more
    # Mean log-probability given up a token; more accepts more.
    nats_per_token: Annotated[float, Field(ge=0.0, le=2.0)] = 0.05
    prefer: Literal["probable", "longest"] = "probable"  # longest: as in LASER's code

    @model_validator(mode="after")
    def _the_criterion_reads_what_is_set(self) -> "RelaxedSettings":
        reads = {
            "top_k_floor": {"top_k", "floor"},
            "top_k_delta": {"top_k", "delta"},
            "typical": {"epsilon", "alpha"},
            "budget": {"nats_per_token"},
        }
        fields = type(self).model_fields
        changed = {name for name in fields if getattr(self, name) != fields[name].default}
        idle = changed - reads[self.criterion] - {"criterion", "prefer"}
        if idle:
            owner = next(name for name, keys in reads.items() if keys & idle)
            raise ValueError(
                f"criterion {self.criterion} does not read {', '.join(sorted(idle))}; "
                f"set criterion: {owner}, or remove it"
            )
        return self


class SamplingSettings(Settings):
    """What sampled text is drawn from: temperature, then top-k, then top-p.

    A row's random numbers come from the seed and its request. Without drafts they make the same
    text every time; with drafts the same distribution.
    """

    temperature: Annotated[float, Field(ge=1e-3)] = 1.0  # above 1 flatter, below 1 sharper
    top_k: Annotated[int, Field(ge=0)] = 0  # 0: all
    # Draw from the fewest tokens of this total probability.
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 2026  # with the request, of a row's random numbers


class GenerationSettings(Settings):
    """How knowledge is written."""

    kinds: Choices[Literal["user", "item"]] = ["user", "item"]  # about whom is written
    # strict: the text of plain decoding; relaxed: near to it, faster; sampled: drawn at random.
    rule: Literal["strict", "relaxed", "sampled"] = "relaxed"
    relaxed: RelaxedSettings = RelaxedSettings()
    sampling: SamplingSettings = SamplingSettings()
    max_new_tokens: Count = 128  # of a text; longer ones are cut
    min_new_tokens: Annotated[int, Field(ge=0)] = 0  # no stop token before
    # Text that ends a row, itself left out.
    stop_strings: list[Annotated[str, Field(min_length=1)]] = []
    # Of tokens that occurred before; 1: none.
    repetition_penalty: Annotated[float, Field(ge=1.0, le=2.0)] = 1.1
    no_repeat_ngram: Annotated[int, Field(ge=0)] = 0  # such n-grams occur once; 0: any may recur
    waves: Annotated[int, Field(ge=1, le=100)] = 3  # after wave 0
    max_error_share: Share = 0.01  # more error rows than this: exit code 4
    block_rows: Count = 64  # rows stored together; at most so many finished ones die with the job

    @model_validator(mode="after")
    def _the_rule_reads_what_is_set(self) -> "GenerationSettings":
        if self.rule != "sampled" and self.sampling != SamplingSettings():
            raise ValueError(
                f"rule: {self.rule} does not read generation.sampling; set rule: sampled, or "
                "remove it"
            )
        return self

    @model_validator(mode="after")
    def _lengths_agree(self) -> "GenerationSettings":
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens {self.min_new_tokens} exceeds max_new_tokens {self.max_new_tokens}"
            )
        return self


class DraftSettings(Settings):
    """Who drafts: the pools, or a smaller causal LM with the same tokenizer."""

    source: Literal["pools", "model"] = "pools"  # model: `drafts.model` drafts instead of pools
    model: LanguageModelSettings | None = None  # source: model
    tokens: Annotated[int, Field(ge=1, le=16)] = 4  # that the model drafts per step
    # What pools draft from: the entity's earlier text, its prompt and output, its group, all.
    sources: Choices[Literal["previous", "own", "group", "global"]] = [
        "previous",
        "own",
        "group",
        "global",
    ]

    @model_validator(mode="after")
    def _model_is_given(self) -> "DraftSettings":
        if self.source == "model" and self.model is None:
            raise ValueError("source: model needs drafts.model.path")
        fields = type(self).model_fields
        idle = {"model": ["sources"], "pools": ["model", "tokens"]}.get(self.source, [])
        for name in idle:
            if getattr(self, name) != fields[name].default:
                raise ValueError(
                    f"drafts.{name} is set, but source: {self.source} does not read it"
                )
        return self
