"""The rows of a log from the two tables a shop has: what was shown, and what happened.

Impressions (``user_id, item_id, timestamp``, optionally ``propensity``) and outcomes (the same columns)
become the rows of a ``Log``: time is cut into periods, a cell (user, item, period) is treated if the item was
shown to the user in it, and its outcome says whether something happened. The tables are walked in batches and
matched by a private DuckDB that spills into a temporary folder, so that only the log itself has to fit into memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank._checks import check_integer
from taurank.data.eligibility import Eligibility
from taurank.data.events.periods import clock_text
from taurank.data.events.summary import EventSummary
from taurank.data.events.tables import EventOptions, EventTable, load_tables, merge_ids
from taurank.data.files import reason, temporary_folder
from taurank.data.ids import Catalog, Ids
from taurank.data.reader import IdColumn
from taurank.data.tables import BATCH_ROWS
from taurank.errors import InputError, first_line, plural, show

MAX_EMPTY = 50  # periods per period with events, from which on a date must be wrong
ENOUGH = 10  # users with events in a stretch of time, so that a period without any there is incomplete
MIN_PART = 0.02  # a missing stretch shorter than this part of the period does not matter
MAX_CERTAIN = 0.1  # the largest share of cells with a propensity of 0 or 1 that are set aside

CELL = "user_id, item_id, period"
# How the propensities of several events in one cell become one; "any" is 1 − Π(1 − p), in a fixed order,
# written so that small p keep their digits, and limited to values below 1 where it would round to it; it needs
# the propensities of all events.
COMBINE: Mapping[str, str] = {
    "same": "min(propensity)",
    "any": (
        "CASE WHEN max(propensity) >= 1 THEN 1 WHEN count(propensity) = count(*) THEN least(list_reduce("
        "list(propensity ORDER BY propensity), lambda a, b: a + b * (1 - a)), 1 - pow(2, -53)) END"
    ),
    "first": "arg_min(propensity, (instant, propensity))",
    "max": "max(propensity)",
}


@contextmanager
def open_database(memory_limit: str | None, threads: int | None) -> Iterator[Any]:
    """A private in-memory DuckDB with a folder in the system's temporary one; both are removed afterwards."""
    if threads is not None:
        check_integer("threads", threads)
    settings = {"memory_limit": memory_limit, "threads": threads}
    try:
        with temporary_folder() as folder:
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
        raise InputError(
            f"temporary files cannot be written: {reason(error)}; name another folder in TMPDIR."
        ) from error


# The share of visits, users in a period, in which items are shown for the first time half an hour after others.
_LATER_LISTS = """
SELECT coalesce(avg((max_first - min_first > 1800000000)::INTEGER), 0) FROM (
    SELECT max(first) AS max_first, min(first) AS min_first FROM (
        SELECT user_id, period, min(instant) AS first FROM impressions WHERE period IS NOT NULL
        GROUP BY user_id, period, item_id)
    GROUP BY user_id, period)
"""


def build_rows(
    database: Any, given: Mapping[str, Any], lists: Mapping[str, Any], options: EventOptions
) -> dict[str, Any]:
    """The fields of a log from ``given`` tables and the caller's ``lists`` of ids: rows by time, user and item."""
    ids = {column: IdColumn(column) for column in lists}
    tables = load_tables(database, given, options, ids)
    users, items = (merge_ids(database, ids[name], own, options.id_types.get(name)) for name, own in lists.items())
    zone = tables["impressions"].zones[0]
    first, last, dropped = _span(database, options, zone)
    catalog = Catalog(users, items, Ids(options.periods.names(first, last), "time"))
    for table in tables.values():
        _place(database, table, first, last)
    limiting: list[str] = [name for name in ("visits", "candidates") if name in tables] or ["slates"]
    limits: dict[str, dict[str, Any]] = {name: _limit(database, tables[name]) for name in limiting if name in tables}
    returns, (later_lists,) = _net_returns(database), one(database, _LATER_LISTS)
    _match(database, tables, options, limits)
    if options.combine == "same" and "slates" not in tables:
        _check_same(database, catalog, tables)
    certain = _set_certain_aside(database, catalog, tables)
    fates = {
        "impressions": _fates_of(database, tables["impressions"], "impressions", {}, certain[0]),
        "outcomes": _fates_of(database, tables["outcomes"], "attribution", returns, certain[1]),
    }
    visit, candidate = limits.get("visits", {}).get, limits.get("candidates", limits.get("slates", {})).get
    eligibility = Eligibility.from_positions(
        catalog, (visit("user_id"), visit("period")),
        (candidate("user_id"), candidate("item_id"), candidate("period")),
        outside=(fates["impressions"]["not eligible"], fates["outcomes"]["not eligible"]),
    )  # fmt: skip
    instants = "SELECT instant FROM impressions UNION ALL SELECT instant FROM outcomes"
    ends = one(database, f"SELECT min(instant), max(instant) FROM ({instants})")
    common = "SELECT count(*) FROM impressions SEMI JOIN outcomes USING ({})"
    counts = "count(*), count(*) - count(chance.propensity), coalesce(sum(happened - 1), 0)::BIGINT"
    rows, lacking, repeated = one(database, f"SELECT {counts} FROM cells")
    summary = EventSummary(
        **fates, repeated_outcomes=repeated, rows=rows, rows_without_propensity=lacking, n_periods=catalog.n_times,
        nulls={f"{table.name}.{name}": n for table in tables.values() for name, n in table.nulls.items()},
        span=tuple(clock_text(instant, zone, "us") + (f" {zone}" if zone else "") for instant in ends),
        period=options.periods.kind, dropped_periods=dropped,
        window=None if options.window is None else timedelta(microseconds=options.window),
        later_lists=later_lists,
        apart=tuple(what for what in ("user", "item") if one(database, common.format(f"{what}_id")) == (0,)),
    )  # fmt: skip
    columns = _collect(database, rows, lacking < rows, tables["outcomes"].has_values)
    return {"catalog": catalog, **columns, "summary": summary, "eligibility": eligibility}


def one(database: Any, query: str) -> tuple[Any, ...]:
    rows: list[tuple[Any, ...]] = database.execute(query).fetchall()  # all: an unfinished result blocks the next
    return rows[0]


def _span(database: Any, options: EventOptions, zone: str | None) -> tuple[int, int, tuple[str, ...]]:
    """The first and the last period of the log, and a remark about each that is left out as incomplete.

    An export seldom begins and ends where a period does, and a period of which only a part was exported looks like
    one with few recommendations and outcomes. It is incomplete if a table has nothing in a stretch at its beginning
    (or its end) in which, on average, ENOUGH users have events in the table's other periods. So nights, closed
    Sundays and sparse tables do not make a period incomplete.
    """
    periods = options.periods
    if periods.edges is not None:
        return 0, len(periods.edges) - 2, ()
    both = "SELECT period FROM raw_impressions UNION ALL SELECT period FROM raw_outcomes"
    low, high, busy = one(database, f"SELECT min(period), max(period), count(DISTINCT period) FROM ({both})")
    names = periods.names(low, high)
    if high - low + 1 > MAX_EMPTY * max(busy, 20):  # each would count as "nothing shown"
        raise InputError(
            f"column 'timestamp': the events reach from {show(names[0])} to {show(names[-1])}, {len(names):,} "
            f"periods, but only {busy:,} of them have events; correct the wrong dates, or give the edges of the "
            "periods."
        )
    if options.incomplete == "keep":
        return low, high, ()
    starts = periods.starts(low, high + 1, zone)
    bounds = pa.table({"period": np.arange(low, high + 1), "start_at": starts[:-1], "end_at": starts[1:]})
    database.register("bounds", bounds)
    reasons: dict[int, str] = {}
    for table in ("outcomes", "impressions"):
        ends = f"SELECT min(period), max(period), min(instant), max(instant) FROM raw_{table}"
        first, last, begin, end = one(database, ends)
        if first == last:
            continue
        gaps = (begin - starts[first - low], starts[last - low + 1] - end)
        users, *busy_in = one(
            database,
            f"""SELECT count(*), count(*) FILTER (period <> {first} AND early - start_at < {gaps[0]}),
                count(*) FILTER (period <> {last} AND end_at - late < {gaps[1]})
            FROM (SELECT period, min(instant) early, max(instant) late FROM raw_{table} GROUP BY user_id, period)
            JOIN bounds USING (period)""",
        )
        lacks_head, lacks_tail = (
            inside >= ENOUGH * (last - first) and gap >= MIN_PART * np.diff(starts)[period - low]
            for inside, gap, period in zip(busy_in, gaps, (first, last), strict=True)
        )
        start, stop = (low, high) if users >= ENOUGH * (last - first + 1) else (first, last)
        text = [clock_text(instant, zone, "m").replace("T", " ") for instant in (begin, end)]
        reasons |= dict.fromkeys(range(start, first + lacks_head), f"{table} begin {text[0]}")
        reasons |= dict.fromkeys(range(last + 1 - lacks_tail, stop + 1), f"{table} end {text[1]}")
    database.unregister("bounds")
    complete = [number for number in range(low, high + 1) if number not in reasons]
    if not complete:
        raise InputError(
            f"no {periods.kind} is complete: {'; '.join(sorted(set(reasons.values())))}; choose a shorter period, or "
            "incomplete='keep' (--incomplete keep)."
        )
    dropped = (number for number in sorted(reasons) if not complete[0] <= number <= complete[-1])
    return complete[0], complete[-1], tuple(f"{show(names[number - low])} ({reasons[number]})" for number in dropped)


def _place(database: Any, table: EventTable, first: int, last: int) -> None:
    """The rows of a table by catalog positions, each distinct one once: two identical rows are one event."""
    joins = " ".join(
        f"{'JOIN' if name in table.columns else 'LEFT JOIN'} {name}_codes {name} ON {name}.code = r.{name}"
        for name in ("user_id", "item_id")
    )
    database.execute(f"""CREATE TABLE {table.name} AS
        SELECT DISTINCT user_id.position AS user_id, item_id.position AS item_id, instant,
            CASE WHEN period BETWEEN {first} AND {last} THEN period - {first} END AS period, propensity, value,
            slate_id
        FROM raw_{table.name} r {joins}""")
    database.execute(f"DROP TABLE raw_{table.name}")


def _net_returns(database: Any) -> dict[str, int]:
    """Negative values are returns: each cancels the latest outcomes of its user and item before it.

    With S the running sum of the values, min S from an outcome on − S before it is what is left of it. Returns of
    more than was bought in the tables cancel nothing.
    """
    if not one(database, "SELECT count(*) FROM outcomes WHERE value < 0")[0]:
        return {}
    order = "OVER (PARTITION BY user_id, item_id ORDER BY instant, value DESC, propensity ROWS BETWEEN"
    database.execute(f"""CREATE TABLE net AS
        WITH summed AS (
            SELECT *, sum(value) {order} UNBOUNDED PRECEDING AND CURRENT ROW) AS total,
                min(value) OVER (PARTITION BY user_id, item_id) < 0 AS returned FROM outcomes),
        kept AS (SELECT *, min(total) {order} CURRENT ROW AND UNBOUNDED FOLLOWING) - total + value AS left_over
            FROM summed)
        SELECT * EXCLUDE (value, total, returned, left_over),
            CASE WHEN value < 0 THEN 'return'
                 WHEN returned AND value > 0 AND left_over <= 1e-9 * value THEN 'returned' END AS gone,
            CASE WHEN returned THEN left_over ELSE value END AS value
        FROM kept""")
    gone = dict(database.execute("SELECT gone, count(*) FROM net WHERE gone IS NOT NULL GROUP BY gone").fetchall())
    database.execute(
        "CREATE OR REPLACE TABLE outcomes AS SELECT * EXCLUDE gone FROM net WHERE gone IS NULL; DROP TABLE net"
    )
    return {fate: gone.get(fate, 0) for fate in ("returned", "return")}


def _limit(database: Any, table: EventTable) -> dict[str, Any]:
    """The distinct visits or candidates in the log's periods, which also become a table <name>_cells.

    Those of slates are the candidates with a chance.
    """
    columns = {"user_id": "user_id", "item_id": "item_id", "timestamp": "period"}
    keys = [key for column, key in columns.items() if column in table.columns]
    within = "coalesce(propensity, 1) > 0" + (" AND period IS NOT NULL" if "period" in keys else "")
    query = f"SELECT DISTINCT {', '.join(keys)} FROM {table.name} WHERE {within}"
    database.execute(f"CREATE TABLE {table.name}_cells AS {query}")
    cells: dict[str, Any] = database.execute(f"FROM {table.name}_cells").fetchnumpy()
    if not len(cells[keys[0]]):
        raise InputError(f"none of the {table.name} falls into the periods of the log; are their dates right?")
    return cells


# Both arms over the same span: an outcome belongs to the period in which it happened.
_BY_PERIOD = """
    SELECT o.*, CASE WHEN o.period IS NULL THEN 'outside'
                     WHEN t.period IS NULL THEN 'control' ELSE 'matched' END AS fate
    FROM outcomes o LEFT JOIN treated t USING (user_id, item_id, period)"""

# An outcome belongs to the latest impression it followed within the window, else to its own period.
_BY_WINDOW = """
    WITH shown AS (
        SELECT DISTINCT user_id, item_id, instant, period
        FROM impressions SEMI JOIN outcomes USING (user_id, item_id)),
    explained AS (
        SELECT o.*, s.period AS shown_in, coalesce(o.instant - s.instant <= {window}, FALSE) AS explained
        FROM outcomes o ASOF LEFT JOIN shown s
        ON o.user_id = s.user_id AND o.item_id = s.item_id AND o.instant >= s.instant)
    SELECT e.user_id, e.item_id, e.instant, e.propensity, e.value,
        CASE WHEN explained THEN shown_in ELSE e.period END AS period,
        CASE WHEN CASE WHEN explained THEN shown_in ELSE e.period END IS NULL THEN 'outside'
             WHEN explained THEN 'matched'
             WHEN t.period IS NULL THEN 'control'
             WHEN shown_in = e.period THEN 'late' ELSE 'early' END AS fate
    FROM explained e LEFT JOIN treated t USING (user_id, item_id, period)"""


def _match(
    database: Any, tables: Mapping[str, EventTable], options: EventOptions,
    limits: Mapping[str, Mapping[str, Any]],
) -> None:  # fmt: skip
    """Table cells: one row per eligible cell with an event."""
    eligible = "".join(f" SEMI JOIN {name}_cells USING ({', '.join(cells)})" for name, cells in limits.items())
    inside = "WHERE period IS NOT NULL"
    shown = _merged(f"(FROM impressions {inside}){eligible}", tables["impressions"], options.combine)
    attribution = _BY_PERIOD if options.window is None else _BY_WINDOW.format(window=options.window)
    database.execute(f"CREATE TABLE treated AS {shown}")
    database.execute(f"CREATE TABLE attribution AS {attribution}")
    database.execute(f"CREATE VIEW attributed AS SELECT * FROM (FROM attribution {inside}){eligible}")
    happened = _merged("attributed WHERE fate IN ('matched', 'control')", tables["outcomes"], options.combine)
    chances, by_slate = "coalesce(t.chances, h.chances)", ""
    if "slates" in tables:  # every slate was a chance, also those on which the item was not drawn
        chances, slates = "s.chances", f"slates {inside}"
        by_slate = f"LEFT JOIN ({_merged(slates, tables['slates'], 'any')}) s USING ({CELL})"
    database.execute(f"""CREATE TABLE cells AS
        SELECT {CELL}, t.events AS shown, h.events AS happened, {chances} AS chance, h.value
        FROM treated t FULL JOIN ({happened}) h USING ({CELL}) {by_slate}""")


def _fates_of(
    database: Any, table: EventTable, placed_in: str, returns: Mapping[str, int], certain: int
) -> dict[str, int]:
    """What became of the events of a table."""
    shown, events, matched, control = one(
        database,
        """SELECT count(shown), coalesce(sum(shown), 0), coalesce(sum(happened) FILTER (shown IS NOT NULL), 0),
            coalesce(sum(happened) FILTER (shown IS NULL), 0) FROM cells""",
    )
    by_fate = dict(database.execute("SELECT fate, count(*) FROM attributed GROUP BY fate").fetchall())
    fates = {"matched": matched, "control": control, **{fate: by_fate.get(fate, 0) for fate in ("early", "late")}}
    fates = {"treated": shown, "repeated": events - shown} if table.name == "impressions" else fates
    fates = {fate: int(n) for fate, n in fates.items()} | ({"certain": certain} if certain else {})
    distinct, placed = one(database, f"SELECT count(*), count(period) FROM {placed_in}")
    if not placed:
        raise InputError(f"none of the {distinct:,} {table.name} falls into the given periods.")
    if not (counted := sum(fates.values())):
        raise InputError(
            f"none of the {distinct:,} {table.name} is in an eligible cell; do visits and candidates have the same "
            "ids and dates as the other tables?"
        )
    return {
        **fates, "duplicate": table.n_rows - table.n_null - distinct - sum(returns.values()), "null": table.n_null,
        "outside": distinct - placed, "not eligible": placed - counted, **returns,
    }  # fmt: skip


def _merged(events: str, table: EventTable, combine: str) -> str:
    """A query for one row per cell: how many events it has, their propensity and their value.

    Values are added in a fixed order, so that the sum has the same bits for any number of threads.
    """
    propensity = COMBINE[combine] if "propensity" in table.columns else "NULL::DOUBLE"
    value = (
        "list_reduce(list(value ORDER BY value), lambda a, b: a + b)" if "value" in table.columns else "NULL::DOUBLE"
    )
    chances = f"{{propensity: {propensity}, low: min(propensity), high: max(propensity)}}"
    return f"SELECT {CELL}, count(*) AS events, {chances} AS chances, {value} AS value FROM {events} GROUP BY {CELL}"


def _check_same(database: Any, catalog: Catalog, tables: Mapping[str, EventTable]) -> None:
    rows = database.execute(
        f"SELECT {CELL}, chance.low, chance.high, shown IS NULL, count(*) OVER (PARTITION BY shown IS NULL) "
        f"FROM cells WHERE chance.low < chance.high ORDER BY shown IS NULL, period, {CELL} LIMIT 1"
    ).fetchall()
    for *codes, low, high, unseen, n in rows:
        column = tables["outcomes" if unseen else "impressions"].label("propensity")
        raise InputError(
            f"column '{column}' differs within {plural(n, 'cell')}, for example {low} and {high} at "
            f"{_name(catalog, codes)}; set combine to any, first or max."
        )


def _set_certain_aside(database: Any, catalog: Catalog, tables: Mapping[str, EventTable]) -> tuple[int, int]:
    """Cells that were certain to be shown, or not, say nothing about effects: drop a few, and count their events."""
    certain = "(chance.propensity <= 0 OR chance.propensity >= 1)"
    counts = "count(*), count(shown), coalesce(sum(shown), 0)::BIGINT, coalesce(sum(happened), 0)::BIGINT"
    n, treated, *events = one(database, f"SELECT {counts} FROM cells WHERE {certain}")
    if n > MAX_CERTAIN * one(database, "SELECT count(*) FROM cells")[0]:
        *codes, p = one(
            database, f"SELECT {CELL}, chance.propensity FROM cells WHERE {certain} ORDER BY period, {CELL} LIMIT 1"
        )
        name = "slates" if "slates" in tables else "impressions" if treated else "outcomes"
        raise InputError(
            f"column '{tables[name].label('propensity')}' must be strictly between 0 and 1; {plural(n, 'cell')} "
            f"{'is' if n == 1 else 'are'} not, for example {p} at {_name(catalog, codes)}; if nothing was drawn at "
            "random, leave the column out and estimate it (taurank propensity estimate)."
        )
    database.execute(f"DELETE FROM cells WHERE {certain}")
    return events[0], events[1]


def _name(catalog: Catalog, codes: list[int]) -> str:
    return "user {}, item {}, period {}".format(*map(Ids.name, catalog.lists, codes))


def _collect(database: Any, n_rows: int, propensity: bool, value: bool) -> dict[str, Any]:
    kinds: dict[str, npt.DTypeLike] = dict.fromkeys(("user", "item", "time"), np.int32)
    kinds |= dict.fromkeys(("treated", "outcome"), np.int8)
    kinds |= {name: np.float64 for name, given in (("propensity", propensity), ("value", value)) if given}
    arrays: dict[str, Any] = {name: np.empty(n_rows, kind) for name, kind in kinds.items()}
    query = """
        SELECT user_id AS user, item_id AS item, period AS time, (shown IS NOT NULL)::TINYINT AS treated,
            (happened IS NOT NULL)::TINYINT AS outcome, chance.propensity, coalesce(value, 0) AS value
        FROM cells ORDER BY period, user_id, item_id"""
    start = 0
    for batch in database.sql(query).to_arrow_reader(BATCH_ROWS):
        for name, array in arrays.items():
            array[start : start + batch.num_rows] = batch.column(name).to_numpy(zero_copy_only=False)
        start += batch.num_rows
    return {"propensity": None, **arrays}
