"""Time as a shop writes it: instants, the periods they fall into, and windows after them.

An instant is an integer, microseconds since 1970, in UTC where the table has a time zone and on the table's
own clock where it has none. A period is half-open, [start, end): a number of days, of weeks from
Monday or of months, or what lies between two given edges. Days, weeks and months follow the clock of the time zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taurank._types import Longs, Mask
from taurank.data.ids import to_array
from taurank.errors import InputError, first_line, show

DAY = 86_400_000_000
MAX_WINDOW = timedelta(days=36_525)  # a century
MAX_COUNT = 10_000
_DAYS_FROM_MONDAY = 3  # 1970-01-01 was a Thursday
_UTC_NAMES = {"UTC", "Etc/UTC", "GMT", "Z", "+00:00"}
_ISO_TEXT = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
)
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
        return cls("edges", edges=_read_edges(period))

    @property
    def kind(self) -> str:
        """What a summary calls them: "week", "2 weeks", "edges"."""
        return self.unit if self.count == 1 else f"{self.count} {self.unit}s"

    def number(self, instants: Longs, zone: str | None) -> pa.Array:
        """The period of each instant as an integer; null outside the edges."""
        if self.edges is not None:
            edges = _edge_instants(self.edges, zone)
            number = np.searchsorted(edges, instants, side="right").astype(np.int32) - 1
            return pa.array(number, mask=(number < 0) | (number >= len(edges) - 1))
        clock = to_local_time(instants, zone)
        if self.unit == "month":
            units = clock.view("datetime64[us]").astype("datetime64[M]").astype(np.int64)
        else:
            days = clock // DAY
            units = days if self.unit == "day" else (days + _DAYS_FROM_MONDAY) // 7
        return pa.array((units // self.count).astype(np.int32))

    def span(self, first: int, last: int) -> tuple[int, int]:
        """First and last period of a log whose events lie in these; given edges count as they are."""
        return (first, last) if self.edges is None else (0, len(self.edges) - 2)

    def names(self, first: int, last: int) -> pa.Array:
        """The start of every period from first to last: a date, or the edge as it was given."""
        if self.edges is not None:
            return self.edges.slice(first, last - first + 1)
        units = self.count * np.arange(first, last + 1, dtype=np.int64)
        if self.unit == "month":
            units = units.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        days = 7 * units - _DAYS_FROM_MONDAY if self.unit == "week" else units
        return pa.array(days.astype(np.int32)).view(pa.date32())

    def starts(self, first: int, last: int, zone: str | None) -> Longs:
        """The instants at which the periods from first to last start."""
        return _edge_instants(self.names(first, last), zone)


def read_window(window: Any) -> int | None:
    """A window in microseconds, from a timedelta or from text such as "3 days"."""
    if window is None:
        return None
    if isinstance(window, str):
        match = _WINDOW_TEXT.fullmatch(window)
        if not match:
            raise InputError(
                f"window {window!r} cannot be read; write a number and weeks, days, hours, minutes or "
                'seconds, such as "3 days".'
            )
        window = timedelta(**{f"{match[2]}s": float(match[1])})
    if isinstance(window, np.timedelta64):
        window = window.astype("timedelta64[us]").item()
    if not isinstance(window, timedelta):
        raise InputError(f'window must be a timedelta or text such as "3 days", got {window!r}.')
    if not timedelta(0) <= window <= MAX_WINDOW:
        raise InputError(f"window must be between 0 and {MAX_WINDOW.days:,} days, got {window}.")
    return window // timedelta(microseconds=1)


def read_instants(array: pa.Array, column: str, text: bool) -> tuple[Longs, str | None]:
    """A column of timestamps or dates as microseconds, and its time zone (None: none given)."""
    array = parse(array, column) if text else array
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("us"))
    elif not pa.types.is_timestamp(array.type):
        example = show(array[0]) if len(array) else "none"
        what, advice = str(array.type), "convert them: pandas.to_datetime(column)"
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            what, advice = "numbers", "say what they count: pandas.to_datetime(column, unit='s')"
        raise InputError(f"column '{column}' has {what} such as {example}, not timestamps; {advice}.")
    zone = "UTC" if array.type.tz in _UTC_NAMES else array.type.tz
    if array.type.unit == "ns":  # rounded down, also before 1970, where a cast would round up
        return np.asarray(array.view(pa.int64()), dtype=np.int64) // 1000, zone
    try:
        return np.asarray(array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64()), dtype=np.int64), zone
    except pa.ArrowInvalid as error:
        raise InputError(f"column '{column}' has timestamps out of range: {first_line(error)}.") from error


def parse(array: pa.Array, column: str) -> pa.Array:
    """Text as timestamps; ``wrong_text`` has passed it, so what fails now mixes several forms."""
    for zone in (None, "UTC"):
        for unit in ("us", "ns"):
            try:
                return array.cast(pa.timestamp(unit, zone))
            except pa.ArrowInvalid:
                continue
    raise InputError(
        f"column '{column}' mixes timestamps with and without a time zone, such as {show(array[0])}; "
        "write all of them in the same way."
    )


def wrong_text(array: pa.Array) -> Mask:
    """Where a text is not a timestamp such as 2024-01-31 or 2024-01-31 18:30:00, also with Z or +01:00."""
    wrong = ~np.asarray(pc.match_substring_regex(array, _ISO_TEXT), dtype=bool)
    dates = pc.utf8_slice_codeunits(array, 0, 10)
    for text in pc.unique(dates.filter(pa.array(~wrong))):  # 30 February: the form is right, the day is not
        try:
            text.cast(pa.date32())
        except pa.ArrowInvalid:
            wrong |= np.asarray(pc.equal(dates, text), dtype=bool)
    return wrong


def check_zone(zone: Any) -> str | None:
    """A time zone by its name, such as "Europe/Berlin"; refused if it is unknown."""
    if zone is None:
        return None
    if not isinstance(zone, str):
        raise InputError(f"timezone must be a name such as 'Europe/Berlin', got {zone!r}.")
    try:
        to_local_time(np.zeros(1, np.int64), zone)
    except pa.ArrowException as error:
        raise InputError(f"the time zone '{zone}' cannot be used: {first_line(error)}.") from error
    return "UTC" if zone in _UTC_NAMES else zone


def to_local_time(instants: Longs, zone: str | None) -> Longs:
    """What the clock of the zone shows, as microseconds; without a zone the instants are that already."""
    if zone is None:
        return instants
    local = pc.local_timestamp(pa.array(instants, pa.timestamp("us", zone)))
    return np.asarray(local.view(pa.int64()), dtype=np.int64)


def from_local_time(clock: Longs, zone: str) -> Longs:
    """The instants at which the clock of the zone shows these times."""
    local = pa.array(clock, pa.timestamp("us"))
    placed = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
    return np.asarray(placed.view(pa.int64()), dtype=np.int64)


def clock_text(instant: int, zone: str | None, unit: Any) -> str:
    """An instant as the clock of the zone shows it."""
    clock = to_local_time(np.array([instant], np.int64), zone)
    return str(np.datetime_as_string(clock.view("datetime64[us]"), unit=unit)[0])


def _read_edges(period: Any) -> pa.Array:
    if not hasattr(period, "dtype"):
        period = list(period)
        if any(isinstance(edge, datetime) for edge in period):  # Arrow would cut the datetimes down to dates
            period = [datetime(e.year, e.month, e.day) if type(e) is date else e for e in period]
    edges = to_array(period, "period")
    if edges.null_count or len(edges) < 2:
        raise InputError(f"period needs at least two edges and no null, got {len(edges)} edges.")
    if pa.types.is_string(edges.type):
        wrong = wrong_text(edges)
        if wrong.any():
            example = show(edges[int(wrong.argmax())])
            raise InputError(f"the edge {example} is not a valid date or timestamp; write it as 2024-01-31 18:30:00.")
        only_dates = pc.all(pc.equal(pc.utf8_length(edges), 10)).as_py()
        edges = edges.cast(pa.date32()) if only_dates else parse(edges, "period")
    instants, _ = read_instants(edges, "period", text=False)
    stuck = np.flatnonzero(np.diff(instants) <= 0)
    if len(stuck):
        before, after = (show(edges[int(stuck[0]) + k]) for k in (0, 1))
        raise InputError(f"the edges of the periods must increase, but {after} follows {before}.")
    return edges


def _edge_instants(edges: pa.Array, zone: str | None) -> Longs:
    """Edges on the time line of the events: dates are midnights of their zone, the rest must match it."""
    instants, own = read_instants(edges, "period", text=False)
    if zone is not None and pa.types.is_date(edges.type):
        return from_local_time(instants, zone)
    if (own is None) != (zone is None):
        raise InputError(
            f"the events have {f'the time zone {zone}' if zone else 'no time zone'}, but the edges of the "
            f"periods have {f'the time zone {own}' if own else 'none'}; give both the same."
        )
    return instants
