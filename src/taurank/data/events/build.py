"""The rows of a log from the two tables a shop has: what was shown, and what happened.

Impressions (``user_id, item_id, timestamp``, optionally ``propensity``) and outcomes (the same columns)
become the rows of a ``Log``: time is cut into periods, a cell (user, item, period) is treated if the item was
shown to the user in it, and its outcome says whether something happened. The tables are walked in batches and
matched by DuckDB in a temporary folder, so that only the log itself has to fit into memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

from taurank._validation import check_choice, check_integer
from taurank.data.events.periods import Periods, on_the_clock, read_window
from taurank.data.events.summary import EventSummary
from taurank.data.events.tables import EventTable, merge_ids, refuse_different_zones
from taurank.data.files import reason
from taurank.data.ids import Catalogue, Codes, Ids
from taurank.data.sources import BATCH_ROWS
from taurank.data.temporary import temporary_folder
from taurank.errors import InputError, first_line, plural, show

MAX_EMPTY = 50  # periods per period with events, from which on a date must be wrong

# How the propensities of several events in one cell become one; "any" is 1 − Π(1 − p), in a fixed order,
# written so that small p keep their digits, and limited to values below 1 where it would round to it.
COMBINE = {
    "same": "min(propensity)",
    "any": (
        "least(list_reduce(list(propensity ORDER BY propensity), lambda a, b: a + b * (1 - a)), 1 - pow(2, -53))"
    ),
    "first": "arg_min(propensity, (instant, propensity))",
    "max": "max(propensity)",
}
CELL = "user_code, item_code, period"


class EventRows(NamedTuple):
    """The catalogue and the columns of the log, by time, user and item, and what became of the events."""

    catalogue: Catalogue
    user: Codes
    item: Codes
    time: Codes
    treated: npt.NDArray[np.int8]
    outcome: npt.NDArray[np.int8]
    propensity: npt.NDArray[np.float64] | None
    summary: EventSummary


def build_rows(
    impressions: Any,
    outcomes: Any,
    *,
    period: Any = "day",
    window: timedelta | str | None = None,
    users: Any = None,
    items: Any = None,
    combine: str = "same",
    id_types: Mapping[str, Any] | None = None,
    memory_limit: str | None = None,
    threads: int | None = None,
    temp_folder: str | os.PathLike[str] | None = None,
) -> EventRows:
    """The rows of a log from impressions and outcomes; ``Log.from_events`` explains every option."""
    periods, reach = Periods.of(period), read_window(window)
    check_choice("combine", combine, COMBINE)
    with _duckdb(memory_limit, threads, temp_folder) as database:
        tables = [
            EventTable(name, data, periods).load(database)
            for name, data in (("impressions", impressions), ("outcomes", outcomes))
        ]
        refuse_different_zones(*tables)
        given = {"user_id": users, "item_id": items}
        ids = {name: merge_ids(database, tables, name, own, id_types or {}) for name, own in given.items()}
        low, high, busy = _one(database, f"SELECT min(period), max(period), count(DISTINCT period) FROM ({_BOTH})")
        first, last = periods.span(low, high)
        _refuse_gaps(periods, first, last, busy)
        catalogue = Catalogue(ids["user_id"], ids["item_id"], Ids(periods.names(first, last), "time"))
        _match(database, tables, reach, combine)
        _refuse_differing(database, catalogue, first, combine)
        counts = _counts(database, tables) | _time_range(database, tables[0].zone)
        reached = None if reach is None else timedelta(microseconds=reach)
        summary = EventSummary(**counts, period=periods.kind, n_periods=catalogue.n_times, window=reached)
        return _collect(database, catalogue, first, summary)


def _refuse_gaps(periods: Periods, first: int, last: int, busy: int) -> None:
    """One wrong date would fill the log's times with empty periods, each counted as "nothing shown"."""
    count = last - first + 1
    if periods.kind in ("day", "week") and count > MAX_EMPTY * max(busy, 20):
        start, end = (show(periods.names(number, number)[0]) for number in (first, last))
        raise InputError(
            f"column 'timestamp': the events reach from {start} to {end}, {count:,} periods, but only "
            f"{busy:,} of them have events; correct the wrong dates, or give the edges of the periods."
        )


_BOTH = "SELECT * FROM raw_impressions UNION ALL SELECT * FROM raw_outcomes"


@contextmanager
def _duckdb(
    memory_limit: str | None, threads: int | None, temp_folder: str | os.PathLike[str] | None
) -> Iterator[Any]:
    """A database of its own that spills into a folder of its own; both are gone afterwards."""
    if temp_folder is not None and not (isinstance(temp_folder, (str, os.PathLike)) and os.path.isdir(temp_folder)):
        raise InputError(f"temp_folder {temp_folder!r} is not a folder; create it first.")
    if threads is not None:
        check_integer("threads", threads)
    try:
        with temporary_folder(temp_folder) as folder, _connect(memory_limit, threads, folder) as database:
            yield database
    except duckdb.OutOfMemoryException as error:
        raise InputError(f"memory_limit is too small for these tables: {first_line(error)}.") from error
    except (OSError, duckdb.IOException) as error:
        raise InputError(f"temporary files cannot be written: {reason(error)}; give a temp_folder.") from error


def _connect(memory_limit: str | None, threads: int | None, folder: os.PathLike[str]) -> Any:
    settings = {"memory_limit": memory_limit, "threads": threads}
    config = {name: value for name, value in settings.items() if value is not None}
    config |= {"temp_directory": os.fspath(folder), "preserve_insertion_order": False}
    try:
        return duckdb.connect(":memory:", config=config)
    except (duckdb.Error, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{settings} cannot be used: {first_line(error)}.") from error


def _match(database: Any, tables: list[EventTable], reach: int | None, combine: str) -> None:
    """Tables treated, attribution (of every outcome) and control, all by catalogue positions."""
    for table in tables:
        name = table.name
        database.execute(f"""CREATE VIEW {name} AS
            SELECT u.position AS user_code, i.position AS item_code, instant, period, propensity
            FROM raw_{name} r JOIN {name}_user_id u ON r.user_code = u.code
            JOIN {name}_item_id i ON r.item_code = i.code""")
    _merge(database, "treated", "impressions WHERE period IS NOT NULL", tables[0], combine)
    query = _BY_PERIOD if reach is None else _BY_WINDOW.format(reach=reach)
    database.execute(f"CREATE TABLE attribution AS {query}")
    _merge(database, "control", "attribution WHERE status = 'control'", tables[1], combine)


# Both arms over the same span: an outcome belongs to the period in which it happened.
_BY_PERIOD = """
    SELECT o.*, CASE WHEN o.period IS NULL THEN 'outside'
                     WHEN t.period IS NULL THEN 'control' ELSE 'matched' END AS status
    FROM outcomes o LEFT JOIN treated t USING (user_code, item_code, period)"""

# An outcome belongs to the latest impression it followed within the window, else to its own period.
_BY_WINDOW = """
    WITH shown AS (
        SELECT DISTINCT user_code, item_code, instant, period
        FROM impressions SEMI JOIN outcomes USING (user_code, item_code)),
    explained AS (
        SELECT o.*, s.period AS shown_in, coalesce(o.instant - s.instant <= {reach}, FALSE) AS explained
        FROM outcomes o ASOF LEFT JOIN shown s
        ON o.user_code = s.user_code AND o.item_code = s.item_code AND o.instant >= s.instant)
    SELECT e.user_code, e.item_code, e.instant, e.propensity,
        CASE WHEN explained THEN shown_in ELSE e.period END AS period,
        CASE WHEN CASE WHEN explained THEN shown_in ELSE e.period END IS NULL THEN 'outside'
             WHEN explained THEN 'matched'
             WHEN t.period IS NULL THEN 'control'
             WHEN shown_in = e.period THEN 'late' ELSE 'early' END AS status
    FROM explained e LEFT JOIN treated t USING (user_code, item_code, period)"""


def _merge(database: Any, name: str, events: str, table: EventTable, combine: str) -> None:
    """One row per cell, with the number of its events and its propensity."""
    propensity = COMBINE[combine] if table.has_propensity else "NULL::DOUBLE"
    database.execute(f"""CREATE TABLE {name} AS
        SELECT {CELL}, count(*) AS events, {propensity} AS propensity,
            coalesce(min(propensity) < max(propensity), FALSE) AS differs,
            min(propensity) AS low, max(propensity) AS high
        FROM {events} GROUP BY {CELL}""")


def _refuse_differing(database: Any, catalogue: Catalogue, first: int, combine: str) -> None:
    """combine="same": the events of a cell must agree on its propensity."""
    if combine != "same":
        return
    for arm, table in (("treated", "impressions"), ("control", "outcomes")):
        (n,) = _one(database, f"SELECT count(*) FROM {arm} WHERE differs")
        if n:
            user, item, period, low, high = _one(
                database, f"SELECT {CELL}, low, high FROM {arm} WHERE differs ORDER BY period, {CELL} LIMIT 1"
            )
            raise InputError(
                f"column '{table}.propensity' differs within {plural(n, 'cell')}, for example {low} and {high} at "
                f"user {catalogue.users.name(user)}, item {catalogue.items.name(item)}, period "
                f"{catalogue.times.name(period - first)}; set combine to any, first or max."
            )


def _counts(database: Any, tables: list[EventTable]) -> dict[str, Any]:
    """Everything the summary counts."""
    query = "SELECT status, count(*) FROM attribution GROUP BY status"
    outcomes: dict[str, int] = dict(database.execute(query).fetchall())
    treated, events = _one(database, "SELECT count(*), coalesce(sum(events), 0)::BIGINT FROM treated")
    (control,) = _one(database, "SELECT count(*) FROM control")
    (positive,) = _one(database, f"SELECT count(*) FROM ({_POSITIVE})")
    shown, happened = tables
    outside = {"impressions": shown.n_rows - events, "outcomes": outcomes.get("outside", 0)}
    for table in tables:
        if outside[table.name] == table.n_rows:
            raise InputError(f"none of the {table.n_rows:,} {table.name} falls into the given periods.")
    rows = treated + control
    lacking = (0 if shown.has_propensity else treated) + (0 if happened.has_propensity else control)
    matched, unshown = outcomes.get("matched", 0), outcomes.get("control", 0)
    return {
        "impressions": shown.n_rows, "impressions_outside": outside["impressions"],
        "treated_cells": treated, "repeated_impressions": events - treated,
        "outcomes": happened.n_rows, "outcomes_outside": outside["outcomes"],
        "matched": matched, "control": unshown, "repeated_outcomes": matched + unshown - positive - control,
        "before_impression": outcomes.get("early", 0), "after_window": outcomes.get("late", 0),
        "rows": rows, "rows_without_propensity": lacking,
    }  # fmt: skip


_POSITIVE = f"SELECT DISTINCT {CELL} FROM attribution WHERE status = 'matched'"
_ROWS = f"""
    SELECT {CELL}, 1::TINYINT AS treated, (p.positive IS NOT NULL)::TINYINT AS outcome, propensity
    FROM treated LEFT JOIN (SELECT *, TRUE AS positive FROM ({_POSITIVE})) p USING ({CELL})
    UNION ALL SELECT {CELL}, 0::TINYINT, 1::TINYINT, propensity FROM control
    ORDER BY period, user_code, item_code"""


def _collect(database: Any, catalogue: Catalogue, first: int, summary: EventSummary) -> EventRows:
    """The rows out of the database, by time, user and item, straight into the arrays of the log."""
    kinds: dict[str, npt.DTypeLike] = dict.fromkeys(CELL.split(", "), np.int32)
    kinds |= dict.fromkeys(("treated", "outcome"), np.int8)
    if not summary.rows_without_propensity:
        kinds["propensity"] = np.float64
    arrays: dict[str, npt.NDArray[Any]] = {name: np.empty(summary.rows, kind) for name, kind in kinds.items()}
    start = 0
    for batch in database.sql(_ROWS).to_arrow_reader(BATCH_ROWS):
        for name, array in arrays.items():
            array[start : start + batch.num_rows] = batch.column(name).to_numpy(zero_copy_only=False)
        start += batch.num_rows
    arrays["period"] -= first
    return EventRows(
        catalogue, arrays["user_code"], arrays["item_code"], arrays["period"],
        arrays["treated"], arrays["outcome"], arrays.get("propensity"), summary,
    )  # fmt: skip


def _time_range(database: Any, zone: str | None) -> dict[str, Any]:
    ends = np.array(_one(database, f"SELECT min(instant), max(instant) FROM ({_BOTH})"), np.int64)
    texts = np.datetime_as_string(on_the_clock(ends, zone).view("datetime64[us]"))
    suffix = f" {zone}" if zone else ""
    return {"first_event": f"{texts[0]}{suffix}", "last_event": f"{texts[1]}{suffix}"}


def _one(database: Any, query: str) -> tuple[Any, ...]:
    rows: list[tuple[Any, ...]] = database.execute(query).fetchall()
    return rows[0]
