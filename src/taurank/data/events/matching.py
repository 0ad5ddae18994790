"""Which outcome belongs to which cell, and which cells are treated: the queries that make a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taurank.data.events.eligible import EligibleCells
from taurank.data.events.tables import EventTable

# How the propensities of several events in one cell become one; "any" is 1 − Π(1 − p), in a fixed order,
# written so that small p keep their digits, and limited to values below 1 where it would round to it; it needs
# the propensities of all events.
COMBINE: Mapping[str, str] = {
    "same": "min(propensity)",
    "any": (
        "CASE WHEN count(propensity) = count(*) THEN least(list_reduce(list(propensity ORDER BY propensity), "
        "lambda a, b: a + b * (1 - a)), 1 - pow(2, -53)) END"
    ),
    "first": "arg_min(propensity, (instant, propensity))",
    "max": "max(propensity)",
}
CELL = "user_code, item_code, period"


def place(database: Any, table: EventTable, first: int, last: int) -> None:
    """The rows of a table by catalog positions, each distinct one once: two identical rows are one event."""
    joins, codes = "", []
    for name, code in (("user_id", "user_code"), ("item_id", "item_code")):
        known = table.has(name)
        joins += f" JOIN {table.name}_{name} {name} ON r.{code} = {name}.code" if known else ""
        codes.append(f"{f'{name}.position' if known else 'NULL::INTEGER'} AS {code}")
    database.execute(f"""CREATE TABLE {table.name} AS
        SELECT DISTINCT {", ".join(codes)}, instant,
            CASE WHEN period BETWEEN {first} AND {last} THEN period END AS period, propensity, value
        FROM raw_{table.name} r{joins}""")
    database.execute(f"DROP TABLE raw_{table.name}")


def match_events(
    database: Any, tables: Mapping[str, EventTable], reach: int | None, combine: str, eligible: EligibleCells
) -> None:
    """Tables treated, attribution (of every outcome) and control, all by catalog positions."""
    _merge(database, "all_treated", "impressions WHERE period IS NOT NULL", tables["impressions"], combine)
    query = _BY_PERIOD if reach is None else _BY_WINDOW.format(reach=reach)
    if eligible:
        database.execute(f"CREATE TABLE all_attribution AS {query}")
        database.execute(f"CREATE VIEW treated AS SELECT * FROM ({eligible.flagged('all_treated')}) WHERE eligible")
        query = _SET_ASIDE.format(flagged=eligible.flagged("all_attribution"))
    else:
        database.execute("CREATE VIEW treated AS SELECT * FROM all_treated")
    database.execute(f"CREATE TABLE attribution AS {query}")
    _merge(database, "control", "attribution WHERE status = 'control'", tables["outcomes"], combine)


_SET_ASIDE = """
    SELECT * EXCLUDE (status, eligible),
        CASE WHEN eligible OR status = 'outside' THEN status ELSE 'not eligible' END AS status
    FROM ({flagged})"""

# Both arms over the same span: an outcome belongs to the period in which it happened.
_BY_PERIOD = """
    SELECT o.*, CASE WHEN o.period IS NULL THEN 'outside'
                     WHEN t.period IS NULL THEN 'control' ELSE 'matched' END AS status
    FROM outcomes o LEFT JOIN all_treated t USING (user_code, item_code, period)"""

# An outcome belongs to the latest impression it followed within the window, else to its own period.
_BY_WINDOW = """
    WITH shown AS (
        SELECT DISTINCT user_code, item_code, instant, period
        FROM impressions SEMI JOIN outcomes USING (user_code, item_code)),
    explained AS (
        SELECT o.*, s.period AS shown_in, coalesce(o.instant - s.instant <= {reach}, FALSE) AS explained
        FROM outcomes o ASOF LEFT JOIN shown s
        ON o.user_code = s.user_code AND o.item_code = s.item_code AND o.instant >= s.instant)
    SELECT e.user_code, e.item_code, e.instant, e.propensity, e.value,
        CASE WHEN explained THEN shown_in ELSE e.period END AS period,
        CASE WHEN CASE WHEN explained THEN shown_in ELSE e.period END IS NULL THEN 'outside'
             WHEN explained THEN 'matched'
             WHEN t.period IS NULL THEN 'control'
             WHEN shown_in = e.period THEN 'late' ELSE 'early' END AS status
    FROM explained e LEFT JOIN all_treated t USING (user_code, item_code, period)"""


def _merge(database: Any, name: str, events: str, table: EventTable, combine: str) -> None:
    """One row per cell, with the number of its events, its propensity and its value."""
    propensity = COMBINE[combine] if table.has("propensity") else "NULL::DOUBLE"
    database.execute(f"""CREATE TABLE {name} AS
        SELECT {CELL}, count(*) AS events, {propensity} AS propensity,
            coalesce(min(propensity) < max(propensity), FALSE) AS differs,
            min(propensity) AS low, max(propensity) AS high, {total(table)} AS value
        FROM {events} GROUP BY {CELL}""")


def total(table: EventTable) -> str:
    """The sum of the values of a cell, in a fixed order, so that it has the same bits for any number of threads."""
    return "list_reduce(list(value ORDER BY value), lambda a, b: a + b)" if table.has("value") else "NULL::DOUBLE"
