"""The tables of the service.

Ids of users and items are text everywhere in the service. Times are seconds since 1970 (UTC), periods are
numbered (see ``periods``). A decision is stored with what is needed to repeat it: model, policy and filter.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

SCHEMA_VERSION = "1"

metadata = MetaData()

settings = Table(
    "settings", metadata, Column("name", String, primary_key=True), Column("value", Text, nullable=False)
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String, primary_key=True),
    Column("digest", String, nullable=False, unique=True),  # SHA-256; the token itself is never stored
    Column("role", String, nullable=False),
    Column("label", String, nullable=False),
    Column("created", Double, nullable=False),
    Column("revoked", Double),
)

policies = Table("policies", metadata, Column("id", String, primary_key=True), Column("body", Text, nullable=False))

surfaces = Table(
    "surfaces",
    metadata,
    Column("name", String, primary_key=True),
    Column("policy", String, nullable=False),
    Column("period", String, nullable=False),
    Column("holdout", Double, nullable=False),  # share of users
    Column("holdout_model", String),  # what they get: nothing (null), or the lists of this model
    Column("enabled", Boolean, nullable=False),
    Column("incumbent", String),
    Column("previous", String),  # the incumbent before, for a roll-back
    Column("challenger", String),
    Column("share", Double, nullable=False),  # the challenger's share of the other users
    Column("since", BigInteger),  # the first period that counts for the challenger
    Column("outcome", String, nullable=False),  # what a challenger is compared by: purchases, or value
    Column("max_value", Double),  # the most that a bought item counts
)

models = Table(
    "models",
    metadata,
    Column("version", String, primary_key=True),  # the start of the file's SHA-256
    Column("learner", String, nullable=False),
    Column("users", Integer, nullable=False),
    Column("items", Integer, nullable=False),
    Column("note", Text, nullable=False),
    Column("created", Double, nullable=False),
)

model_files = Table(
    "model_files",
    metadata,
    Column("version", String, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

history = Table(
    "history",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("time", Double, nullable=False),
    Column("surface", String, nullable=False),
    Column("event", String, nullable=False),
    Column("model", String),
    Column("reason", Text, nullable=False),
)

filters = Table("filters", metadata, Column("id", String, primary_key=True), Column("body", Text, nullable=False))

decisions = Table(
    "decisions",
    metadata,
    Column("id", String, primary_key=True),  # a hash of surface, user and period: one decision each
    Column("surface", String, nullable=False),
    Column("user_id", String, nullable=False),
    Column("period", BigInteger, nullable=False),
    Column("time", Double, nullable=False),
    Column("arm", String, nullable=False),
    Column("model", String),
    Column("policy", String, nullable=False),
    Column("filter", String),
    Column("shown", Text, nullable=False),  # JSON list of ids, best first
    Column("propensities", Text, nullable=False),  # JSON list of their π
    Index("decisions_by_period", "surface", "period"),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("event_id", String, primary_key=True),
    Column("user_id", String, nullable=False),
    Column("item_id", String, nullable=False),
    Column("time", Double, nullable=False),
    Column("value", Double, nullable=False),
    Index("outcomes_by_time", "time"),
)

settled = Table(
    "settled",
    metadata,
    Column("surface", String, primary_key=True),
    Column("period", BigInteger, primary_key=True),
    Column("time", Double, nullable=False),
)

results = Table(  # one row per decision of a settled period
    "results",
    metadata,
    Column("decision", String, primary_key=True),
    Column("surface", String, nullable=False),
    Column("period", BigInteger, nullable=False),
    Column("user_id", String, nullable=False),
    Column("arm", String, nullable=False),
    Column("model", String),
    Column("purchases", Double, nullable=False),  # items bought after the decision within the period
    Column("lift", Double, nullable=False),  # unbiased for the purchases that the list caused
    Column("greedy", Double, nullable=False),  # the same for a list of the best items, without exploration
    Column("explored", Double),  # expected share of slots not given to the best items; known for a sample
    Index("results_by_period", "surface", "period"),
)

positives = Table(  # the items bought, with π: what a log needs besides the lists
    "positives",
    metadata,
    Column("decision", String, primary_key=True),
    Column("item_id", String, primary_key=True),
    Column("treated", Integer, nullable=False),
    Column("propensity", Double, nullable=False),
    Column("value", Double, nullable=False),
)
