"""Every table that crosses a stage, as Arrow schemas.

One row in, one row out: a row that failed is a row whose `error` is not empty. Ids are strings
always. Strings and lists are never null; an empty value means "none".
"""

import pyarrow as pa

KINDS = ("user", "item")
SPLITS = ("knowledge", "train", "valid", "test")
# Where a drafted token came from: texts, best first, or a draft model.
SOURCES = ("previous", "own", "group", "global", "model")

# How an item came into a list: a beam, a draft that was accepted, or the best of those left over.
LIST_SOURCES = ("beam", "accepted", "filled")

ATTRIBUTES = pa.map_(pa.string(), pa.string())

USERS = pa.schema([("user_id", pa.string()), ("attributes", ATTRIBUTES)])

ITEMS = pa.schema([("item_id", pa.string()), ("title", pa.string()), ("attributes", ATTRIBUTES)])

# Sorted by (timestamp, user_id, item_id), so that ties have one order everywhere.
# split "knowledge" is the past that prompts, embeddings and groups may see; the rest are CTR rows.
INTERACTIONS = pa.schema(
    [
        ("user_id", pa.string()),
        ("item_id", pa.string()),
        ("rating", pa.float32()),
        ("label", pa.int8()),
        ("timestamp", pa.int64()),  # seconds since 1970-01-01 UTC
        ("split", pa.string()),
    ]
)

# num_interactions counts edges of the training graph; 0 marks an isolated node, whose vector is
# zero because an untrained vector looks like a trained one.
EMBEDDINGS = pa.schema(
    [
        ("kind", pa.string()),
        ("entity_id", pa.string()),
        ("num_interactions", pa.int32()),
        ("vector", pa.list_(pa.float32())),
    ]
)

GROUPS = pa.schema(
    [
        ("kind", pa.string()),
        ("entity_id", pa.string()),
        ("route", pa.string()),  # collaborative | attribute
        ("group_id", pa.string()),
        ("distance", pa.float32()),  # cosine distance to the group's centroid; 0 if by attribute
        ("representative", pa.bool_()),  # generated in wave 0, by plain decoding
    ]
)

KNOWLEDGE = pa.schema(
    [
        ("kind", pa.string()),
        ("entity_id", pa.string()),
        ("group_id", pa.string()),
        ("wave", pa.int32()),
        ("prompt_hash", pa.string()),  # of the message alone: tells whether an entity has changed
        ("content_key", pa.string()),  # prompt tokens + parameters + model + rule: a row that holds
        ("request_key", pa.string()),  # the same + pool version: a row that need not be done again
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),  # without the stop token
        # Of each token: 0 if no draft stayed for it, 1 + its source's place in SOURCES if one did,
        # and 16 more if it is one of the relaxed tokens.
        ("token_origins", pa.list_(pa.int8())),
        ("finish_reason", pa.string()),  # stop | length | error
        ("rule", pa.string()),  # plain | strict | relaxed | sampled
        ("pool_version", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("asof", pa.int64()),  # timestamp of the latest interaction the run could know, 0 if none
        ("source_events", pa.int32()),  # interactions shown in the prompt
        ("latest_source", pa.int64()),  # timestamp of the latest of them, 0 if none
        ("forward_passes", pa.int32()),
        ("relaxed_tokens", pa.int32()),  # accepted although not the most probable
        ("relaxed_cost", pa.float32()),  # log-probability given up by them, in nats
        ("drafted_by_source", pa.list_(pa.int32())),  # order of SOURCES
        ("accepted_by_source", pa.list_(pa.int32())),
        ("drafted_by_depth", pa.list_(pa.int32())),  # index 0 = children of the last token
        ("accepted_by_depth", pa.list_(pa.int32())),
        # Index 0 = drafts that were expected to stay with a chance of 0.0 to 0.1, and so on.
        ("drafted_by_chance", pa.list_(pa.int32())),
        ("accepted_by_chance", pa.list_(pa.int32())),
        ("chance_by_decile", pa.list_(pa.float32())),  # sum of their chances
        ("error", pa.string()),
    ]
)

# Whose texts a vector was made from: the entity's own; else it is the mean over the texts of its
# group; else over those of its kind (`default`); of `none` the vector is zero.
VECTOR_SOURCES = ("own", "group", "default", "none")
# What a vector has seen. Of a mean: the latest `asof` and `latest_source` of the texts averaged,
# the sum of their `source_events`, and no prompt. Of `none`: zeros.
PROVENANCE = ("asof", "latest_source", "source_events", "prompt_hash")

# Entities with a text of their own come first, in the order of KNOWLEDGE, then all others.
FEATURES = pa.schema(
    [
        ("kind", pa.string()),
        ("entity_id", pa.string()),
        ("source", pa.string()),  # one of VECTOR_SOURCES
        ("asof", pa.int64()),
        ("latest_source", pa.int64()),
        ("source_events", pa.int64()),
        ("prompt_hash", pa.string()),
        ("vector", pa.list_(pa.float32())),  # fixed_size_list once the width is known
    ]
)

# One row per item, in the order of ITEMS. Every id has the same length; a code of level l is a
# number from 0 on, and means something else at every level.
SEMANTIC_IDS = pa.schema(
    [
        ("item_id", pa.string()),
        ("codes", pa.list_(pa.int32())),  # with the collision digit, if there is one
        # Has an interaction of the splits up to `recommender.until` in the run whose codebooks
        # these are, an earlier one with `semantic_ids.from_run`: there the recommender was trained.
        ("is_warm", pa.bool_()),
        ("collides", pa.bool_()),  # its nearest codes are those of another item too
    ]
)

# One row per user, in the order of USERS; a user who could not be served is an error row.
RECOMMENDATIONS = pa.schema(
    [
        ("user_id", pa.string()),
        ("asof", pa.int64()),  # timestamp of the latest interaction the list could know, 0 if none
        ("latest_source", pa.int64()),  # of the user's own ones, 0 if none
        ("source_events", pa.int32()),  # items of the history that were read
        ("unknown_items", pa.int32()),  # items of the history without a semantic ID, not read
        (
            "item_ids",
            pa.list_(pa.string()),
        ),  # best first; fewer than asked for if there are no more
        ("scores", pa.list_(pa.float32())),  # mean log-probability of a code
        ("sources", pa.list_(pa.string())),  # one of LIST_SOURCES
        ("calls", pa.int32()),  # of the model
        ("nodes_scored", pa.int32()),  # codes that the model scored, the history's aside
        ("accepted_levels", pa.int32()),  # drafted ones; of specgr drafted items
        ("rounds", pa.int32()),  # of drafting and verifying
        ("valid_share", pa.float32()),  # ids found that are an item's
        ("exit_reason", pa.string()),  # full | exhausted | unfilled | error, or what a method says
        ("error", pa.string()),
    ]
)

# Every model that the check trained; its scores make the result, and any other comparison.
FITS = pa.schema(
    [
        ("model", pa.string()),
        ("arm", pa.string()),
        ("seed", pa.int64()),
        ("learning_rate", pa.float64()),
        ("dropout", pa.float64()),
        ("valid_auc", pa.float64()),  # of the epoch kept
        ("epochs", pa.int32()),
        ("probabilities", pa.list_(pa.float32())),  # of the test rows, in order
    ]
)

# Parts of a comparison that is not finished: what one arm made of the rows of a kind.
TURNS = pa.schema(
    [
        ("try", pa.string()),  # one for each job that measured
        ("machine", pa.string()),  # and the program, see jobs.measured_rounds.place_of
        ("repeat", pa.int32()),
        ("kind", pa.string()),
        ("arm", pa.string()),
        ("seconds", pa.float64()),
        ("keys", pa.list_(pa.string())),  # of the rows; all below are in their order
        ("texts", pa.list_(pa.list_(pa.int32()))),
        ("passes", pa.list_(pa.int32())),
        ("finish_reasons", pa.list_(pa.string())),  # of the engine's arms, like the next two
        ("relaxed_tokens", pa.list_(pa.int32())),
        ("relaxed_costs", pa.list_(pa.float64())),
        ("statistics", pa.list_(pa.float64())),  # of the engine, in the order of its fields
    ]
)

SCHEMAS: dict[str, tuple[pa.Schema, int]] = {
    "users": (USERS, 1),
    "items": (ITEMS, 1),
    "interactions": (INTERACTIONS, 1),
    "embeddings": (EMBEDDINGS, 1),
    "groups": (GROUPS, 1),
    "knowledge": (KNOWLEDGE, 6),
    "features": (FEATURES, 2),
    "semantic_ids": (SEMANTIC_IDS, 1),
    "recommendations": (RECOMMENDATIONS, 1),
    "fits": (FITS, 1),
    "comparison": (TURNS, 1),
}

# The command of `laser` that makes a dataset, by the last part of its name.
MADE_BY = {
    "users": "catalog",
    "items": "catalog",
    "interactions": "catalog",
    "embeddings": "embed",
    "groups": "group",
    "pools": "pools",
    "knowledge": "generate",
    "comparison": "compare",
    "features": "encode",
    "quality": "quality",
    "fits": "check",
    "ctr": "check",
    "report": "report",
    "semantic_ids": "semantic-ids",
    "recommender": "recommender",
    "aligned_drafter": "align-drafter",
    "retriever": "retriever",
    "recommendations": "recommend",
}


def with_vector_width(schema: pa.Schema, width: int) -> pa.Schema:
    """Return `schema` with its `vector` column as `fixed_size_list<float>[width]`."""
    index = schema.get_field_index("vector")
    return schema.set(index, pa.field("vector", pa.list_(pa.float32(), width)))
