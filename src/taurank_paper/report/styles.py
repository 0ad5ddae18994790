"""How charts look: one color and one mark for each method, small panels, few ticks.

The colors are distinguishable with common color-vision deficiencies, and legible on white and on black.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

import altair as alt
import pandas as pd

from taurank.report import page
from taurank_paper.verdicts.comparison import larger_is_better, method_name, methods_of

WIDTH, HEIGHT = 260, 180  # small: four panels in a row on a wide screen, one on a phone
MAIN_METRIC = "CP@10"
CHART_METRICS = (MAIN_METRIC, "CDCG")
SETTING_COLORS = {"original": "#7a6fd0", "personalized": "#b58a1b"}
DASHES = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3])


class Style(NamedTuple):
    color: str
    mark: str


STYLES = {
    "random": Style("#8c8c8c", "circle"),
    "popular": Style("#9c755f", "cross"),
    "bpr": Style("#8a7fd1", "diamond"),
    "ulbpr": Style("#1b7fc0", "square"),
    "ulrmf": Style("#3fa3db", "triangle-up"),
    "cause": Style("#009e73", "triangle-down"),
    "dlto": Style("#c28a00", "diamond"),
    "blce": Style("#c2689a", "triangle-right"),
    "dlce": Style("#d55e00", "circle"),
    "countingbayes": Style("#6b8e23", "cross"),
    "truth": Style("currentColor", "stroke"),
    "ten_weeks": Style("currentColor", "stroke"),
}
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


def by_method(frame: pd.DataFrame) -> dict[str, Any]:
    """Color and mark of the methods of a frame, in the paper's order."""
    chosen = styles(methods_of(frame))
    names = [method_name(method) for method in chosen]
    marks = alt.Scale(domain=names, range=[style.mark for style in chosen.values()])
    colors = scale({method_name(method): style.color for method, style in chosen.items()})
    return {
        "color": alt.Color("label:N", sort=names, scale=colors, legend=legend(4)),
        "shape": alt.Shape("label:N", sort=names, scale=marks, legend=legend(4)),
    }


def labeled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(label=frame["method"].map(method_name)) if "method" in frame else frame


def with_spread(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the ends of mean ± standard deviation."""
    spread = frame["std"].fillna(0)
    return labeled(frame.assign(low=frame["mean"] - spread, high=frame["mean"] + spread))


def scale(colors: dict[str, str]) -> alt.Scale:
    return alt.Scale(domain=list(colors), range=list(colors.values()))


def legend(columns: int, symbol: str | None = None) -> alt.Legend:
    shape = {"symbolType": symbol, "symbolSize": 300, "symbolStrokeWidth": 2} if symbol else {}
    return alt.Legend(title=None, orient="top", columns=columns, symbolOpacity=1, labelLimit=200, **shape)


def few_ticks() -> alt.Axis:
    return alt.Axis(tickCount=4, format=".3~g")


def metric_title(metric: str) -> str:
    return metric if larger_is_better(metric) else f"{metric}, smaller is better"


def panel(picture: Any, caption: str, width: int = WIDTH, height: int = HEIGHT) -> page.Block:
    return page.chart(picture.properties(width=width, height=height), caption)
