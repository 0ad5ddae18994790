"""Time as a shop writes it: instants, the periods they fall into, and windows after them.

An instant is an integer, microseconds since 1970, in UTC where the table has a time zone and on the table's
own clock where it has none. A period is half-open, [start, end): a number of days, of weeks from
Monday or of months, or what lies between two given edges. Days, weeks and months follow the clock of the time zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from taurank._types import Longs, Mask
from taurank.errors import InputError, first_line, show

DAY = 86_400_000_000
MAX_COUNT = 10_000
_DAYS_FROM_MONDAY = 3  # 1970-01-01 was a Thursday
_UTC_NAMES = {"UTC", "Etc/UTC", "GMT", "Z", "+00:00"}
_PERIOD_TEXT = re.compile(r"\s*(?:(\d{1,5})\s*)?(day|week|month)s?\s*")
_WINDOW_TEXT = re.compile(r"\s*([+-]?\d{1,7}(?:\.\d+)?)\s*(week|day|hour|minute|second)s?\s*")


@dataclass(frozen=True)
class Periods:
    """How time is cut: every ``count`` days, weeks or months (``unit``), or at given ``edges``.

    Days are counted from 1 January 1970, weeks from the Monday before it, months from its January: the periods of
    two exports are cut at the same instants, wherever their events begin.
    """

    unit: str
    count: int = 1
    edges: pa.Array | None = None

    @classmethod
    def from_option(cls, period: Any) -> Periods:
        """From the option a caller gives: "day", "2 weeks", "month", or a list of edges."""
        match = _PERIOD_TEXT.fullmatch(period) if isinstance(period, str) else None
        if match and 1 <= int(match[1] or 1) <= MAX_COUNT:
            return cls(match[2], int(match[1] or 1))
        if isinstance(period, str) or not isinstance(period, Iterable):
            raise InputError(
                "period must be 'day', 'week' or 'month', a number of them such as '2 weeks', or a list of edges, "
                f"got {period!r}."
            )
        return cls("edges", edges=_read_edges(list(period)))

    @property
    def kind(self) -> str:
        return self.unit if self.count == 1 else f"{self.count} {self.unit}s"

    def number(self, instants: Longs, zone: str | None) -> pa.Array:
        """The period of each instant as an integer; null outside the edges."""
        if self.edges is not None:
            edges = self.starts(0, len(self.edges) - 1, zone)
            number = np.searchsorted(edges, instants, side="right").astype(np.int32) - 1
            return pa.array(number, mask=(number < 0) | (number >= len(edges) - 1))
        clock = to_local_time(instants, zone)
        if self.unit == "month":
            units = clock.view("datetime64[us]").astype("datetime64[M]").astype(np.int64)
        else:
            days = clock // DAY
            units = days if self.unit == "day" else (days + _DAYS_FROM_MONDAY) // 7
        return pa.array((units // self.count).astype(np.int32))

    def names(self, first: int, last: int) -> pa.Array:
        """The start of every period from first to last: a date, or a timestamp where edges are not midnights."""
        if self.edges is not None:
            return self.edges.slice(first, last - first + 1)
        units = self.count * np.arange(first, last + 1, dtype=np.int64)
        if self.unit == "month":
            units = units.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        days = 7 * units - _DAYS_FROM_MONDAY if self.unit == "week" else units
        return pa.array(days.astype(np.int32)).view(pa.date32())

    def starts(self, first: int, last: int, zone: str | None) -> Longs:
        """The instants at which the periods from first to last start, on the clock of the zone."""
        instants, own = read_instants(self.names(first, last), "period", zone)
        if own is not None and zone is None:
            raise InputError(
                f"the events have no time zone, but the edges of the periods have the time zone {own}; name that of "
                "the events with timezone= (--timezone Europe/Berlin)."
            )
        return instants


def _read_edges(period: list[Any]) -> pa.Array:
    """Edges as dates, or as timestamps unless all of them are midnights."""
    try:
        if any(isinstance(edge, Real) for edge in period):
            raise TypeError
        edges = pd.DatetimeIndex(pd.to_datetime(period, format="ISO8601"))
    except (ValueError, TypeError) as error:
        example = ", ".join(show(edge) for edge in period[:3])
        raise InputError(
            f"period has edges that are not all dates or timestamps such as 2024-01-31 18:30:00: {example}."
        ) from error
    if len(edges) < 2 or edges.hasnans or not (edges[1:] > edges[:-1]).all():
        raise InputError("the edges of period must be at least two, without a null, and increase.")
    only_dates = edges.tz is None and bool(edges.is_normalized)
    return pa.array(edges.as_unit("us")).cast(pa.date32() if only_dates else pa.timestamp("us", edges.tz))


def read_window(window: Any) -> int | None:
    """A window in microseconds, from a timedelta or from text such as "3 days"."""
    if window is None:
        return None
    match = _WINDOW_TEXT.fullmatch(window) if isinstance(window, str) else None
    length = timedelta(**{f"{match[2]}s": float(match[1])}) if match else window
    if not isinstance(length, timedelta) or length < timedelta(0):
        raise InputError(
            "window must be a timedelta ≥ 0 or text such as '3 days' (weeks, days, hours, minutes, seconds), "
            f"got {window!r}."
        )
    return length // timedelta(microseconds=1)


def read_instants(array: pa.Array, column: str, zone: str | None) -> tuple[Longs, str | None]:
    """A column of timestamps or dates as microseconds, and its own time zone; ``zone`` is for those without one."""
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("us"))
    elif not pa.types.is_timestamp(array.type):
        example = show(array[0]) if len(array) else "none"
        what, advice = str(array.type), "convert them: pandas.to_datetime(column)"
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            what, advice = "numbers", "say what they count: pandas.to_datetime(column, unit='s')"
        raise InputError(f"column '{column}' has {what} such as {example}, not timestamps; {advice}.")
    own = "UTC" if array.type.tz in _UTC_NAMES else array.type.tz
    if array.type.unit == "ns":  # rounded down, also before 1970, where a cast would round up
        array = pa.array(np.asarray(array.view(pa.int64())) // 1000, pa.timestamp("us", own))
    try:
        array = array.cast(pa.timestamp("us", own))
    except pa.ArrowInvalid as error:
        raise InputError(f"column '{column}' has timestamps out of range: {first_line(error)}.") from error
    if own is None and zone is not None:
        array = pc.assume_timezone(array, zone, ambiguous="earliest", nonexistent="latest")
    return np.asarray(array.view(pa.int64()), dtype=np.int64), own


def parse(text: pa.Array, column: str) -> pa.Array | Mask:
    """Text such as 2024-01-31 18:30:00, also with Z or +01:00, as timestamps; else where it is wrong."""
    for kind in (pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("us", "ns")):
        try:
            return text.cast(kind)
        except pa.ArrowInvalid:
            continue
    wrong = pd.isna(pd.to_datetime(text.to_pandas(), format="ISO8601", errors="coerce", utc=True))
    if not wrong.any():
        raise InputError(
            f"column '{column}' mixes timestamps with and without a time zone, such as {show(text[0])}; "
            "write all of them in the same way."
        )
    return np.asarray(wrong)


def check_zone(zone: Any) -> str | None:
    """A time zone by its name, such as "Europe/Berlin"; refused if it is unknown."""
    try:
        to_local_time(np.zeros(1, np.int64), zone)
    except (pa.ArrowException, TypeError) as error:
        raise InputError(f"the time zone {zone!r} cannot be used: {first_line(error)}.") from error
    return "UTC" if zone in _UTC_NAMES else zone


def to_local_time(instants: Longs, zone: str | None) -> Longs:
    """What the clock of the zone shows, as microseconds; without a zone the instants are that already."""
    if zone is None:
        return instants
    local = pc.local_timestamp(pa.array(instants, pa.timestamp("us", zone)))
    return np.asarray(local.view(pa.int64()), dtype=np.int64)


def clock_text(instant: int, zone: str | None, unit: Any) -> str:
    clock = to_local_time(np.array([instant], np.int64), zone)
    return str(np.datetime_as_string(clock.view("datetime64[us]"), unit=unit)[0])
