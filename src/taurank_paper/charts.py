"""The charts: one color and one mark for each method, small panels, few ticks.

The colors are distinguishable with common color-vision deficiencies, and legible on white and on black.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import altair as alt
import pandas as pd

from taurank.report import page, svg
from taurank_paper.folder import printed
from taurank_paper.scores import DatasetKey, datasets_of, larger_is_better, method_name, methods_of, rows_of, where

WIDTH, HEIGHT = 260, 180  # small: four panels in a row on a wide screen, one on a phone
DOTS_WIDTH, ROW_HEIGHT = 215, 17
FEW_TICKS = alt.Axis(tickCount=4, format=".3~g")
MAIN_METRIC = "CP@10"
CHART_METRICS = (MAIN_METRIC, "CDCG")
SETTING_COLORS = {"original": "#7a6fd0", "personalized": "#b58a1b"}
DASHES = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3])
LOSSES = {"logistic": "upper bound (logistic)", "sigmoid": "approximation (sigmoid)", "hinge": "hinge"}


class Style(NamedTuple):
    color: str
    mark: str


STYLES = {
    "random": Style("#8c8c8c", "circle"), "popular": Style("#9c755f", "cross"), "bpr": Style("#8a7fd1", "diamond"),
    "ulbpr": Style("#1b7fc0", "square"), "ulrmf": Style("#3fa3db", "triangle-up"),
    "cause": Style("#009e73", "triangle-down"), "dlto": Style("#c28a00", "diamond"),
    "blce": Style("#c2689a", "triangle-right"), "dlce": Style("#d55e00", "circle"),
    "countingbayes": Style("#6b8e23", "cross"), "empiricalbayes": Style("#7a3fb0", "circle"),
    "truth": Style("currentColor", "stroke"), "ten_weeks": Style("currentColor", "stroke"),
}  # fmt: skip
# for every other method: any pair of these
OTHER_COLORS = ("#b0527d", "#4d9aa3", "#8467cf", "#a8642f", "#7a8a2a", "#6d7f93", "#c25353")
OTHER_MARKS = ("square", "triangle-up", "diamond", "triangle-down", "triangle-left", "cross")


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """A style for each method; one the paper does not have gets a style by its name, unlike those of the others."""
    chosen = {method: STYLES[method] for method in methods if method in STYLES}
    free = [Style(color, mark) for mark in OTHER_MARKS for color in OTHER_COLORS]
    for method in sorted(set(methods) - set(chosen)):
        chosen[method] = free.pop(crc32(method.encode()) % len(free)) if free else Style(OTHER_COLORS[0], "circle")
    return {method: chosen[method] for method in methods}


# ---- the comparison ------------------------------------------------------------------------------


def scores(frame: pd.DataFrame, metric: str) -> list[page.Block]:
    """A panel for each dataset: a dot for each method with its spread, the paper's as a hollow diamond."""
    blocks = []
    for dataset in datasets_of(frame):
        rows = rows_of(frame, dataset, metric)
        if len(rows):
            caption = f"{metric}, {', '.join(dataset)}"
            height = len(methods_of(rows)) * ROW_HEIGHT
            blocks.append(_panel(_dots(frame, dataset, metric), caption, DOTS_WIDTH, height))
    return blocks


def comparison_file(frame: pd.DataFrame, metric: str = MAIN_METRIC) -> str:
    """All datasets in one SVG with its own colors, for a README."""
    height = len(methods_of(frame)) * ROW_HEIGHT
    panels = [_dots(frame, each, metric).properties(width=260, height=height) for each in datasets_of(frame)]
    rows = [alt.hconcat(*panels[first : first + 2]) for first in range(0, len(panels), 2)]
    return svg.draw(alt.vconcat(*rows), ink="#333333", background="white")


def _dots(frame: pd.DataFrame, dataset: DatasetKey, metric: str) -> alt.LayerChart:
    ours = rows_of(frame, dataset, metric)
    in_paper = printed()["car" if metric == "CAR" else "comparison"]
    methods = methods_of(ours)
    theirs = rows_of(in_paper, dataset, metric)
    theirs = theirs[theirs["method"].isin(methods)]
    labels = [method_name(method) for method in methods]
    y = alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(grid=True, labelLimit=120))
    title = _metric_title(metric)
    x = alt.X("mean:Q", title=title, axis=FEW_TICKS)
    colors = [style.color for style in styles(methods).values()]
    color = alt.Color("method:N", scale=_range(methods, colors), legend=None)
    base = alt.Chart(_with_spread(ours))
    bars = base.mark_rule(strokeWidth=2).encode(y, alt.X("low:Q", title=title), alt.X2("high:Q"), color)
    dots = base.mark_point(filled=True, size=75, opacity=1).encode(y, x, color)
    hollow = alt.Chart(_with_spread(theirs)).mark_point(shape="diamond", filled=False, size=80, opacity=0.9)
    return (bars + dots + hollow.encode(y, x, color)).properties(title=", ".join(dataset))


# ---- what is varied ------------------------------------------------------------------------------


def convergence(frame: pd.DataFrame, metric: str) -> list[page.Block]:
    """The validation metric of every trained method by the number of updates."""
    trained = frame[frame["updates"] > 0]  # the axis is logarithmic
    millions = trained.assign(millions=trained["updates"] / 1e6, mean=trained["value"])
    x = alt.X("millions:Q", title="million updates", scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=4))
    return _curves(millions, [metric], x, "{metric} of the validation week by updates")


def caps(frame: pd.DataFrame, metric: str) -> list[page.Block]:
    """Figs. 3 and 4: DLCE by cap."""
    rows = where(frame, method="dlce")
    return _curves(rows, [metric], _grid(rows, "cap", "cap χ", "log"), "{metric} of DLCE by cap")


def estimator_errors(frame: pd.DataFrame) -> list[page.Block]:
    """Tables 6 and 7 as charts: the error relative to the truth, by cap."""
    relative = frame.assign(mean=100 * frame["mae"] / frame["truth"].abs(), at=frame["cap"].map("{:g}".format))
    order = [f"{cap:g}" for cap in sorted(set(frame["cap"]))]
    x = alt.X("at:O", sort=order, title="cap χ (0: none)", axis=alt.Axis(labelAngle=0))
    caption = "Error of the estimates of {metric} relative to the truth"
    y = alt.Y("mean:Q", title="MAE, %", scale=alt.Scale(type="log"), axis=alt.Axis(tickCount=3, format=",.4~g"))
    return _curves(relative[relative["mean"] > 0], (*CHART_METRICS, "CAR"), x, caption, y)


def unevenness(frame: pd.DataFrame) -> list[page.Block]:
    """Fig. 5: by β."""
    return _curves(frame, CHART_METRICS, _grid(frame, "beta", "unevenness β", "linear"), "{metric} by unevenness β")


def misspecification(frame: pd.DataFrame) -> list[page.Block]:
    """Fig. 6: DLCE by ξ; methods that use no propensity, or an estimated one, are horizontal lines."""
    grid = sorted(set(frame["xi"].dropna())) or [0.0, 1.0]
    constant = frame[frame["xi"].isna()]
    rows = pd.concat([frame[frame["xi"].notna()], constant.assign(xi=grid[0]), constant.assign(xi=grid[-1])])
    kinds = rows["propensity"].map({"none": "", "estimated": ", estimated P", "misspecified": ", misspecified P"})
    rows = rows.assign(label=rows["method"].map(method_name) + kinds)
    return _curves(rows, CHART_METRICS, alt.X("xi:Q", title="misspecification ξ"), "{metric} by misspecification")


def losses(frame: pd.DataFrame) -> list[page.Block]:
    """Section 5.1.2: one line per loss, all DLCE, by number of factors."""
    rows = where(frame, method="dlce")
    rows = rows.assign(label=rows["loss"].map(lambda loss: LOSSES.get(loss, loss)))
    x = _grid(rows, "factors", "factors d", "log")
    return _curves(rows, CHART_METRICS, x, "{metric} of DLCE by number of factors and loss")


def _grid(frame: pd.DataFrame, column: str, title: str, kind: str) -> alt.X:
    """An axis with a tick at each value."""
    ticks = alt.Axis(values=sorted(set(frame[column])), format="~g", labelOverlap="greedy")
    return alt.X(f"{column}:Q", title=title, scale=alt.Scale(type=kind, nice=False, zero=False), axis=ticks)


def _curves(
    frame: pd.DataFrame, metrics: Iterable[str], x: alt.X, caption: str, y: alt.Y | None = None
) -> list[page.Block]:
    """A panel for each metric and dataset: a line per method, with bars of ± one standard deviation where known."""
    blocks = []
    for metric, dataset in itertools.product(metrics, datasets_of(frame)):
        rows = rows_of(frame, dataset, metric)
        if len(rows):
            title = f"{metric}: {', '.join(dataset)}"
            height = y or alt.Y("mean:Q", title=_metric_title(metric), scale=alt.Scale(zero=False), axis=FEW_TICKS)
            rows = _with_spread(rows)
            base, keys = alt.Chart(rows, title=title), _keys(rows)
            points = alt.OverlayMarkDef(filled=True, size=45, opacity=1)
            line = base.mark_line(point=points, strokeWidth=2).encode(x, height, **keys)
            bars = base.mark_rule(opacity=0.6).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), color=keys["color"])
            drawn = bars + line if "std" in rows else line
            blocks.append(_panel(drawn, f"{caption.format(metric=metric)}, {', '.join(dataset)}"))
    return blocks


def _keys(frame: pd.DataFrame) -> dict[str, Any]:
    """Color and mark of each label: those of its method; labels that share a method differ by mark and dash."""
    order = methods_of(frame)
    pairs = frame[["label", "method"]].drop_duplicates()
    pairs = pairs.sort_values("method", kind="stable", key=lambda keys: keys.map(order.index))
    labels, turn = list(pairs["label"]), pairs.groupby("method").cumcount()
    chosen = [styles(order)[method] for method in pairs["method"]]
    marks = [OTHER_MARKS[n - 1] if n else style.mark for n, style in zip(turn, chosen, strict=True)]
    colors = [style.color for style in chosen]
    ranges: list[tuple[str, Any, list[Any]]] = [("color", alt.Color, colors), ("shape", alt.Shape, marks)]
    if turn.any():
        ranges.append(("strokeDash", alt.StrokeDash, [DASHES[n % len(DASHES)] for n in turn]))
    legend = alt.Legend(title=None, orient="top", columns=4, symbolOpacity=1, labelLimit=200)
    return {
        name: kind("label:N", sort=labels, scale=_range(labels, own), legend=legend) for name, kind, own in ranges
    }


# ---- the data ------------------------------------------------------------------------------------


def densities(frame: pd.DataFrame) -> list[page.Block]:
    """Fig. 2."""
    names = [setting for setting in SETTING_COLORS if setting in set(frame["setting"])]
    ends = frame.groupby(["items", "setting"], sort=False).tail(1)  # again, so that the last step has its width
    steps = pd.concat([frame, ends.assign(low=ends["high"])]).sort_values(["setting", "low"])
    x = alt.X("low:Q", title="propensity", scale=alt.Scale(domain=[0, 1]))
    y = alt.Y("density:Q", title="density (square-root scale)", scale=alt.Scale(type="sqrt"), axis=FEW_TICKS)
    color = alt.Color("setting:N", sort=names, scale=_range(names, [SETTING_COLORS[name] for name in names]))
    dash = alt.StrokeDash("setting:N", sort=names, scale=_range(names, DASHES[: len(names)]))
    blocks = []
    for items, rows in steps.groupby("items", sort=False):
        line = alt.Chart(rows, title=str(items)).mark_line(interpolate="step-after", strokeWidth=2)
        caption = f"Density of the propensity over the purchases of a sampled log, {items}"
        blocks.append(_panel(line.encode(x, y, color, dash), caption))
    return blocks


def brier(frame: pd.DataFrame) -> list[page.Block]:
    """The Brier score of the last week by prior weight; a dot marks the lowest, a dashed line the paper's weight."""
    x = alt.X("prior_weight:Q", title="prior weight w", axis=FEW_TICKS)
    y = alt.Y("brier:Q", title="Brier score", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5, format=".6~g"))
    color = SETTING_COLORS["original"]
    blocks = []
    for items, rows in frame.groupby("items", sort=False):
        in_paper = where(printed()["statistics"], items=items, quantity="prior_weight")
        dot = alt.MarkDef("point", filled=True, size=90, opacity=1, color=color)
        lowest = alt.Chart(rows.loc[[rows["brier"].idxmin()]], mark=dot)
        line = alt.Chart(rows, title=str(items)).mark_line(color=color, strokeWidth=2)
        rule = alt.Chart(in_paper).mark_rule(strokeDash=[3, 3], opacity=0.7).encode(alt.X("value:Q"))
        picture = line.encode(x, y) + lowest.encode(x, y) + rule
        blocks.append(_panel(picture, f"Brier score of the last week by prior weight, {items}"))
    return blocks


# ---- parts ---------------------------------------------------------------------------------------


def _with_spread(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with labels, if it has none yet, and the ends of mean ± standard deviation."""
    spread = frame["std"].fillna(0) if "std" in frame else 0.0
    labels = frame["label"] if "label" in frame else frame["method"].map(method_name)
    return frame.assign(label=labels, low=frame["mean"] - spread, high=frame["mean"] + spread)


def _range(names: Sequence[str], values: Sequence[Any]) -> alt.Scale:
    return alt.Scale(domain=list(names), range=list(values))


def _metric_title(metric: str) -> str:
    return metric if larger_is_better(metric) else f"{metric}, smaller is better"


def _panel(picture: Any, caption: str, width: int = WIDTH, height: int = HEIGHT) -> page.Block:
    return page.chart(picture.properties(width=width, height=height), caption)
