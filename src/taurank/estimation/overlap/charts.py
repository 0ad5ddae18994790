"""The charts of a diagnosis."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from taurank.estimation.overlap.figures import HISTOGRAM_EDGES, Figures
from taurank.estimation.thresholds import NEAR
from taurank.report.svg import CHART_WIDTH, SERIES_COLORS

# propensities named on the axis
TICKS = (1e-5, 1e-3, 1e-2, 0.1, 0.5, 0.9, 0.99, 0.999, 1 - 1e-5)


def histogram(figures: Figures) -> alt.TopLevelMixin:
    """Purchases by log-odds of P, one panel for each arm: their numbers can differ a hundredfold."""
    ends = _range(figures)
    low, high = np.array(HISTOGRAM_EDGES[:-1]), np.array(HISTOGRAM_EDGES[1:])
    inside = (low >= ends[0]) & (high <= ends[1])
    axis = _propensity_axis(ends)
    arms = (figures.treated, figures.control)
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


def _range(figures: Figures) -> list[float]:
    """From where to where the propensity axis goes: what occurs, and 0.001 … 0.999 in any case."""
    counts = np.array(figures.treated.histogram) + np.array(figures.control.histogram)
    used = np.flatnonzero(counts)
    least = float(np.log10(1 / NEAR)) + 0.25
    if not len(used):
        return [-least, least]
    return [min(HISTOGRAM_EDGES[used[0]], -least), max(HISTOGRAM_EDGES[used[-1] + 1], least)]


def _propensity_axis(ends: list[float]) -> alt.Axis:
    labels = {float(np.log10(p / (1 - p))): f"{p:.6g}".replace("e-0", "e-") for p in TICKS}
    ticks = {position: name for position, name in labels.items() if ends[0] <= position <= ends[1]}
    label = "'' "
    for position, name in ticks.items():
        label = f"abs(datum.value - ({position})) < 1e-6 ? '{name}' : {label}"
    return alt.Axis(title="propensity", values=list(ticks), labelExpr=label, labelOverlap=False)


def concentration(figures: Figures) -> alt.TopLevelMixin:
    """Which share of the weight the heaviest purchases of each arm carry."""
    parts = [
        pd.DataFrame({"arm": arm.name, "purchases": np.linspace(0, 1, len(arm.curve)), "weight": arm.curve})
        for arm in (figures.treated, figures.control)
    ]
    ends = pd.DataFrame({"purchases": [0.0, 1.0], "weight": [0.0, 1.0]})
    even = alt.Chart(ends).mark_line(color="currentColor", strokeDash=[3, 3], strokeWidth=1, opacity=0.5)
    curves = alt.Chart(pd.concat(parts)).mark_line(strokeWidth=2)
    sides: dict[str, Any] = {
        "x": alt.X("purchases:Q", title="share of the purchases, heaviest first", axis=alt.Axis(format="%")),
        "y": alt.Y("weight:Q", title="share of the weight", axis=alt.Axis(format="%")),
    }
    color = alt.Color("arm:N", sort=["treated", "control"], legend=alt.Legend(title=None))
    return (even.encode(**sides) + curves.encode(**sides, color=color)).properties(width=CHART_WIDTH, height=260)


def calibration(figures: Figures) -> alt.TopLevelMixin:
    """The share treated against the mean propensity of each bin, with two standard errors."""
    bins = figures.bins or ()
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
    points = alt.Chart(frame).mark_point(filled=True, size=50, opacity=1, color=SERIES_COLORS[0])
    bars = alt.Chart(frame).mark_rule(color=SERIES_COLORS[0])
    even = line.mark_line(color="currentColor", strokeDash=[3, 3], strokeWidth=1, opacity=0.5)
    layers = even.encode(x, y) + bars.encode(x, alt.Y("low:Q", title="share treated"), alt.Y2("high:Q"))
    return (layers + points.encode(x, y)).properties(width=CHART_WIDTH, height=260)
