"""The diagnosis of a log as one page: the verdict, what to do now and the telling chart first, the rest below."""

from __future__ import annotations

import os

from taurank.report import page  # first: it says which extra is missing

# isort: split
import altair as alt
import numpy as np
import pandas as pd

from taurank.estimation.estimators import NEAR
from taurank.report.diagnosis import COLUMNS, HISTOGRAM_EDGES, Diagnosis
from taurank.report.svg import CHART_WIDTH, SERIES_COLORS

TICKS = (1e-5, 1e-3, 1e-2, 0.1, 0.5, 0.9, 0.99, 0.999, 1 - 1e-5)  # propensities named on the axis

_FIGURES = """\
P is the propensity: the probability that this item was recommended to this user at this time. A
purchase is a cell with outcome 1. If the propensities are right, the sum of 1/P over the treated
cells is, up to chance, the number of all cells.

Effective purchases (Kish): weighted by 1/P or 1/(1−P), some purchases count for much more than
others; that many equally weighted ones would have the same precision."""
_HISTOGRAM = f"""\
An effect can be learned where an item is sometimes recommended to this user and sometimes not: in
the middle. At or below {NEAR}, at the left, hardly anything was recommended; at or above {1 - NEAR}, at
the right, hardly anything was not: the log has nothing to compare with there. The axis is
logarithmic in the odds P/(1−P)."""


def overlap_page(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Write a diagnosis as one page that works offline; the file appears whole or not at all."""
    table = pd.DataFrame([check.formatted() for check in diagnosis.checks], columns=list(COLUMNS))
    blocks = [
        page.verdict(diagnosis.level, diagnosis.level.capitalize(), diagnosis.verdict),
        page.lead(
            [page.chart(_histogram(diagnosis), "Purchases by propensity, treated and control")],
            [page.heading("What to do now"), page.steps(diagnosis.advice), page.text(_HISTOGRAM)],
        ),
        page.heading("Figures"),
        page.text(diagnosis.size),
        page.table(table, right=["value", "expected"]),
        page.text(_FIGURES),
    ]
    page.write(path, "Overlap and propensities", blocks)


def _histogram(diagnosis: Diagnosis) -> alt.TopLevelMixin:
    """Purchases by log-odds of P, one panel for each arm: their numbers can differ a hundredfold."""
    arms = (diagnosis.treated, diagnosis.control)
    used = np.flatnonzero(np.sum([arm.histogram for arm in arms], axis=0))
    least = float(np.log10(1 / NEAR)) + 0.25  # 0.001 … 0.999 is shown in any case
    ends = [-least, least]
    if len(used):
        ends = [min(HISTOGRAM_EDGES[used[0]], -least), max(HISTOGRAM_EDGES[used[-1] + 1], least)]
    ticks = {float(np.log10(p / (1 - p))): f"{p:.6g}".replace("e-0", "e-") for p in TICKS}
    label = "'' "
    for position, name in ticks.items():
        label = f"abs(datum.value - ({position})) < 1e-6 ? '{name}' : {label}"
    inner = [position for position in ticks if ends[0] <= position <= ends[1]]
    axis = alt.Axis(title="propensity", values=inner, labelExpr=label, labelOverlap=False)
    low, high = np.array(HISTOGRAM_EDGES[:-1]), np.array(HISTOGRAM_EDGES[1:])
    inside = (low >= ends[0]) & (high <= ends[1])
    panels = [
        alt.Chart(pd.DataFrame({"low": low, "high": high, "purchases": arm.histogram})[inside], title=arm.name)
        .mark_bar(color=color, binSpacing=0.5)
        .encode(
            alt.X("low:Q", bin="binned", axis=axis, scale=alt.Scale(domain=ends, nice=False)),
            alt.X2("high:Q"),
            alt.Y("purchases:Q", title="purchases", axis=alt.Axis(tickCount=4, format="~s")),
        )
        .properties(width=CHART_WIDTH, height=110)
        for arm, color in zip(arms, SERIES_COLORS, strict=False)
    ]
    return alt.vconcat(*panels, spacing=12)
