"""The tables of the service.

Ids of users and items are text everywhere in the service. Times are seconds since 1970 (UTC), periods are
numbered (see ``Period``). A decision is stored with what is needed to repeat it: model, policy and filter.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, LargeBinary, MetaData, String, Table, Text

SCHEMA_VERSION = 1  # a change of these tables is a new one, with its entry in ``migrations.MIGRATIONS``

metadata = MetaData()


def _key(name: str, kind: Any = String) -> Column[Any]:
    return Column(name, kind, primary_key=True)


def _required(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


settings = Table("settings", metadata, _key("name"), *_required(Text, "value"))
policies = Table("policies", metadata, _key("id"), *_required(Text, "body"))
filters = Table("filters", metadata, _key("id"), *_required(Text, "body"))

tokens = Table(
    "tokens",
    metadata,
    _key("id"),
    Column("digest", String, nullable=False, unique=True),  # SHA-256; the token itself is never stored
    *_required(String, "role", "label"),
    *_required(Double, "created"),
    Column("revoked", Double),
)

surfaces = Table(
    "surfaces",
    metadata,
    _key("name"),
    *_required(String, "policy", "period", "outcome"),
    Column("timezone", String, nullable=False, server_default="UTC"),  # in which days and weeks begin
    *_required(Double, "holdout", "share"),
    *_required(Boolean, "enabled"),
    *[Column(name, String) for name in ("holdout_model", "incumbent", "previous", "challenger")],
    Column("since", BigInteger),
    *[Column(name, Double) for name in ("max_value", "retention")],
    *_required(Integer, "trials"),  # how many challengers there have been
)

models = Table(
    "models",
    metadata,
    _key("version"),  # the start of the file's SHA-256
    *_required(String, "learner"),
    *_required(Integer, "users", "items"),
    *_required(Text, "note"),
    *_required(Double, "created"),
)

model_files = Table("model_files", metadata, _key("version"), *_required(LargeBinary, "content"))

items = Table(  # one row per change, so that a decision can be repeated with the items of its time
    "items",
    metadata,
    _key("item_id"),
    _key("version", BigInteger),  # of the whole item table, from 1
    *_required(Boolean, "available"),
    Column("until", Double),
    Column("category", String),
)

features = Table(  # of "users" and of "items", as Parquet
    "features", metadata, _key("name"), *_required(LargeBinary, "content")
)

history = Table(
    "history",
    metadata,
    _key("id", Integer),
    *_required(Double, "time"),
    *_required(String, "surface", "event"),
    Column("model", String),
    *_required(Text, "reason"),
)

decisions = Table(
    "decisions",
    metadata,
    _key("id"),  # a hash of surface, user and period: one decision each
    *_required(String, "surface", "user_id", "arm", "policy"),
    *_required(BigInteger, "period"),
    *_required(Double, "time"),
    Column("model", String),
    Column("filter", String),
    *_required(Text, "shown", "propensities"),  # JSON lists of ids, best first, and of their π
    Index("decisions_by_period", "surface", "period"),
)

outcomes = Table(
    "outcomes",
    metadata,
    _key("event_id"),  # of a line, or of an order with several items
    _key("item_id"),
    *_required(String, "user_id"),
    *_required(Double, "time", "value"),
    Index("outcomes_by_time", "time"),
)

settled = Table(
    "settled",
    metadata,
    _key("surface"),
    _key("period", BigInteger),
    *_required(Double, "time"),
    *_required(Text, "figures"),  # JSON: what the dashboard shows of the period
)

results = Table(  # one row per decision of a settled period
    "results",
    metadata,
    _key("decision"),
    *_required(String, "surface", "user_id", "arm"),
    *_required(BigInteger, "period"),
    Column("model", String),
    *_required(Double, "purchases"),  # items bought after the decision within the period
    *_required(Double, "lift", "value"),  # unbiased for the purchases, and their value, that the list caused
    Index("results_by_period", "surface", "period"),
)

positives = Table(  # the items bought, with π: what a log needs besides the lists
    "positives",
    metadata,
    _key("decision"),
    _key("item_id"),
    *_required(Integer, "treated"),
    *_required(Double, "propensity", "value"),
)

measures = Table(  # running sums: "life" since the hold-out began, "trial" since the challenger did
    "measures",
    metadata,
    _key("surface"),
    _key("name"),
    *_required(BigInteger, "since"),  # the first period that counts
    *_required(Text, "body"),  # JSON of ``lift.Measure``
)

user_sums = Table(  # each user's part of a measure
    "user_sums",
    metadata,
    _key("surface"),
    _key("measure"),
    _key("arm"),
    _key("user_id"),
    *_required(Double, "visits", "purchases", "lift", "value"),
)

item_sums = Table(  # each item's purchases after lists, weighted by 1/π and 1/(1 − π)
    "item_sums",
    metadata,
    _key("surface"),
    _key("item_id"),
    *_required(Double, "purchases", "shown", "unshown", "square", "chance"),
)

pages = Table(  # the dashboard as HTML, and what is to be said at its top if the job has stopped
    "pages", metadata, _key("surface"), *_required(Double, "time"), *_required(Text, "body", "alert")
)
