"""Whether the first and the last period are complete: an export seldom begins and ends where a period does.

A period of which only a part was exported looks like one with few recommendations and outcomes. It is incomplete
if a table has nothing in a stretch at its beginning (or its end) in which, on average, ENOUGH users have events in
the table's other periods. So nights, closed Sundays and sparse tables do not make a period incomplete.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from taurank.data.events.database import one
from taurank.data.events.periods import Periods, on_the_clock
from taurank.errors import InputError, show

ENOUGH = 10
MIN_PART = 0.02  # a missing stretch shorter than this part of the period does not matter


def complete_periods(
    database: Any, periods: Periods, span: tuple[int, int], zone: str | None
) -> tuple[int, int, list[str]]:
    """The first and the last complete period, and what to say about the others."""
    reasons: dict[int, str] = {}
    for table in ("impressions", "outcomes"):
        for number, reason in _incomplete(database, table, periods, span, zone):
            reasons.setdefault(number, reason)
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
) -> list[tuple[int, str]]:
    """The periods that a table begins or ends within, or misses altogether, each with the reason."""
    low, high, begin, end = one(
        database, f"SELECT min(period), max(period), min(instant), max(instant) FROM raw_{table}"
    )
    if low is None or low == high:
        return []
    starts = periods.starts(low, high + 1, zone)
    _store_bounds(database, low, starts)
    lengths, typical = np.diff(starts), _users_per_period(database, table, "TRUE", high - low + 1)
    lacks_begin = _lacks(database, table, low, high - low, begin - starts[0], lengths[0], "instant - start_at")
    lacks_end = _lacks(database, table, high, high - low, starts[-1] - end, lengths[-1], "end_at - instant")
    begins, ends = (f"{table} {verb} {_shown(instant, zone)}" for verb, instant in (("begin", begin), ("end", end)))
    first = low + 1 if lacks_begin else low
    last = high - 1 if lacks_end else high
    before = range(span[0] if typical >= ENOUGH else low, first)
    after = range(last + 1, 1 + (span[1] if typical >= ENOUGH else high))
    return [(number, begins) for number in before] + [(number, ends) for number in after]


def _lacks(database: Any, table: str, own: int, others: int, gap: int, length: int, distance: str) -> bool:
    """Whether the other periods have events in the stretch in which this one has none."""
    if gap < MIN_PART * length:
        return False
    within = f"period <> {own} AND {distance} < {gap}"
    return _users_per_period(database, table, within, others) >= ENOUGH


def _users_per_period(database: Any, table: str, condition: str, n_periods: int) -> float:
    """How many users have such events in a period, on average."""
    events = f"SELECT DISTINCT user_code, period FROM raw_{table} JOIN bounds USING (period) WHERE {condition}"
    return float(one(database, f"SELECT count(*) FROM ({events})")[0]) / n_periods


def _store_bounds(database: Any, low: int, starts: Any) -> None:
    rows = ", ".join(f"({low + k}, {a}, {b})" for k, (a, b) in enumerate(pairwise(starts)))
    database.execute(f"CREATE OR REPLACE TABLE bounds AS SELECT * FROM (VALUES {rows}) b(period, start_at, end_at)")


def _shown(instant: int, zone: str | None) -> str:
    clock = on_the_clock(np.array([instant], np.int64), zone)
    return str(np.datetime_as_string(clock.view("datetime64[us]"), unit="m")[0]).replace("T", " ")
