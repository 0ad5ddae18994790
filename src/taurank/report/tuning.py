"""The page of a search: its best trial, a chart for each hyper-parameter, and the table of trials."""

from __future__ import annotations

import os

from taurank.report import page  # first: it says which extra is missing

# isort: split
import altair as alt
import pandas as pd

from taurank.tuning import Tuning, settings_text

_POINTS = "Each point is a trial; a pruned trial fell behind the others and was stopped."


def tuning_page(tuning: Tuning, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    search, trials = tuning.search, tuning.trials
    best = f"Best {search.metric}: {tuning.value:.4f} with {settings_text(tuning.best, ' = ')}."
    charts = [page.chart(panel(trials, search.metric, name), f"{search.metric} by {name}") for name in search.space]
    blocks = [page.text(best), page.group("panels", charts), page.text(_POINTS), page.table(trials)]
    page.write(path, f"Tuning {tuning.name}", blocks)


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
