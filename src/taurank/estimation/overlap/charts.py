"""The charts of a diagnosis, and what each of them means in plain words."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from taurank.estimation.overlap.diagnosis import HISTOGRAM_EDGES, NEAR, Diagnosis
from taurank.html import page

# propensities named on the axis
MARKS = (1e-5, 1e-3, 1e-2, 0.1, 0.5, 0.9, 0.99, 0.999, 1 - 1e-5)

_FIGURES = """\
P is the propensity: the probability that this item was recommended to this user at this time. A
purchase is a cell with outcome 1. If the propensities are right, the sum of 1/P over the treated
cells is, up to chance, the number of all cells. A log without the untreated, unbought cells does
not say what their propensities are; the checks that would need them are then called not
identifiable.

Effective purchases (Kish): weighted by 1/P or 1/(1−P), some purchases count for much more than
others; that many equally weighted ones would give the same precision."""
_HISTOGRAM = f"""\
An effect can be learned where an item is sometimes recommended to this user and sometimes not: in
the middle. Below {NEAR}, at the left, hardly anything was shown; above {1 - NEAR}, at the right, hardly
anything was not: there the log holds nothing to compare with. The scale is that of the odds."""
_CURVE = """\
Purchases are ordered from the heaviest weight to the lightest. A curve near the diagonal means that
all count about alike; one that shoots up at the left means that a few rows decide the result, and
that a cap on the weights will change it."""
_BINS = """\
All known cells in ten groups by propensity. If the propensities are right, as many cells were
treated as they say, and the points lie on the line. The bars show two standard errors."""
_NO_BINS = """\
Not identifiable from this log: it needs the propensities of the cells that were neither recommended
nor bought. They are known if the log has a row for every cell, or from a table of cells (option
cells)."""


def blocks(diagnosis: Diagnosis, figures: pd.DataFrame) -> list[page.Block]:
    """The page below the verdict."""
    d = diagnosis
    size = (
        f"{d.n_rows:,} rows of {d.n_cells:,} cells: {d.n_users:,} users × {d.n_items:,} items × "
        f"{d.n_times:,} times. {d.n_treated:,} cells were treated; {d.n_purchases:,} purchases."
    )
    parts = [
        page.text(size),
        page.heading("Figures"),
        page.table(figures, right=["value", "expected"]),
        page.text(_FIGURES),
    ]
    parts += [page.heading("Propensities of the purchases")]
    parts += [page.chart(histogram(d), "Purchases by propensity, treated and control"), page.text(_HISTOGRAM)]
    parts += [page.heading("How the weight is spread")]
    parts += [
        page.chart(concentration(d), "Share of the weight on the heaviest purchases"),
        page.text(_CURVE),
    ]
    parts += [page.heading("Do as many get treated as the propensities say?")]
    if d.bins is None:
        return [*parts, page.text(_NO_BINS)]
    return [*parts, page.chart(calibration(d), "Share treated against mean propensity"), page.text(_BINS)]


def histogram(diagnosis: Diagnosis) -> alt.TopLevelMixin:
    """Purchases by log-odds of P, one panel for each arm: their numbers can differ a hundredfold."""
    shown = _shown(diagnosis)
    low, high = np.array(HISTOGRAM_EDGES[:-1]), np.array(HISTOGRAM_EDGES[1:])
    inside = (low >= shown[0]) & (high <= shown[1])
    axis = _propensity_axis(shown)
    arms = (diagnosis.treated, diagnosis.control)
    panels = [
        alt.Chart(pd.DataFrame({"low": low, "high": high, "purchases": arm.histogram})[inside], title=arm.name)
        .mark_bar(color=colour, binSpacing=0.5)
        .encode(
            alt.X("low:Q", bin="binned", axis=axis, scale=alt.Scale(domain=shown, nice=False)),
            alt.X2("high:Q"),
            alt.Y("purchases:Q", title="purchases", axis=alt.Axis(tickCount=4, format="~s")),
        )
        .properties(width=page.CHART_WIDTH, height=110)
        for arm, colour in zip(arms, page.SERIES_COLOURS, strict=False)
    ]
    return alt.vconcat(*panels, spacing=12)


def _shown(diagnosis: Diagnosis) -> list[float]:
    """From where to where the propensity axis goes: what occurs, and 0.001 … 0.999 in any case."""
    counts = np.array(diagnosis.treated.histogram) + np.array(diagnosis.control.histogram)
    used = np.flatnonzero(counts)
    least = float(np.log10(1 / NEAR)) + 0.25
    if not len(used):
        return [-least, least]
    return [min(HISTOGRAM_EDGES[used[0]], -least), max(HISTOGRAM_EDGES[used[-1] + 1], least)]


def _propensity_axis(shown: list[float]) -> alt.Axis:
    marks = {float(np.log10(p / (1 - p))): f"{p:.6g}".replace("e-0", "e-") for p in MARKS}
    places = {place: name for place, name in marks.items() if shown[0] <= place <= shown[1]}
    words = "'' "
    for place, name in places.items():
        words = f"abs(datum.value - ({place})) < 1e-6 ? '{name}' : {words}"
    return alt.Axis(title="propensity", values=list(places), labelExpr=words, labelOverlap=False)


def concentration(diagnosis: Diagnosis) -> alt.TopLevelMixin:
    """Which share of the weight the heaviest purchases of each arm carry."""
    parts = [
        pd.DataFrame({"arm": arm.name, "purchases": np.linspace(0, 1, len(arm.curve)), "weight": arm.curve})
        for arm in (diagnosis.treated, diagnosis.control)
    ]
    ends = pd.DataFrame({"purchases": [0.0, 1.0], "weight": [0.0, 1.0]})
    even = alt.Chart(ends).mark_line(color="currentColor", strokeDash=[3, 3], strokeWidth=1, opacity=0.5)
    curves = alt.Chart(pd.concat(parts)).mark_line(strokeWidth=2)
    sides: dict[str, Any] = {
        "x": alt.X("purchases:Q", title="share of the purchases, heaviest first", axis=alt.Axis(format="%")),
        "y": alt.Y("weight:Q", title="share of the weight", axis=alt.Axis(format="%")),
    }
    colour = alt.Color("arm:N", sort=["treated", "control"], legend=alt.Legend(title=None))
    return (even.encode(**sides) + curves.encode(**sides, color=colour)).properties(
        width=page.CHART_WIDTH, height=260
    )


def calibration(diagnosis: Diagnosis) -> alt.TopLevelMixin:
    """The share treated against the mean propensity of each bin, with two standard errors."""
    bins = diagnosis.bins or ()
    frame = pd.DataFrame(
        {
            "propensity": [b.propensity for b in bins],
            "treated": [b.treated for b in bins],
            "low": [b.treated - 2 * b.error for b in bins],
            "high": [b.treated + 2 * b.error for b in bins],
        }
    )
    top = max(frame["propensity"].max(), frame["high"].max())
    line = alt.Chart(pd.DataFrame({"propensity": [0.0, top], "treated": [0.0, top]}))
    x = alt.X("propensity:Q", title="mean propensity of the bin", axis=alt.Axis(tickCount=5))
    y = alt.Y("treated:Q", title="share treated")
    points = alt.Chart(frame).mark_point(filled=True, size=50, opacity=1, color=page.SERIES_COLOURS[0])
    bars = alt.Chart(frame).mark_rule(color=page.SERIES_COLOURS[0])
    even = line.mark_line(color="currentColor", strokeDash=[3, 3], strokeWidth=1, opacity=0.5)
    layers = even.encode(x, y) + bars.encode(x, alt.Y("low:Q", title="share treated"), alt.Y2("high:Q"))
    return (layers + points.encode(x, y)).properties(width=page.CHART_WIDTH, height=260)
