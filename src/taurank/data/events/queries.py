"""The queries that make a log: which periods are complete, which cells are treated, and which outcome is whose.

They run in a private DuckDB that spills into a temporary folder, so that only the log itself has to fit into memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np

from taurank._checks import check_integer
from taurank.data.events.periods import Periods, clock_text
from taurank.data.events.tables import EventTable
from taurank.data.files import reason, temporary_folder
from taurank.errors import InputError, first_line, show

ENOUGH = 10  # users with events in a stretch of time, so that a period without any there is incomplete
MIN_PART = 0.02  # a missing stretch shorter than this part of the period does not matter

CELL = "user_code, item_code, period"
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


@contextmanager
def open_database(
    memory_limit: str | None, threads: int | None, temp_folder: str | os.PathLike[str] | None
) -> Iterator[Any]:
    """A private in-memory DuckDB with a temporary folder; both are removed afterwards."""
    if temp_folder is not None and not (isinstance(temp_folder, (str, os.PathLike)) and os.path.isdir(temp_folder)):
        raise InputError(f"temp_folder {temp_folder!r} is not a folder; create it first.")
    if threads is not None:
        check_integer("threads", threads)
    settings = {"memory_limit": memory_limit, "threads": threads}
    try:
        with temporary_folder(temp_folder) as folder:
            config = {name: value for name, value in settings.items() if value is not None}
            config |= {"temp_directory": os.fspath(folder), "preserve_insertion_order": False}
            try:
                database = duckdb.connect(":memory:", config=config)
            except (duckdb.Error, TypeError, ValueError, OverflowError) as error:
                raise InputError(f"{settings} cannot be used: {first_line(error)}.") from error
            with database:
                yield database
    except duckdb.OutOfMemoryException as error:
        raise InputError(f"memory_limit is too small for these tables: {first_line(error)}.") from error
    except (OSError, duckdb.IOException) as error:
        raise InputError(f"temporary files cannot be written: {reason(error)}; give a temp_folder.") from error


def one(database: Any, query: str) -> tuple[Any, ...]:
    """The first row of a query."""
    rows: list[tuple[Any, ...]] = database.execute(query).fetchall()  # all: an unfinished result blocks the next
    return rows[0]


def complete_periods(
    database: Any, periods: Periods, span: tuple[int, int], zone: str | None
) -> tuple[int, int, list[str]]:
    """The first and the last complete period, and what to say about the others.

    An export seldom begins and ends where a period does, and a period of which only a part was exported looks like
    one with few recommendations and outcomes. It is incomplete if a table has nothing in a stretch at its beginning
    (or its end) in which, on average, ENOUGH users have events in the table's other periods. So nights, closed
    Sundays and sparse tables do not make a period incomplete.
    """
    reasons: dict[int, str] = {}
    for table in ("impressions", "outcomes"):
        reasons = _incomplete(database, table, periods, span, zone) | reasons
    first, last = span
    while first in reasons:
        first += 1
    while last in reasons and last > first:
        last -= 1
    if first > last or last in reasons:
        raise InputError(
            f"no {periods.kind} is complete: {'; '.join(sorted(set(reasons.values())))}; choose a shorter period, or "
            "incomplete='keep' (--incomplete keep)."
        )
    names = periods.names(*span)
    dropped = [number for number in sorted(reasons) if not first <= number <= last]
    return first, last, [f"{show(names[number - span[0]])} ({reasons[number]})" for number in dropped]


def _incomplete(
    database: Any, table: str, periods: Periods, span: tuple[int, int], zone: str | None
) -> dict[int, str]:
    """The periods that a table begins or ends within, or misses altogether, each with the reason."""
    ends = f"SELECT min(period), max(period), min(instant), max(instant) FROM raw_{table}"
    low, high, begin, end = one(database, ends)
    if low is None or low == high:
        return {}
    starts = periods.starts(low, high + 1, zone)
    rows = ", ".join(f"({low + k}, {a}, {b})" for k, (a, b) in enumerate(pairwise(starts)))
    database.execute(f"CREATE OR REPLACE TABLE bounds AS SELECT * FROM (VALUES {rows}) b(period, start_at, end_at)")

    def users_per_period(condition: str, n_periods: int) -> float:
        events = f"SELECT DISTINCT user_code, period FROM raw_{table} JOIN bounds USING (period) WHERE {condition}"
        return float(one(database, f"SELECT count(*) FROM ({events})")[0]) / n_periods

    def lacks(own: int, gap: int, length: int, distance: str) -> bool:
        """Whether the other periods have events in the stretch in which this one has none."""
        others = f"period <> {own} AND {distance} < {gap}"
        return gap >= MIN_PART * length and users_per_period(others, high - low) >= ENOUGH

    lengths = np.diff(starts)
    first = low + lacks(low, begin - starts[0], lengths[0], "instant - start_at")
    last = high - lacks(high, starts[-1] - end, lengths[-1], "end_at - instant")
    if users_per_period("TRUE", high - low + 1) >= ENOUGH:
        low, high = span
    begins, finishes = (clock_text(instant, zone, "m").replace("T", " ") for instant in (begin, end))
    before = dict.fromkeys(range(low, first), f"{table} begin {begins}")
    return before | dict.fromkeys(range(last + 1, high + 1), f"{table} end {finishes}")


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


def limit_cells(database: Any, tables: Mapping[str, EventTable]) -> dict[str, list[str]]:
    """Tables visits_cells and candidates_cells, if given, of distinct cells in the log's periods; their columns."""
    limits = {}
    for name in ("visits", "candidates"):
        if name not in tables:
            continue
        codes = {"user_id": "user_code", "item_id": "item_code", "timestamp": "period"}
        keys = [code for column, code in codes.items() if tables[name].has(column)]
        if name == "candidates" and "user_code" in keys and "period" not in keys:
            raise InputError("candidates with a user_id need a timestamp as well; add the column to the table.")
        within = "WHERE period IS NOT NULL" if "period" in keys else ""
        database.execute(f"CREATE TABLE {name}_cells AS SELECT DISTINCT {', '.join(keys)} FROM {name} {within}")
        if not one(database, f"SELECT count(*) FROM {name}_cells")[0]:
            raise InputError(f"none of the {name} falls into the periods of the log; are their dates right?")
        limits[name] = keys
    return limits


def match_events(
    database: Any, tables: Mapping[str, EventTable], window: int | None, combine: str, limits: dict[str, list[str]]
) -> None:
    """Tables treated, attribution (of every outcome) and control, all by catalog positions."""
    _merge(database, "all_treated", "impressions WHERE period IS NOT NULL", tables["impressions"], combine)
    attribution = _BY_PERIOD if window is None else _BY_WINDOW.format(window=window)
    database.execute(f"CREATE VIEW treated AS SELECT * FROM ({_flagged('all_treated', limits)}) WHERE eligible")
    database.execute(f"""CREATE TABLE attribution AS SELECT * EXCLUDE (status, eligible),
        CASE WHEN eligible OR status = 'outside' THEN status ELSE 'not eligible' END AS status
        FROM ({_flagged(f"({attribution})", limits)})""")
    _merge(database, "control", "attribution WHERE status = 'control'", tables["outcomes"], combine)


def _flagged(cells: str, limits: dict[str, list[str]]) -> str:
    """A query for the rows of ``cells``, with the column eligible."""
    joins = "".join(
        f" LEFT JOIN (SELECT *, TRUE AS in_{name} FROM {name}_cells) {name} USING ({', '.join(keys)})"
        for name, keys in limits.items()
    )
    eligible = " AND ".join(f"coalesce(in_{name}, FALSE)" for name in limits) or "TRUE"
    return f"SELECT cells.*, {eligible} AS eligible FROM {cells} cells{joins}"


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
        SELECT o.*, s.period AS shown_in, coalesce(o.instant - s.instant <= {window}, FALSE) AS explained
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
