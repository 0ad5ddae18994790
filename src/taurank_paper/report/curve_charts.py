"""The charts of what is varied: Figs. 3 to 6 of the paper, its Tables 6 and 7, and the losses by factors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import altair as alt
import pandas as pd

from taurank.report import page
from taurank_paper.report import styles
from taurank_paper.report.styles import CHART_METRICS, DASHES, few_ticks, panel
from taurank_paper.verdicts.comparison import (
    datasets_of,
    dlce_rows,
    larger_is_better,
    method_name,
    methods_of,
    rows_of,
)

LOSSES = {"logistic": "upper bound (logistic)", "sigmoid": "approximation (sigmoid)", "hinge": "hinge"}
DLCE_COLOR = styles.STYLES["dlce"].color

Draw = Callable[[pd.DataFrame, str, str], page.Block]  # the rows of one panel, its metric and its dataset


def convergence(frame: pd.DataFrame, metric: str) -> list[page.Block]:
    """The validation metric of every trained method by the number of updates."""
    return list(_panels(frame[frame["metric"] == metric], [metric], _convergence))


def _convergence(frame: pd.DataFrame, metric: str, dataset: str) -> page.Block:
    millions = frame.assign(millions=frame["updates"] / 1e6)
    x = alt.X("millions:Q", title="million updates", scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=4))
    y = alt.Y("value:Q", title=f"{metric}, validation", scale=alt.Scale(zero=False), axis=few_ticks())
    line = alt.Chart(styles.labeled(millions), title=dataset).mark_line(strokeWidth=2)
    keys = {"color": styles.by_method(frame)["color"]}
    return panel(line.encode(x, y, **keys), f"{metric} of the validation week by updates, {dataset}")


def caps(frame: pd.DataFrame, metric: str) -> list[page.Block]:
    """Figs. 3 and 4: DLCE by cap, with the spread over weeks; a ring marks the best cap."""
    return list(_panels(dlce_rows(frame), [metric], _cap))


def _cap(frame: pd.DataFrame, metric: str, dataset: str) -> page.Block:
    title = styles.metric_title(metric)
    ticks = alt.Axis(values=sorted(set(frame["cap"])), format="~g", labelOverlap="greedy")
    x = alt.X("cap:Q", title="cap χ", scale=alt.Scale(type="log", nice=False), axis=ticks)
    y = alt.Y("mean:Q", title=title, scale=alt.Scale(zero=False), axis=few_ticks())
    best = frame["mean"].idxmax() if larger_is_better(metric) else frame["mean"].idxmin()
    base = alt.Chart(styles.with_spread(frame))
    band = base.mark_area(opacity=0.2, color=DLCE_COLOR).encode(x, alt.Y("low:Q", title=title), alt.Y2("high:Q"))
    points = alt.OverlayMarkDef(filled=True, size=45, opacity=1, color=DLCE_COLOR)
    line = base.mark_line(point=points, color=DLCE_COLOR, strokeWidth=2).encode(x, y)
    ring = alt.Chart(frame.loc[[best]]).mark_point(size=260, strokeWidth=2.5, color="currentColor", opacity=1)
    return panel((band + line + ring.encode(x, y)).properties(title=dataset), f"{metric} of DLCE by cap, {dataset}")


def estimator_errors(frame: pd.DataFrame) -> list[page.Block]:
    """Tables 6 and 7 as charts: the error relative to the truth, by cap."""
    relative = frame.assign(mean=100 * frame["mae"] / frame["truth"].abs(), at=frame["cap"].map("{:g}".format))
    return list(_panels(relative[relative["mean"] > 0], (*CHART_METRICS, "CAR"), _error))


def _error(frame: pd.DataFrame, metric: str, dataset: str) -> page.Block:
    order = [f"{cap:g}" for cap in sorted(set(frame["cap"]))]
    x = alt.X("at:O", sort=order, title="cap χ (0: none)", axis=alt.Axis(labelAngle=0))
    ticks = alt.Axis(tickCount=3, format=",.4~g")
    y = alt.Y("mean:Q", title=f"MAE, % of {metric}", scale=alt.Scale(type="log"), axis=ticks)
    line = alt.Chart(styles.labeled(frame), title=f"{metric}: {dataset}").mark_line(point=_points(), strokeWidth=2)
    caption = f"Error of the estimates of {metric} relative to the truth, {dataset}"
    return panel(line.encode(x, y, **styles.by_method(frame)), caption)


def unevenness(frame: pd.DataFrame) -> list[page.Block]:
    """Fig. 5: a line for each method with its spread over weeks."""
    return [
        _by_beta(rows, metric, f"{items}, personalized")
        for metric in CHART_METRICS
        for items, rows in frame[frame["metric"] == metric].groupby("items", sort=False)
    ]


def _by_beta(frame: pd.DataFrame, metric: str, dataset: str) -> page.Block:
    ticks = alt.Axis(values=sorted(set(frame["beta"])), format="~g", labelOverlap="greedy")
    x = alt.X("beta:Q", title="unevenness β", scale=alt.Scale(zero=False, nice=False), axis=ticks)
    y = alt.Y("mean:Q", title=metric, scale=alt.Scale(zero=False), axis=few_ticks())
    keys = styles.by_method(frame)
    base = alt.Chart(styles.with_spread(frame), title=f"{metric}: {dataset}")
    bars = base.mark_rule(opacity=0.6).encode(x, alt.Y("low:Q", title=metric), alt.Y2("high:Q"), color=keys["color"])
    line = base.mark_line(point=_points(), strokeWidth=2).encode(x, y, **keys)
    return panel(bars + line, f"{metric} by unevenness β, {dataset}")


def misspecification(frame: pd.DataFrame) -> list[page.Block]:
    """Fig. 6: DLCE by ξ; methods that use no propensity, or an estimated one, are horizontal lines."""
    return list(_panels(frame, CHART_METRICS, _misspecified))


def _misspecified(frame: pd.DataFrame, metric: str, dataset: str) -> page.Block:
    rows = _with_horizontal_lines(frame)
    rows = rows.assign(series=[_series(*pair) for pair in zip(rows["method"], rows["propensity"], strict=True)])
    names = list(dict.fromkeys(rows["series"]))
    chosen = styles.styles(methods_of(rows))
    colors = {key: chosen[method].color for key, method in zip(rows["series"], rows["method"], strict=True)}
    estimated = set(rows.loc[rows["propensity"] == "estimated", "series"])
    dashes = alt.Scale(domain=names, range=[DASHES[1] if name in estimated else DASHES[0] for name in names])
    legend = styles.legend(2, "stroke")
    x = alt.X("xi:Q", title="misspecification ξ")
    y = alt.Y("mean:Q", title=metric, scale=alt.Scale(zero=False), axis=few_ticks())
    color = alt.Color("series:N", sort=names, scale=styles.scale(colors), legend=legend)
    dash = alt.StrokeDash("series:N", sort=names, scale=dashes, legend=legend)
    lines = alt.Chart(rows, title=dataset).mark_line(strokeWidth=2).encode(x, y, color, dash)
    dots = alt.Chart(rows[rows["propensity"] == "misspecified"]).mark_point(filled=True, size=40, opacity=1)
    return panel(lines + dots.encode(x, y, color), f"{metric} by misspecification of the propensity, {dataset}")


def _with_horizontal_lines(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows without ξ become two rows, at both ends of the axis."""
    grid = sorted(set(frame["xi"].dropna())) or [0.0, 1.0]
    constant = frame[frame["xi"].isna()]
    return pd.concat([frame[frame["xi"].notna()], constant.assign(xi=grid[0]), constant.assign(xi=grid[-1])])


def _series(method: str, propensity: str) -> str:
    return method_name(method) if propensity == "none" else f"{method_name(method)}, {propensity} P"


def losses(frame: pd.DataFrame) -> list[page.Block]:
    """Section 5.1.2: one line per loss, all DLCE, by number of factors."""
    return list(_panels(dlce_rows(frame), CHART_METRICS, _loss))


def _loss(frame: pd.DataFrame, metric: str, dataset: str) -> page.Block:
    rows = styles.with_spread(frame.assign(series=frame["loss"].map(lambda loss: LOSSES.get(loss, loss))))
    names = sorted(set(rows["series"]), key=[*LOSSES.values(), *rows["series"]].index)
    ticks = alt.Axis(values=sorted(set(rows["factors"])), format="d")
    x = alt.X("factors:Q", title="factors d", scale=alt.Scale(type="log", base=2, nice=False), axis=ticks)
    y = alt.Y("mean:Q", title=metric, scale=alt.Scale(zero=False), axis=few_ticks())
    dashes, shapes = (_cycle(names, values) for values in (DASHES, ["circle", "square", "triangle-up", "diamond"]))
    dash = alt.StrokeDash("series:N", sort=names, scale=dashes, legend=styles.legend(1))
    shape = alt.Shape("series:N", sort=names, scale=shapes, legend=styles.legend(1))
    base = alt.Chart(rows, title=dataset)
    lines = base.mark_line(strokeWidth=2, color=DLCE_COLOR).encode(x, y, dash)
    dots = base.mark_point(filled=True, size=50, opacity=1, color=DLCE_COLOR).encode(x, y, shape)
    return panel(lines + dots, f"{metric} of DLCE by number of factors and loss, {dataset}")


def _panels(frame: pd.DataFrame, metrics: Sequence[str], draw: Draw) -> Iterator[page.Block]:
    """A panel for each metric and dataset that has rows."""
    for metric in metrics:
        for dataset in datasets_of(frame):
            rows = rows_of(frame, dataset, metric)
            if len(rows):
                yield draw(rows, metric, ", ".join(dataset))


def _cycle(names: Sequence[str], values: Sequence[object]) -> alt.Scale:
    return alt.Scale(domain=list(names), range=[values[index % len(values)] for index in range(len(names))])


def _points() -> alt.OverlayMarkDef:
    return alt.OverlayMarkDef(filled=True, size=45, opacity=1)
