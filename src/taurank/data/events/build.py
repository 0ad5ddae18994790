"""A log from the two tables a shop has: what was shown, and what happened.

Impressions (``user_id, item_id, timestamp``, optionally ``propensity``) and outcomes (the same columns)
become the rows of a ``Log``: time is cut into periods, a cell (user, item, period) is treated if the item was
shown to the user in it, and its outcome says whether something happened. The tables are walked in batches and
matched by DuckDB in a temporary folder, so that only the log itself has to fit into memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from taurank.data.events.periods import Periods, on_the_clock, read_window
from taurank.data.events.tables import EventTable, refuse_two_clocks, unite
from taurank.data.ids import Catalogue, Ids
from taurank.data.log import Log
from taurank.data.sources import BATCH_ROWS
from taurank.errors import InputError, first_line

# How the propensities of several events in one cell become one; "any" is 1 − Π(1 − p), in a fixed order,
# written so that small p keep their digits, and kept below 1 where it would round to it.
MOST_EMPTY = 50  # times as many periods as hold events: then a date is wrong
COMBINE = {
    "same": "min(propensity)",
    "any": (
        "least(list_reduce(list(propensity ORDER BY propensity), lambda a, b: a + b * (1 - a)), 1 - pow(2, -53))"
    ),
    "first": "arg_min(propensity, (instant, propensity))",
    "max": "max(propensity)",
}
CELL = "user_code, item_code, period"


@dataclass(frozen=True)
class EventSummary:
    """What became of every event; ``str(summary)`` says it in words.

    ``impressions = treated_cells + repeated_impressions + impressions_outside`` and
    ``outcomes = matched + control + before_impression + after_window + outcomes_outside``.
    """

    impressions: int
    impressions_outside: int
    treated_cells: int
    repeated_impressions: int
    outcomes: int
    outcomes_outside: int
    matched: int
    control: int
    repeated_outcomes: int
    before_impression: int
    after_window: int
    rows: int
    rows_without_propensity: int
    first_event: str
    last_event: str
    period: str
    n_periods: int
    window: timedelta | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "window": None if self.window is None else str(self.window)}

    def __str__(self) -> str:
        window = "the period itself" if self.window is None else f"{self.window} after an impression"
        lines = [
            ("time", f"{self.first_event} to {self.last_event}"),
            ("periods", f"{self.n_periods:,} ({self.period})"),
            ("window", window),
            ("impressions", f"{self.impressions:,}"),
            ("", f"{self.treated_cells:,} treated cells, {self.repeated_impressions:,} repeated in a cell"),
            ("", f"{self.impressions_outside:,} outside the periods"),
            ("outcomes", f"{self.outcomes:,}"),
            ("", f"{self.matched:,} in a treated cell, {self.control:,} without an impression"),
            ("", f"{self.before_impression:,} before the impression, {self.after_window:,} after the window"),
            ("", f"{self.repeated_outcomes:,} repeated in a cell"),
            ("", f"{self.outcomes_outside:,} outside the periods"),
            ("rows", f"{self.rows:,}"),
            ("propensity", self._propensity_sentence()),
        ]
        return "\n".join(f"{name:<12} {text}" for name, text in lines)

    def _propensity_sentence(self) -> str:
        if not self.rows_without_propensity:
            return "recorded for every row"
        return (
            f"{self.rows_without_propensity:,} of {self.rows:,} rows have none, so the log records none; "
            "taurank.propensity.estimate can supply it."
        )


def build_log(
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
) -> Log:
    """One log from impressions and outcomes, with ``log.summary`` telling what became of every event.

    Both tables are a frame (pandas, Polars, PyArrow) or a path (Parquet or CSV; a file, a glob, a folder)
    with ``user_id, item_id, timestamp`` and optionally ``propensity``, the probability that the item was
    shown. A cell (user, item, period) is treated if an impression fell into it.

    ``period``: "day", "week" (from Monday) or a list of edges e0 < e1 < …; periods are half-open, [start,
    end), and named by their start. The log's times are all periods from the first event to the last, also
    empty ones; given edges count as they are, and events outside them are dropped and counted.

    ``window=None``: the outcome of a cell is 1 if an outcome happened in its period, shown or not. Both arms
    are measured over the same span, so that a difference between them is the effect and nothing else.

    ``window="3 days"``: an outcome at s belongs to the latest impression at r of the same user and item with
    r ≤ s ≤ r + window, and makes the cell of *that* impression positive, whatever period s lies in. An
    outcome that no impression explains belongs to its own period if the item was not shown there (a control
    row); if it was, it came too early or too late, is counted, and leaves the treated cell as it is. The arms
    are then measured over different spans: choose a period about as long as the window.

    ``combine``: the propensity of a cell with several events: "same" refuses values that differ, "any" is
    1 − Π(1 − p) (each was a chance of its own), "first", "max". The log records propensities if all its rows
    have one: treated rows from the impressions, control rows from the outcomes.

    ``users``, ``items``: a catalogue larger than what occurs; ``id_types``: types of the ids of a CSV, as in
    ``Log.read``. ``memory_limit`` ("2GB"; None: DuckDB's own, four fifths of the machine), ``threads`` and
    ``temp_folder`` are for DuckDB's work; none of them changes the log.
    """
    cut, reach = Periods.of(period), read_window(window)
    if combine not in COMBINE:
        raise InputError(f"combine must be one of {', '.join(COMBINE)}, not {combine!r}.")
    with _workshop(memory_limit, threads, temp_folder) as database:
        tables = [
            EventTable(name, data, cut).load(database)
            for name, data in (("impressions", impressions), ("outcomes", outcomes))
        ]
        refuse_two_clocks(*tables)
        given = {"user_id": users, "item_id": items}
        ids = {name: unite(database, tables, name, own, id_types or {}) for name, own in given.items()}
        low, high, busy = _one(database, f"SELECT min(period), max(period), count(DISTINCT period) FROM ({_BOTH})")
        first, last = cut.span(low, high)
        _refuse_gaps(cut, first, last, busy)
        catalogue = Catalogue(ids["user_id"], ids["item_id"], Ids(cut.names(first, last), "time"))
        _match(database, tables, reach, combine)
        _refuse_differing(database, catalogue, first, combine)
        facts = _counts(database, tables) | _time_range(database, tables[0].zone)
        reached = None if reach is None else timedelta(microseconds=reach)
        summary = EventSummary(**facts, period=cut.kind, n_periods=catalogue.n_times, window=reached)
        return _collect(database, catalogue, first, summary)


def _refuse_gaps(cut: Periods, first: int, last: int, busy: int) -> None:
    """One wrong date would fill the log's times with empty periods, each counted as "nothing shown"."""
    periods = last - first + 1
    if cut.kind in ("day", "week") and periods > MOST_EMPTY * max(busy, 20):
        names = cut.names(first, last)
        raise InputError(
            f"column 'timestamp': the events reach from {names[0]} to {names[-1]}, {periods:,} periods, but only "
            f"{busy:,} of them hold any; correct the dates that are wrong, or give the edges of the periods."
        )


_BOTH = "SELECT * FROM raw_impressions UNION ALL SELECT * FROM raw_outcomes"


@contextmanager
def _workshop(
    memory_limit: str | None, threads: int | None, temp_folder: str | os.PathLike[str] | None
) -> Iterator[Any]:
    """A database of its own that spills into a folder of its own; both are gone afterwards."""
    if temp_folder is not None and not os.path.isdir(temp_folder):
        raise InputError(f"temp_folder '{os.fspath(temp_folder)}' is not a folder; make it first.")
    wishes = {"memory_limit": memory_limit, "threads": threads}
    with tempfile.TemporaryDirectory(prefix="taurank-", dir=temp_folder) as folder:
        config = {name: wish for name, wish in wishes.items() if wish is not None}
        config |= {"temp_directory": folder, "preserve_insertion_order": False}
        try:
            database = duckdb.connect(":memory:", config=config)
        except duckdb.Error as error:
            raise InputError(f"{wishes} cannot be used: {first_line(error)}.") from error
        try:
            yield database
        except duckdb.OutOfMemoryException as error:
            raise InputError(f"memory_limit is too small for these tables: {first_line(error)}.") from error
        finally:
            database.close()


def _match(database: Any, tables: list[EventTable], reach: int | None, combine: str) -> None:
    """Tables treated, fates (of every outcome) and control, all by catalogue positions."""
    for table in tables:
        name = table.name
        database.execute(f"""CREATE VIEW {name} AS
            SELECT u.position AS user_code, i.position AS item_code, instant, period, propensity
            FROM raw_{name} r JOIN {name}_user_id u ON r.user_code = u.code
            JOIN {name}_item_id i ON r.item_code = i.code""")
    _merge(database, "treated", "impressions WHERE period IS NOT NULL", tables[0], combine)
    fates = _FATES_BY_PERIOD if reach is None else _FATES_BY_WINDOW.format(reach=reach)
    database.execute(f"CREATE TABLE fates AS {fates}")
    _merge(database, "control", "fates WHERE fate = 'control'", tables[1], combine)


# Both arms over the same span: an outcome belongs to the period in which it happened.
_FATES_BY_PERIOD = """
    SELECT o.*, CASE WHEN o.period IS NULL THEN 'outside'
                     WHEN t.period IS NULL THEN 'control' ELSE 'matched' END AS fate
    FROM outcomes o LEFT JOIN treated t USING (user_code, item_code, period)"""

# An outcome belongs to the latest impression it followed within the window, else to its own period.
_FATES_BY_WINDOW = """
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
             WHEN shown_in = e.period THEN 'late' ELSE 'early' END AS fate
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
                f"column '{table}.propensity' differs within {n:,} cells, for example {low} and {high} at "
                f"user {catalogue.users.name(user)}, item {catalogue.items.name(item)}, period "
                f"{catalogue.times.name(period - first)}; say how to combine them: any, first or max."
            )


def _counts(database: Any, tables: list[EventTable]) -> dict[str, Any]:
    """Everything the summary counts."""
    query = "SELECT fate, count(*) FROM fates GROUP BY fate"
    fates: dict[str, int] = dict(database.execute(query).fetchall())
    treated, events = _one(database, "SELECT count(*), coalesce(sum(events), 0)::BIGINT FROM treated")
    (control,) = _one(database, "SELECT count(*) FROM control")
    (positive,) = _one(database, f"SELECT count(*) FROM ({_POSITIVE})")
    shown, happened = tables
    outside = {"impressions": shown.n_rows - events, "outcomes": fates.get("outside", 0)}
    for table in tables:
        if outside[table.name] == table.n_rows:
            raise InputError(f"none of the {table.n_rows:,} {table.name} lies within the given edges.")
    rows = treated + control
    lacking = (0 if shown.has_propensity else treated) + (0 if happened.has_propensity else control)
    matched, unshown = fates.get("matched", 0), fates.get("control", 0)
    return {
        "impressions": shown.n_rows, "impressions_outside": outside["impressions"],
        "treated_cells": treated, "repeated_impressions": events - treated,
        "outcomes": happened.n_rows, "outcomes_outside": outside["outcomes"],
        "matched": matched, "control": unshown, "repeated_outcomes": matched + unshown - positive - control,
        "before_impression": fates.get("early", 0), "after_window": fates.get("late", 0),
        "rows": rows, "rows_without_propensity": lacking,
    }  # fmt: skip


_POSITIVE = f"SELECT DISTINCT {CELL} FROM fates WHERE fate = 'matched'"
_ROWS = f"""
    SELECT {CELL}, 1::TINYINT AS treated, (p.positive IS NOT NULL)::TINYINT AS outcome, propensity
    FROM treated LEFT JOIN (SELECT *, TRUE AS positive FROM ({_POSITIVE})) p USING ({CELL})
    UNION ALL SELECT {CELL}, 0::TINYINT, 1::TINYINT, propensity FROM control
    ORDER BY period, user_code, item_code"""


def _collect(database: Any, catalogue: Catalogue, first: int, summary: EventSummary) -> Log:
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
    return Log(
        catalogue, arrays["user_code"], arrays["item_code"], arrays["period"],
        arrays["treated"], arrays["outcome"], arrays.get("propensity"), timed=True, summary=summary,
    )  # fmt: skip


def _time_range(database: Any, zone: str | None) -> dict[str, Any]:
    ends = np.array(_one(database, f"SELECT min(instant), max(instant) FROM ({_BOTH})"), np.int64)
    texts = np.datetime_as_string(on_the_clock(ends, zone).view("datetime64[us]"))
    suffix = f" {zone}" if zone else ""
    return {"first_event": f"{texts[0]}{suffix}", "last_event": f"{texts[1]}{suffix}"}


def _one(database: Any, query: str) -> tuple[Any, ...]:
    rows: list[tuple[Any, ...]] = database.execute(query).fetchall()
    return rows[0]
