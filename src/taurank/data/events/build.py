"""The rows of a log from the two tables a shop has: what was shown, and what happened.

Impressions (``user_id, item_id, timestamp``, optionally ``propensity``) and outcomes (the same columns)
become the rows of a ``Log``: time is cut into periods, a cell (user, item, period) is treated if the item was
shown to the user in it, and its outcome says whether something happened. The tables are walked in batches and
matched by DuckDB, so that only the log itself has to fit into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.data.eligibility import Eligibility
from taurank.data.events.periods import Periods, clock_text
from taurank.data.events.queries import CELL, complete_periods, limit_cells, match_events, one, place, total
from taurank.data.events.summary import EventSummary
from taurank.data.events.tables import EventOptions, EventTable, load_tables, merge_ids
from taurank.data.ids import Catalog, Ids
from taurank.data.tables import BATCH_ROWS
from taurank.errors import InputError, plural, show

MAX_EMPTY = 50  # periods per period with events, from which on a date must be wrong


def build_rows(
    database: Any, given: Mapping[str, Any], lists: Mapping[str, Any], options: EventOptions
) -> dict[str, Any]:
    """The fields of a log from ``given`` tables and the caller's ``lists`` of ids: rows by time, user and item."""
    tables = load_tables(database, given, options)
    zone, periods = tables["impressions"].zone, options.periods
    users, items = (
        merge_ids(database, list(tables.values()), column, own, options.id_types.get(column))
        for column, own in lists.items()
    )
    first, last, dropped = _span(database, options, zone)
    catalog = Catalog(users, items, Ids(periods.names(first, last), "time"))
    for table in tables.values():
        place(database, table, first, last)
    limits = limit_cells(database, tables)
    match_events(database, tables, options.window, options.combine, limits)
    _check_propensities(database, catalog, first, options, tables)
    counts = _counts(database, tables)
    eligibility = _eligibility(database, catalog, first, limits, counts)
    instants = "SELECT instant FROM impressions UNION ALL SELECT instant FROM outcomes"
    ends = one(database, f"SELECT min(instant), max(instant) FROM ({instants})")
    begin, end = (clock_text(instant, zone, "us") + (f" {zone}" if zone else "") for instant in ends)
    summary = EventSummary(
        **counts, first_event=begin, last_event=end, period=periods.kind, n_periods=catalog.n_times,
        window=None if options.window is None else timedelta(microseconds=options.window),
        dropped_periods=tuple(dropped), eligibility=tuple(limits),
        eligible_cells=eligibility.cells if limits else None,
    )  # fmt: skip
    columns = _collect(database, summary, tables["outcomes"])
    columns["time"] -= first
    return {"catalog": catalog, **columns, "summary": summary, "eligibility": eligibility}


def _span(database: Any, options: EventOptions, zone: str | None) -> tuple[int, int, list[str]]:
    """The first and the last period of the log, and a remark about each period that is left out."""
    both = "SELECT period FROM raw_impressions UNION ALL SELECT period FROM raw_outcomes"
    low, high, busy = one(database, f"SELECT min(period), max(period), count(DISTINCT period) FROM ({both})")
    periods = options.periods
    first, last = periods.span(low, high)
    if periods.edges is not None:
        return first, last, []
    _check_gaps(periods, first, last, busy)
    return (
        (first, last, [])
        if options.incomplete == "keep"
        else complete_periods(database, periods, (first, last), zone)
    )


def _check_gaps(periods: Periods, first: int, last: int, busy: int) -> None:
    """One wrong date would fill the log's times with empty periods, each counted as "nothing shown"."""
    count = last - first + 1
    if count > MAX_EMPTY * max(busy, 20):
        start, end = (show(periods.names(number, number)[0]) for number in (first, last))
        raise InputError(
            f"column 'timestamp': the events reach from {start} to {end}, {count:,} periods, but only "
            f"{busy:,} of them have events; correct the wrong dates, or give the edges of the periods."
        )


def _check_propensities(
    database: Any, catalog: Catalog, first: int, options: EventOptions, tables: Mapping[str, EventTable]
) -> None:
    """The events of a cell must agree on its propensity (combine="same"), which is a probability if eligible."""
    checks = []
    if options.combine == "same":
        checks.append(
            (
                "differs",
                "differs within {n}, for example {low} and {high} at {cell}; set combine to any, first or max.",
            )
        )
    if options.limited:
        sentence = "must be strictly between 0 and 1 in eligible cells; {n} have {low} or {high}, for example {cell}."
        checks.append(("low <= 0 OR high >= 1", sentence))
    for arm, table in (("treated", "impressions"), ("control", "outcomes")):
        for condition, sentence in checks:
            (n,) = one(database, f"SELECT count(*) FROM {arm} WHERE {condition}")
            if n:
                query = f"SELECT {CELL}, low, high FROM {arm} WHERE {condition} ORDER BY period, {CELL} LIMIT 1"
                user, item, period, low, high = one(database, query)
                cell = (
                    f"user {catalog.users.name(user)}, item {catalog.items.name(item)}, period "
                    f"{catalog.times.name(period - first)}"
                )
                said = sentence.format(n=plural(n, "cell"), low=low, high=high, cell=cell)
                raise InputError(f"column '{tables[table].label('propensity')}' {said}")


def _counts(database: Any, tables: Mapping[str, EventTable]) -> dict[str, Any]:
    """Everything the summary counts; a log without a treated cell or an outcome was made from the wrong tables."""
    query = "SELECT status, count(*) FROM attribution GROUP BY status"
    fates: dict[str, int] = dict(database.execute(query).fetchall())
    treated, events = one(database, "SELECT count(*), coalesce(sum(events), 0)::BIGINT FROM treated")
    (all_events,) = one(database, "SELECT coalesce(sum(events), 0)::BIGINT FROM all_treated")
    (control,) = one(database, "SELECT count(*) FROM control")
    (positive,) = one(
        database, f"SELECT count(*) FROM (SELECT DISTINCT {CELL} FROM attribution WHERE status = 'matched')"
    )
    propensities = "SELECT propensity FROM treated UNION ALL SELECT propensity FROM control"
    (lacking,) = one(database, f"SELECT count(*) - count(propensity) FROM ({propensities})")
    counts: dict[str, Any] = {}
    for name in ("impressions", "outcomes"):
        table, (distinct,) = tables[name], one(database, f"SELECT count(*) FROM {name}")
        outside = distinct - all_events if name == "impressions" else fates.get("outside", 0)
        aside = all_events - events if name == "impressions" else fates.get("not eligible", 0)
        if outside == distinct:
            raise InputError(f"none of the {distinct:,} {name} falls into the given periods.")
        if outside + aside == distinct:
            raise InputError(
                f"none of the {distinct:,} {name} is in an eligible cell; do visits and candidates have the same ids "
                "and dates as the other tables?"
            )
        counts |= {
            name: table.n_rows, f"{name}_null": table.n_null, f"{name}_outside": outside,
            f"{name}_not_eligible": aside, f"{name}_duplicate": table.n_rows - table.n_null - distinct,
        }  # fmt: skip
    for what in ("user", "item"):
        shared = f"SELECT {what}_code FROM impressions INTERSECT SELECT {what}_code FROM outcomes"
        (counts[f"shared_{what}s"],) = one(database, f"SELECT count(*) FROM ({shared})")
    matched, unshown = fates.get("matched", 0), fates.get("control", 0)
    return counts | {
        "treated_cells": treated, "repeated_impressions": events - treated,
        "nulls": {f"{table.name}.{name}": n for table in tables.values() for name, n in table.nulls.items()},
        "matched": matched, "control": unshown, "repeated_outcomes": matched + unshown - positive - control,
        "before_impression": fates.get("early", 0), "after_window": fates.get("late", 0),
        "rows": treated + control, "rows_without_propensity": lacking,
    }  # fmt: skip


def _eligibility(
    database: Any, catalog: Catalog, first: int, limits: Mapping[str, list[str]], counts: Mapping[str, int]
) -> Eligibility:
    """Visits and candidates out of the database."""
    cells: dict[str, dict[str, Any]] = {}
    for name in limits:
        cells[name] = database.execute(f"SELECT * FROM {name}_cells").fetchnumpy()
        if "period" in cells[name]:
            cells[name]["period"] = cells[name]["period"] - first
    visits, candidates = cells.get("visits"), cells.get("candidates")
    return Eligibility.from_positions(
        catalog,
        (visits["user_code"], visits["period"]) if visits else None,
        (candidates.get("user_code"), candidates["item_code"], candidates.get("period")) if candidates else None,
        treated_outside=counts["impressions_not_eligible"],
        outcomes_outside=counts["outcomes_not_eligible"],
    )


_ROWS = f"""
    SELECT user_code AS user, item_code AS item, period AS time, treated, outcome, propensity, value FROM (
        SELECT {CELL}, 1::TINYINT AS treated, (p.positive IS NOT NULL)::TINYINT AS outcome, propensity,
            coalesce(p.total, 0) AS value
        FROM treated LEFT JOIN (
            SELECT {CELL}, TRUE AS positive, {{total}} AS total
            FROM attribution WHERE status = 'matched' GROUP BY {CELL}
        ) p USING ({CELL})
        UNION ALL SELECT {CELL}, 0::TINYINT, 1::TINYINT, propensity, value FROM control)
    ORDER BY period, user_code, item_code"""


def _collect(database: Any, summary: EventSummary, outcomes: EventTable) -> dict[str, Any]:
    """The rows out of the database, by time, user and item, straight into the arrays of the log."""
    kinds: dict[str, npt.DTypeLike] = dict.fromkeys(("user", "item", "time"), np.int32)
    kinds |= dict.fromkeys(("treated", "outcome"), np.int8)
    if summary.rows_without_propensity < summary.rows:
        kinds["propensity"] = np.float64
    if outcomes.has("value"):
        kinds["value"] = np.float64
    arrays: dict[str, Any] = {name: np.empty(summary.rows, kind) for name, kind in kinds.items()}
    start = 0
    for batch in database.sql(_ROWS.format(total=total(outcomes))).to_arrow_reader(BATCH_ROWS):
        for name, array in arrays.items():
            array[start : start + batch.num_rows] = batch.column(name).to_numpy(zero_copy_only=False)
        start += batch.num_rows
    return {"propensity": None, **arrays}
