"""The commands that make something: what each runs, and the words that a person reads of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.config import RunConfig

MAIN, STAGES, LISTS = "The nightly run", "Single stages, in order", "Recommendations"
OTHERS = "For other programs"


class Command(NamedTuple):
    """One command whose work is one job."""

    name: str
    module: str  # of jobs
    panel: str
    help: str
    example: str
    config: Path = Path("conf/demo.yaml")


GENERATIVE = Path("conf/generative.yaml")

COMMANDS = (
    Command(
        "run",
        "run_all",
        MAIN,
        "All stages, from raw tables to the report. What is up to date is skipped, and a run that "
        "was stopped or killed goes on where it was.",
        "laser run --config conf/bookshop.yaml --set generation.rule=strict --set run=strict",
    ),
    Command(
        "recommend",
        "recommend",
        MAIN,
        "The best items for every user by a generative recommender, with all stages before.",
        "laser recommend --set recommendation.method=nezha",
        GENERATIVE,
    ),
    Command(
        "catalog",
        "build_catalog",
        STAGES,
        "Raw tables to users, items and interactions, checked and split by time.",
        "laser catalog --config conf/bookshop.yaml",
    ),
    Command(
        "embed",
        "train_embeddings",
        STAGES,
        "LightGCN embeddings of users and items, from past interactions only.",
        "laser embed --set embeddings.dim=32",
    ),
    Command(
        "group",
        "group_entities",
        STAGES,
        "Groups of similar entities: by behaviour, or by attributes where there is too little.",
        "laser group --set groups.user_groups=4",
    ),
    Command(
        "pools",
        "build_pools",
        STAGES,
        "The pools (tries of earlier texts) of every wave whose earlier waves are written.",
        "laser pools --config conf/bookshop.yaml",
    ),
    Command(
        "generate",
        "generate_knowledge",
        STAGES,
        "Knowledge about every entity, in waves, drafted from pools that are built between them.",
        "laser generate --set generation.rule=strict --set run=strict",
    ),
    Command(
        "compare",
        "compare_decoding",
        STAGES,
        "Speed of plain, strict and relaxed decoding on this machine, on a few rows.",
        "laser compare --set comparison.repeats=3",
    ),
    Command(
        "encode",
        "encode_features",
        STAGES,
        "Knowledge to vectors, one for each entity, as Parquet.",
        "laser encode --set encoder.max_tokens=128",
    ),
    Command(
        "quality",
        "measure_quality",
        STAGES,
        "What the texts are like: near to plain ones, repeated, copied, true to the catalog.",
        "laser quality --set plain_run=strict",
    ),
    Command(
        "check",
        "check_ctr",
        STAGES,
        "CTR models with and without knowledge: does AUC gain, and is acceleration lossless? Ends "
        "with 5 if a threshold of the config is missed.",
        "laser check --set ctr.min_auc_gain=0.001",
    ),
    Command(
        "report",
        "write_report",
        STAGES,
        "report.html for people and report.json for dashboards.",
        "laser report --config conf/bookshop.yaml",
    ),
    Command(
        "export",
        "export_features",
        OTHERS,
        "Features and CTR rows as npz in FuxiCTR's format, and as Parquet in Feast's.",
        "laser export --config conf/bookshop.yaml",
    ),
    Command(
        "export-drafts",
        "export_drafts",
        OTHERS,
        "Pools of all texts, as vLLM's custom proposer reads them (see pipeline/docs/vllm.md).",
        "laser export-drafts --config conf/bookshop.yaml",
    ),
    Command(
        "semantic-ids",
        "assign_semantic_ids",
        LISTS,
        "Items as sequences of codes, from their texts and embeddings, with a health report.",
        "laser semantic-ids --set semantic_ids.quantizer=rq_vae",
        GENERATIVE,
    ),
    Command(
        "recommender",
        "train_recommender",
        LISTS,
        "A model that writes the semantic ID of what a user likes next.",
        "laser recommender --set recommender.training.max_epochs=3",
        GENERATIVE,
    ),
    Command(
        "align-drafter",
        "align_drafter",
        LISTS,
        "A small model that drafts beams for the recommender (AtSpeed).",
        "laser align-drafter",
        GENERATIVE,
    ),
    Command(
        "retriever",
        "train_retriever",
        LISTS,
        "Scores of all items for a user, new ones too, that SpecGR drafts with.",
        "laser retriever",
        GENERATIVE,
    ),
)


def stages_of(command: Command) -> Callable[[RunConfig], Sequence[str]]:
    """The jobs that a command consists of, by its config."""

    def stages(config: RunConfig) -> Sequence[str]:
        if command.module == "run_all":
            from jobs.run_all import STAGES

            return STAGES
        if command.module == "recommend":
            from jobs.recommend import stages_of

            return stages_of(config)
        return [command.module]

    return stages
