"""Measurements in the shop's words, and small text tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from taurank.estimation.gains import Gains
from taurank.evaluation.metrics import Metric

COLUMNS = 80
OVERLAP_LIMIT = 0.05  # warn above this share


@dataclass(frozen=True)
class Wording:
    """What a unit of gain is called: "extra purchases per user and week"."""

    extra: bool = True  # gains are effects: *extra* purchases
    per: str = "per user"

    @classmethod
    def of(cls, formula: Metric, gains: Gains, unit: str) -> Wording:
        """By the declared kind of the gains; where none is declared, by the spelling of the metric."""
        extra = gains.kind == "effect" or (gains.kind is None and formula.name.startswith("C"))
        visiting = gains.eligibility.has_visits
        user = "per visiting user" if visiting else "per user"
        return cls(extra, f"{user} and {unit}" if gains.timed else user)

    def sentence(self, formula: Metric, value: float) -> str:
        """ "top 10: 1.03 extra purchases per user and week"; "" for a metric that has no such reading."""
        purchases = ("extra purchases " if self.extra else "purchases ") + self.per
        if formula.form == "P@k" and formula.depth is not None:
            return f"top {formula.depth}: {number(value * formula.depth)} {purchases}"
        if formula.form == "DCG":
            return f"whole list, discounted by position: {number(value)} {purchases}"
        return "" if formula.larger_is_better else "smaller is better"


PLAIN = Wording()


def overlap_sentence(shares: Mapping[str, float | None]) -> str:
    """The warning for metrics with too much of their weight on pairs without overlap; "" if there are none."""
    bad = [f"{name} {share:.0%}" for name, share in shares.items() if share is not None and share > OVERLAP_LIMIT]
    if not bad:
        return ""
    return (
        "bad overlap: this share of the weight on logged pairs falls on pairs with a propensity within 0.001 of 0 or "
        f"1, where one arm is hardly observed: {', '.join(bad)}; these estimates can be far off, whatever the cap."
    )


def training_sentence(names: Sequence[str]) -> str:
    """The warning for models that are measured on the log they were trained on."""
    which = f"{', '.join(names)}: measured" if any(names) else "measured"
    return f"{which} on the log the model was trained on, which is too optimistic; measure on another log."


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def span(interval: tuple[float, float]) -> str:
    return f"{number(interval[0])} to {number(interval[1])}"


def wrapped(sentences: Iterable[str]) -> list[str]:
    """Each sentence on lines of its own, none wider than a terminal of 80 columns."""
    return [textwrap.fill(sentence, COLUMNS, break_long_words=False) for sentence in sentences]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines with aligned columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    cells = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]
