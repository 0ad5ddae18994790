"""Periods: a surface decides once per user and hour, day, week, or any number of seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from taurank.errors import InputError

_NAMED = {"hour": 3600, "day": 86400, "week": 604800}
_MONDAY = 4 * 86400  # 1970-01-01 was a Thursday
_LIMIT = 1e11  # years 1200 to 5100: within this, every time has a period and a date


@dataclass(frozen=True)
class Period:
    """Equal stretches of time, in UTC; weeks start on Monday."""

    seconds: int
    offset: int = 0

    @classmethod
    def parse(cls, text: str) -> Period:
        """ "hour", "day", "week" or a number of seconds."""
        if text in _NAMED:
            return cls(_NAMED[text], _MONDAY if text == "week" else 0)
        if text.isascii() and text.isdigit() and 1 <= int(text) <= 366 * 86400:
            return cls(int(text))
        raise InputError(f"a period is hour, day, week or a number of seconds up to a year, got '{text}'.")

    def number(self, time: float) -> int:
        """The number of the period that holds this time."""
        return math.floor((time - self.offset) / self.seconds)

    def start(self, number: int) -> float:
        return float(number * self.seconds + self.offset)

    def end(self, number: int) -> float:
        return self.start(number + 1)

    @lru_cache(1000)  # noqa: B019  (periods are few and small)
    def name(self, number: int) -> str:
        """The start of a period as text; names sort in the order of time."""
        return datetime.fromtimestamp(self.start(number), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_time(seconds: float) -> float:
    if not 0 <= seconds <= _LIMIT / 2:
        raise InputError("a time must lie between the years 1970 and 3500.")
    return seconds
