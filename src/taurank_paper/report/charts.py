"""The charts of the data and of the comparison: Fig. 2 of the paper, and its Tables 3 to 5 as charts."""

from __future__ import annotations

import altair as alt
import pandas as pd

from taurank.report import page, svg
from taurank_paper.plan.names import LIMITS
from taurank_paper.report import styles
from taurank_paper.report.styles import few_ticks, panel
from taurank_paper.verdicts import paper_tables
from taurank_paper.verdicts.comparison import DatasetKey, datasets_of, method_name, methods_of, rows_of

DOTS_WIDTH, ROW_HEIGHT = 215, 17


def scores(frame: pd.DataFrame, metric: str) -> list[page.Block]:
    """A panel for each dataset: a dot for each method with its spread, the paper's as a hollow diamond."""
    blocks = []
    for dataset in datasets_of(frame):
        rows = rows_of(frame, dataset, metric)
        if len(rows):
            caption = f"{metric}, {', '.join(dataset)}"
            height = len(methods_of(rows)) * ROW_HEIGHT
            blocks.append(panel(_dots(frame, dataset, metric), caption, DOTS_WIDTH, height))
    return blocks


def comparison_file(frame: pd.DataFrame, metric: str = styles.MAIN_METRIC) -> str:
    """All datasets in one SVG with its own colors, for a README."""
    height = len(methods_of(frame)) * ROW_HEIGHT
    panels = [_dots(frame, each, metric).properties(width=260, height=height) for each in datasets_of(frame)]
    rows = [alt.hconcat(*panels[first : first + 2]) for first in range(0, len(panels), 2)]
    return svg.draw(alt.vconcat(*rows), ink="#333333", background="white")


def _dots(frame: pd.DataFrame, dataset: DatasetKey, metric: str) -> alt.LayerChart:
    ours = rows_of(frame, dataset, metric)
    printed = paper_tables.car() if metric == "CAR" else paper_tables.comparison()
    methods = methods_of(ours)
    theirs = rows_of(printed, dataset, metric)
    theirs = theirs[theirs["method"].isin(methods)]
    labels = [method_name(method) for method in methods]
    y = alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(grid=True, labelLimit=120))
    title = styles.metric_title(metric)
    x = alt.X("mean:Q", title=title, axis=few_ticks())
    chosen = {method: style.color for method, style in styles.styles(methods).items()}
    color = alt.Color("method:N", scale=styles.scale(chosen), legend=None)
    base = alt.Chart(styles.with_spread(ours))
    bars = base.mark_rule(strokeWidth=2).encode(y, alt.X("low:Q", title=title), alt.X2("high:Q"), color)
    dots = base.mark_point(filled=True, size=75, opacity=1).encode(y, x, color)
    hollow = alt.Chart(styles.with_spread(theirs)).mark_point(shape="diamond", filled=False, size=80, opacity=0.9)
    return (bars + dots + hollow.encode(y, x, color)).properties(title=", ".join(dataset))


def outcome_against_effect(frame: pd.DataFrame) -> list[page.Block]:
    """P@10 against CP@10: a method that recommends what is bought anyway is far right and low."""
    blocks = []
    for dataset in datasets_of(frame):
        rows = rows_of(frame, dataset)
        rows = rows[rows["metric"].isin(["P@10", "CP@10"]) & ~rows["method"].isin(LIMITS)]
        wide = rows.pivot_table(index="method", columns="metric", values="mean")
        if {"P@10", "CP@10"} <= set(wide.columns):
            points = wide.dropna().rename(columns={"P@10": "outcome", "CP@10": "effect"}).reset_index()
            blocks.append(_scatter(points, ", ".join(dataset)))
    return blocks


def _scatter(frame: pd.DataFrame, dataset: str) -> page.Block:
    x = alt.X("outcome:Q", title="P@10", axis=few_ticks())
    y = alt.Y("effect:Q", title="CP@10", axis=few_ticks())
    points = alt.Chart(styles.labeled(frame), title=dataset).mark_point(filled=True, size=90, opacity=1)
    return panel(points.encode(x, y, **styles.by_method(frame)), f"P@10 against CP@10, {dataset}")


def densities(frame: pd.DataFrame) -> list[page.Block]:
    """Fig. 2."""
    return [_density(rows, str(items)) for items, rows in frame.groupby("items", sort=False)]


def _density(frame: pd.DataFrame, items: str) -> page.Block:
    names = [setting for setting in styles.SETTING_COLORS if setting in set(frame["setting"])]
    dashes = alt.Scale(domain=names, range=list(styles.DASHES[: len(names)]))
    picture = (
        alt.Chart(_steps(frame), title=items)
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            alt.X("low:Q", title="propensity", scale=alt.Scale(domain=[0, 1])),
            alt.Y("density:Q", title="density (square-root scale)", scale=alt.Scale(type="sqrt"), axis=few_ticks()),
            alt.Color(
                "setting:N", sort=names, scale=styles.scale({key: styles.SETTING_COLORS[key] for key in names})
            ),
            alt.StrokeDash("setting:N", sort=names, scale=dashes),
        )
    )
    return panel(picture, f"Density of the propensity over the purchases of a sampled log, {items}")


def _steps(frame: pd.DataFrame) -> pd.DataFrame:
    """A last point at the right end, so that the last step has its width."""
    ends = frame.sort_values("low").groupby("setting").tail(1)
    return pd.concat([frame, ends.assign(low=ends["high"])]).sort_values(["setting", "low"])


def brier(frame: pd.DataFrame) -> list[page.Block]:
    """The Brier score of the last week by prior weight; a dot marks the lowest, a dashed line the paper's weight."""
    printed = paper_tables.statistics()
    weights = printed[printed["quantity"] == "prior_weight"].set_index("items")["value"]
    return [_brier(rows, str(items), weights.get(items)) for items, rows in frame.groupby("items", sort=False)]


def _brier(frame: pd.DataFrame, items: str, in_paper: float | None) -> page.Block:
    x = alt.X("prior_weight:Q", title="prior weight w", axis=few_ticks())
    y = alt.Y("brier:Q", title="Brier score", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5, format=".6~g"))
    color = styles.SETTING_COLORS["original"]
    lowest = alt.Chart(frame.loc[[frame["brier"].idxmin()]])
    line = alt.Chart(frame, title=items).mark_line(color=color, strokeWidth=2).encode(x, y)
    picture = line + lowest.mark_point(filled=True, size=90, opacity=1, color=color).encode(x, y)
    if in_paper is not None:
        rule = alt.Chart(pd.DataFrame({"prior_weight": [in_paper]})).mark_rule(strokeDash=[3, 3], opacity=0.7)
        picture = picture + rule.encode(alt.X("prior_weight:Q"))
    return panel(picture, f"Brier score of the last week by prior weight, {items}")
