"""The rows of a log from the two tables a shop has: what was shown, and what happened.

Impressions (``user_id, item_id, timestamp``, optionally ``propensity``) and outcomes (the same columns)
become the rows of a ``Log``: time is cut into periods, a cell (user, item, period) is treated if the item was
shown to the user in it, and its outcome says whether something happened. The tables are walked in batches and
matched by DuckDB in a temporary folder, so that only the log itself has to fit into memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from taurank._choices import Combine, Incomplete, Nulls
from taurank._validation import check_choice
from taurank.data.eligibility import Eligibility
from taurank.data.events.catalog import merge_ids
from taurank.data.events.database import one, open_database
from taurank.data.events.eligible import EligibleCells
from taurank.data.events.incomplete import complete_periods
from taurank.data.events.matching import CELL, match_events, place, total
from taurank.data.events.periods import Periods, check_zone, on_the_clock, read_window
from taurank.data.events.renames import Renames
from taurank.data.events.summary import EventSummary
from taurank.data.events.tables import EventTable, Reading, load_tables
from taurank.data.ids import Catalog, Codes, Ids
from taurank.data.sources import BATCH_ROWS
from taurank.errors import InputError, plural, show

MAX_EMPTY = 50  # periods per period with events, from which on a date must be wrong


class EventRows(NamedTuple):
    """The catalog and the columns of the log, by time, user and item, and what became of the events."""

    catalog: Catalog
    user: Codes
    item: Codes
    time: Codes
    treated: npt.NDArray[np.int8]
    outcome: npt.NDArray[np.int8]
    propensity: npt.NDArray[np.float64] | None
    timed: bool
    summary: EventSummary
    values: npt.NDArray[np.float64] | None
    eligibility: Eligibility


def build_rows(
    impressions: Any,
    outcomes: Any,
    *,
    period: Any = "day",
    window: timedelta | str | None = None,
    users: Any = None,
    items: Any = None,
    combine: str = "same",
    columns: Mapping[str, str] | None = None,
    nulls: str = "refuse",
    timezone: str | None = None,
    incomplete: str = "drop",
    visits: Any = None,
    candidates: Any = None,
    id_types: Mapping[str, Any] | None = None,
    memory_limit: str | None = None,
    threads: int | None = None,
    temp_folder: str | os.PathLike[str] | None = None,
) -> EventRows:
    """The rows of a log from impressions and outcomes; ``Log.from_events`` explains every option."""
    reach = read_window(window)
    for name, choice, choices in (
        ("combine", combine, Combine),
        ("nulls", nulls, Nulls),
        ("incomplete", incomplete, Incomplete),
    ):
        check_choice(name, choice, get_args(choices))
    limited = visits is not None or candidates is not None
    reading = Reading(Periods.of(period), Renames(columns), check_zone(timezone), nulls, zero_propensity=limited)
    given = {"impressions": impressions, "outcomes": outcomes, "visits": visits, "candidates": candidates}
    with open_database(memory_limit, threads, temp_folder) as database:
        tables = load_tables(database, {name: data for name, data in given.items() if data is not None}, reading)
        lists = {"user_id": users, "item_id": items}
        all_tables = list(tables.values())
        ids = {name: merge_ids(database, all_tables, name, own, id_types or {}) for name, own in lists.items()}
        first, last, dropped = _span(database, reading.periods, incomplete, tables["impressions"].zone)
        catalog = Catalog(ids["user_id"], ids["item_id"], Ids(reading.periods.names(first, last), "time"))
        for table in tables.values():
            place(database, table, first, last)
        eligible = EligibleCells(database, tables, first, last)
        match_events(database, tables, reach, combine, eligible)
        _refuse_cells(database, catalog, first, combine, limited, tables)
        counts = _counts(database, tables) | _time_range(database, tables["impressions"].zone)
        reached = None if reach is None else timedelta(microseconds=reach)
        summary = EventSummary(
            **counts, period=reading.periods.kind, n_periods=catalog.n_times, window=reached,
            dropped_periods=tuple(dropped), eligibility=tuple(eligible.keys),
        )  # fmt: skip
        limits = eligible.collect(catalog, summary.impressions_not_eligible, summary.outcomes_not_eligible)
        if limits is not None:
            summary = replace(summary, eligible_cells=limits.cells)
        return _collect(database, catalog, first, summary, tables["outcomes"], limits)


def _span(database: Any, periods: Periods, incomplete: str, zone: str | None) -> tuple[int, int, list[str]]:
    """The first and the last period of the log, and a remark about each period that is left out."""
    low, high, busy = one(database, f"SELECT min(period), max(period), count(DISTINCT period) FROM ({_BOTH})")
    first, last = periods.span(low, high)
    _refuse_gaps(periods, first, last, busy)
    if periods.edges is not None or incomplete == "keep":
        return first, last, []
    return complete_periods(database, periods, (first, last), zone)


def _refuse_gaps(periods: Periods, first: int, last: int, busy: int) -> None:
    """One wrong date would fill the log's times with empty periods, each counted as "nothing shown"."""
    count = last - first + 1
    if periods.edges is None and count > MAX_EMPTY * max(busy, 20):
        start, end = (show(periods.names(number, number)[0]) for number in (first, last))
        raise InputError(
            f"column 'timestamp': the events reach from {start} to {end}, {count:,} periods, but only "
            f"{busy:,} of them have events; correct the wrong dates, or give the edges of the periods."
        )


_BOTH = "SELECT * FROM raw_impressions UNION ALL SELECT * FROM raw_outcomes"


def _refuse_cells(
    database: Any, catalog: Catalog, first: int, combine: str, limited: bool, tables: Mapping[str, EventTable]
) -> None:
    """The events of a cell must agree on its propensity (combine="same"), which is a probability if eligible."""
    for arm, table in (("treated", "impressions"), ("control", "outcomes")):
        label = tables[table].label("propensity")
        if combine == "same":
            _refuse_where(
                database, catalog, first, arm, "differs",
                f"column '{label}' differs within {{n}}, for example {{low}} and {{high}} at {{cell}}; "
                "set combine to any, first or max.",
            )  # fmt: skip
        if limited:
            _refuse_where(
                database, catalog, first, arm, "low <= 0 OR high >= 1",
                f"column '{label}' must be strictly between 0 and 1 in eligible cells; {{n}} have "
                "{low} or {high}, for example {cell}.",
            )  # fmt: skip


def _refuse_where(database: Any, catalog: Catalog, first: int, arm: str, condition: str, sentence: str) -> None:
    """Raise the sentence if any cell of an arm meets the condition."""
    (n,) = one(database, f"SELECT count(*) FROM {arm} WHERE {condition}")
    if n:
        query = f"SELECT {CELL}, low, high FROM {arm} WHERE {condition} ORDER BY period, {CELL} LIMIT 1"
        user, item, period, low, high = one(database, query)
        cell = (
            f"user {catalog.users.name(user)}, item {catalog.items.name(item)}, period "
            f"{catalog.times.name(period - first)}"
        )
        raise InputError(sentence.format(n=plural(n, "cell"), low=low, high=high, cell=cell))


def _counts(database: Any, tables: Mapping[str, EventTable]) -> dict[str, Any]:
    """Everything the summary counts."""
    query = "SELECT status, count(*) FROM attribution GROUP BY status"
    fates: dict[str, int] = dict(database.execute(query).fetchall())
    treated, events = one(database, "SELECT count(*), coalesce(sum(events), 0)::BIGINT FROM treated")
    (all_events,) = one(database, "SELECT coalesce(sum(events), 0)::BIGINT FROM all_treated")
    (control,) = one(database, "SELECT count(*) FROM control")
    (positive,) = one(database, f"SELECT count(*) FROM (SELECT DISTINCT {CELL} FROM attribution WHERE {_MATCHED})")
    (lacking,) = one(database, f"SELECT count(*) - count(propensity) FROM ({_PROPENSITIES})")
    shown, happened = tables["impressions"], tables["outcomes"]
    distinct = {name: one(database, f"SELECT count(*) FROM {name}")[0] for name in ("impressions", "outcomes")}
    outside = {"impressions": distinct["impressions"] - all_events, "outcomes": fates.get("outside", 0)}
    aside = {"impressions": all_events - events, "outcomes": fates.get("not eligible", 0)}
    for name in ("impressions", "outcomes"):
        _refuse_nothing_left(name, distinct[name], outside[name], aside[name])
    matched, unshown = fates.get("matched", 0), fates.get("control", 0)
    shared_users, shared_items = (one(database, _SHARED.format(code=c))[0] for c in ("user_code", "item_code"))
    return {
        "impressions": shown.n_rows, "impressions_outside": outside["impressions"],
        "impressions_null": shown.n_null, "impressions_not_eligible": aside["impressions"],
        "impressions_duplicate": shown.n_rows - shown.n_null - distinct["impressions"],
        "treated_cells": treated, "repeated_impressions": events - treated,
        "outcomes": happened.n_rows, "outcomes_outside": outside["outcomes"],
        "outcomes_null": happened.n_null, "outcomes_not_eligible": aside["outcomes"],
        "outcomes_duplicate": happened.n_rows - happened.n_null - distinct["outcomes"],
        "nulls": {f"{table.name}.{name}": n for table in tables.values() for name, n in table.nulls.items()},
        "matched": matched, "control": unshown, "repeated_outcomes": matched + unshown - positive - control,
        "before_impression": fates.get("early", 0), "after_window": fates.get("late", 0),
        "rows": treated + control, "rows_without_propensity": lacking,
        "shared_users": shared_users, "shared_items": shared_items,
    }  # fmt: skip


def _refuse_nothing_left(table: str, events: int, outside: int, aside: int) -> None:
    """A log without a treated cell, or without an outcome, was made from the wrong tables."""
    if outside == events:
        raise InputError(f"none of the {events:,} {table} falls into the given periods.")
    if outside + aside == events:
        raise InputError(
            f"none of the {events:,} {table} is in an eligible cell; do visits and candidates have the same ids and "
            "dates as the other tables?"
        )


_MATCHED = "status = 'matched'"
_SHARED = "SELECT count(*) FROM (SELECT {code} FROM impressions INTERSECT SELECT {code} FROM outcomes)"
_PROPENSITIES = "SELECT propensity FROM treated UNION ALL SELECT propensity FROM control"
_ROWS = f"""
    SELECT {CELL}, 1::TINYINT AS treated, (p.positive IS NOT NULL)::TINYINT AS outcome, propensity,
        coalesce(p.total, 0) AS value
    FROM treated LEFT JOIN (
        SELECT {CELL}, TRUE AS positive, {{total}} AS total FROM attribution WHERE {_MATCHED} GROUP BY {CELL}
    ) p USING ({CELL})
    UNION ALL SELECT {CELL}, 0::TINYINT, 1::TINYINT, propensity, value FROM control
    ORDER BY period, user_code, item_code"""


def _collect(
    database: Any,
    catalog: Catalog,
    first: int,
    summary: EventSummary,
    outcomes: EventTable,
    eligibility: Eligibility,
) -> EventRows:
    """The rows out of the database, by time, user and item, straight into the arrays of the log."""
    kinds: dict[str, npt.DTypeLike] = dict.fromkeys(CELL.split(", "), np.int32)
    kinds |= dict.fromkeys(("treated", "outcome"), np.int8)
    if summary.rows_without_propensity < summary.rows:
        kinds["propensity"] = np.float64
    if outcomes.has("value"):
        kinds["value"] = np.float64
    arrays: dict[str, npt.NDArray[Any]] = {name: np.empty(summary.rows, kind) for name, kind in kinds.items()}
    start = 0
    for batch in database.sql(_ROWS.format(total=total(outcomes))).to_arrow_reader(BATCH_ROWS):
        for name, array in arrays.items():
            array[start : start + batch.num_rows] = batch.column(name).to_numpy(zero_copy_only=False)
        start += batch.num_rows
    arrays["period"] -= first
    return EventRows(
        catalog, arrays["user_code"], arrays["item_code"], arrays["period"],
        arrays["treated"], arrays["outcome"], arrays.get("propensity"), True, summary, arrays.get("value"),
        eligibility,
    )  # fmt: skip


def _time_range(database: Any, zone: str | None) -> dict[str, Any]:
    both = "SELECT instant FROM impressions UNION ALL SELECT instant FROM outcomes"
    ends = np.array(one(database, f"SELECT min(instant), max(instant) FROM ({both})"), np.int64)
    texts = np.datetime_as_string(on_the_clock(ends, zone).view("datetime64[us]"))
    suffix = f" {zone}" if zone else ""
    return {"first_event": f"{texts[0]}{suffix}", "last_event": f"{texts[1]}{suffix}"}
