"""The page of a search: its best trial, a chart for each hyper-parameter, and the table of trials."""

from __future__ import annotations

import os
from collections.abc import Iterable

import altair as alt
import pandas as pd

from taurank.report import page

_POINTS = "Each point is a trial; a pruned trial fell behind the others and was stopped."


def write(
    path: str | os.PathLike[str], title: str, best: str, trials: pd.DataFrame, metric: str, names: Iterable[str]
) -> None:
    """Write the page; the file appears whole or not at all."""
    charts = [page.chart(panel(trials, metric, name), f"{metric} by {name}") for name in names]
    page.write(path, title, [page.text(best), page.panels(charts), page.text(_POINTS), page.table(trials)])


def chart(trials: pd.DataFrame, metric: str, names: Iterable[str]) -> alt.HConcatChart:
    """A panel for each hyper-parameter, side by side."""
    return alt.hconcat(*(panel(trials, metric, name) for name in names))


def panel(trials: pd.DataFrame, metric: str, name: str) -> alt.Chart:
    """The metric over one hyper-parameter, by how the trials ended."""
    return (
        alt.Chart(trials.rename(columns={metric: "value"}), width=240, height=200, title=name)
        .mark_circle(size=60)
        .encode(
            alt.X(f"{name}:O", title=name),
            alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False)),
            alt.Color("state:N", title="trial"),
        )
    )
