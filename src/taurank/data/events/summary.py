"""What became of the events that a log was built from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True)
class EventSummary:
    """What became of every event; ``str(summary)`` is a table of it.

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
