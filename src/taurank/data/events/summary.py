"""What became of the events that a log was built from."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

WIDTH = 80
MANY_LISTS = 0.05  # of the visits, users in a period, have further items at a later time
TEXTS = {
    "treated": "treated cells",
    "repeated": "repeated in a cell",
    "matched": "in a treated cell",
    "control": "without an impression",
    "early": "before the impression, not counted",
    "late": "after the window, not counted",
    "duplicate": "exact duplicates, dropped",
    "null": "with a null, dropped",
    "outside": "outside the periods, dropped",
    "returned": "returned later, dropped",
    "return": "returns, netted against earlier outcomes",
    "certain": "with a propensity of 0 or 1, set aside",
    "not eligible": "in cells that are not eligible, set aside",
}
_ALWAYS = ("treated", "repeated", "matched", "control")  # the others only where there are any


@dataclass(frozen=True)
class EventSummary:
    """What became of every event; ``str(summary)`` is a table of it.

    ``impressions`` and ``outcomes`` count the rows of a table by what became of them (``TEXTS`` explains the words).
    ``nulls`` counts the nulls of each column, ``dropped_periods`` has a remark about each incomplete period,
    ``later_lists`` is the share of visits (users in a period) with items that are first shown half an hour after
    others, and ``apart`` says of what, users or items, the tables have none in common.
    """

    impressions: Mapping[str, int]
    outcomes: Mapping[str, int]
    repeated_outcomes: int
    nulls: Mapping[str, int]
    rows: int
    rows_without_propensity: int
    span: tuple[str, ...]
    n_periods: int
    period: str
    dropped_periods: tuple[str, ...]
    window: timedelta | None
    later_lists: float
    apart: tuple[str, ...]

    @property
    def caution(self) -> str | None:
        """What an estimate is of, where a user is shown several lists in a period."""
        if self.later_lists < MANY_LISTS:
            return None
        return (
            f"Users are shown further items later in a period, in {self.later_lists:.0%} of their periods: an "
            "estimate is of showing an item, not of a new list at every visit; choose a period with about one visit."
        )

    def __str__(self) -> str:
        caution = "no {0} occurs in both tables; are {0} ids written alike in both?"  # one product has two ids
        lines = [("caution", caution.format(what)) for what in self.apart]
        lines += [("time", " to ".join(self.span)), ("periods", f"{self.n_periods:,} ({self.period})")]
        lines += [("", f"dropped as incomplete: {remark}") for remark in self.dropped_periods]
        lines += [("lists", self.caution)] if self.caution else []
        lines += [("window", "the period itself" if self.window is None else f"{self.window} after an impression")]
        repeated = {"of those counted repeat an outcome of their cell": self.repeated_outcomes}
        for name, counts in (("impressions", self.impressions), ("outcomes", {**self.outcomes, **repeated})):
            total = f"{sum(counts.get(fate, 0) for fate in TEXTS):,}"
            nulls = [f"{key.partition('.')[2]} {n:,}" for key, n in self.nulls.items() if key.startswith(f"{name}.")]
            columns = {"null": f" ({', '.join(nulls)})"} if nulls else {}
            lines += [(name, total)] + [
                ("", f"{count:>{len(total)},} {TEXTS.get(fate, fate)}{columns.get(fate, '')}")
                for fate, count in counts.items()
                if count or fate in _ALWAYS
            ]
        propensity = "recorded for every row"
        if self.rows_without_propensity:
            lacking = f"{self.rows_without_propensity:,} of {self.rows:,} rows have none"
            propensity = f"{lacking}; taurank.propensity.estimate can supply it."
        lines += [("rows", f"{self.rows:,}"), ("propensity", propensity)]
        return "\n".join(
            textwrap.fill(text, WIDTH, initial_indent=f"{name:<12} ", subsequent_indent=" " * 15)
            for name, text in lines
        )
