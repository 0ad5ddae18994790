"""The diagnosis as one page: the verdict, what to do now and the telling chart first, the rest below."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pandas as pd

from taurank.estimation.overlap import charts
from taurank.estimation.overlap.figures import Figures
from taurank.estimation.overlap.findings import Finding
from taurank.estimation.overlap.text import COLUMNS, advices, checks, size, verdict
from taurank.estimation.thresholds import NEAR
from taurank.report import page

_FIGURES = """\
P is the propensity: the probability that this item was recommended to this user at this time. A
purchase is a cell with outcome 1. If the propensities are right, the sum of 1/P over the treated
cells is, up to chance, the number of all cells. A log without the untreated, unbought cells does
not say what their propensities are; the checks that would need them are then called not
identifiable.

Effective purchases (Kish): weighted by 1/P or 1/(1−P), some purchases count for much more than
others; that many equally weighted ones would have the same precision."""
_HISTOGRAM = f"""\
An effect can be learned where an item is sometimes recommended to this user and sometimes not: in
the middle. At or below {NEAR}, at the left, hardly anything was recommended; at or above {1 - NEAR}, at
the right, hardly anything was not: the log has nothing to compare with there. The axis is
logarithmic in the odds P/(1−P)."""
_CURVE = """\
Purchases are ordered from the heaviest weight to the lightest. A curve near the diagonal means that
all count about alike; one that rises steeply at the left means that a few rows decide the result,
and that a cap on the weights will change it."""
_BINS = """\
All known cells in ten groups by propensity. If the propensities are right, as many cells were
treated as they say, and the points lie on the line. The bars show two standard errors."""
_NO_BINS = """\
Not identifiable from this log: it needs the propensities of the cells that were neither recommended
nor bought. They are known if the log has a row for every cell, or from a table of cells (option
cells)."""


def write_html(figures: Figures, findings: Sequence[Finding], path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    page.write(path, "Overlap and propensities", _blocks(figures, findings))


def _blocks(figures: Figures, findings: Sequence[Finding]) -> list[page.Block]:
    level = findings[0].level
    table = pd.DataFrame([check.formatted() for check in checks(figures)], columns=list(COLUMNS))
    return [
        page.verdict(level, level.capitalize(), verdict(findings)),
        page.lead(
            [page.chart(charts.histogram(figures), "Purchases by propensity, treated and control")],
            [page.heading("What to do now"), page.steps(advices(findings)), page.text(_HISTOGRAM)],
        ),
        page.heading("Figures"),
        page.text(size(figures)),
        page.table(table, right=["value", "expected"]),
        page.text(_FIGURES),
        page.heading("How the weight is spread"),
        page.chart(charts.concentration(figures), "Share of the weight on the heaviest purchases"),
        page.text(_CURVE),
        page.heading("Are as many cells treated as the propensities say?"),
        *_calibration(figures),
    ]


def _calibration(figures: Figures) -> list[page.Block]:
    if figures.bins is None:
        return [page.text(_NO_BINS)]
    drawing = charts.calibration(figures)
    return [page.chart(drawing, "Share treated against mean propensity"), page.text(_BINS)]
