"""What became of the events that a log was built from."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

WIDTH = 80


@dataclass(frozen=True)
class EventSummary:
    """What became of every event; ``str(summary)`` is a table of it.

    ``impressions = treated_cells + repeated_impressions + impressions_outside + impressions_not_eligible +
    impressions_duplicate + impressions_null`` and ``outcomes = matched + control + before_impression + after_window +
    outcomes_outside + outcomes_not_eligible + outcomes_duplicate + outcomes_null``. ``nulls`` counts the nulls of
    each column, ``dropped_periods`` has a remark about each incomplete period, and ``eligibility`` names the tables
    that limit the ``eligible_cells``. ``shared_users`` and ``shared_items`` occur in both tables.
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
    impressions_null: int = 0
    impressions_duplicate: int = 0
    impressions_not_eligible: int = 0
    outcomes_null: int = 0
    outcomes_duplicate: int = 0
    outcomes_not_eligible: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    dropped_periods: tuple[str, ...] = ()
    eligibility: tuple[str, ...] = ()
    eligible_cells: int | None = None
    shared_users: int = 1
    shared_items: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "window": None if self.window is None else str(self.window)}

    def __str__(self) -> str:
        window = "the period itself" if self.window is None else f"{self.window} after an impression"
        shared = {"user": self.shared_users, "item": self.shared_items}
        lines = [  # nothing in common: the same person or product probably has two ids
            _line("caution", f"no {name} occurs in both tables; are {name} ids written alike in both?")
            for name, count in shared.items()
            if not count
        ]
        lines += [_line("time", f"{self.first_event} to {self.last_event}")]
        lines += [_line("periods", f"{self.n_periods:,} ({self.period})")]
        lines += [_line("", f"dropped as incomplete: {remark}") for remark in self.dropped_periods]
        lines += [_line("window", window)]
        if self.eligible_cells is not None:
            lines += [_line("eligible", f"{self.eligible_cells:,} cells, by {' and '.join(self.eligibility)}")]
        lines += _counts(
            "impressions", self.impressions,
            [(self.treated_cells, "treated cells"), (self.repeated_impressions, "repeated in a cell")],
            self._left_out("impressions"),
        )  # fmt: skip
        lines += _counts(
            "outcomes", self.outcomes,
            [(self.matched, "in a treated cell"), (self.control, "without an impression")],
            [
                (self.before_impression, "before the impression, not counted"),
                (self.after_window, "after the window, not counted"),
                *self._left_out("outcomes"),
                (self.repeated_outcomes, "of those counted repeat an outcome of their cell"),
            ],
        )  # fmt: skip
        propensity = "recorded for every row"
        if self.rows_without_propensity:
            lacking = f"{self.rows_without_propensity:,} of {self.rows:,} rows have none"
            propensity = f"{lacking}; taurank.propensity.estimate can supply it."
        return "\n".join([*lines, _line("rows", f"{self.rows:,}"), _line("propensity", propensity)])

    def _left_out(self, table: str) -> list[tuple[int, str]]:
        nulls = [f"{key.partition('.')[2]} {n:,}" for key, n in self.nulls.items() if key.startswith(f"{table}.")]
        columns = f" ({', '.join(nulls)})" if nulls else ""
        return [
            (getattr(self, f"{table}_duplicate"), "exact duplicates, dropped"),
            (getattr(self, f"{table}_null"), f"with a null, dropped{columns}"),
            (getattr(self, f"{table}_outside"), "outside the periods, dropped"),
            (getattr(self, f"{table}_not_eligible"), "in cells that are not eligible, set aside"),
        ]


def _counts(name: str, total: int, always: list[tuple[int, str]], otherwise: list[tuple[int, str]]) -> list[str]:
    """A total and its parts, in a column of right-aligned numbers; the last parts only where there are any."""
    width = len(f"{total:,}")
    parts = [*always, *((count, text) for count, text in otherwise if count)]
    return [_line(name, f"{total:,}")] + [_line("", f"{count:>{width},} {text}") for count, text in parts]


def _line(name: str, text: str) -> str:
    """A line of the summary, wrapped at 80 columns."""
    first = f"{name:<12} "
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * 15, drop_whitespace=True)
