"""The charts of the report: the paper's Figures 2-6 and its tables as pictures.

A method has one colour and one mark everywhere; the colours can be told apart by people who do not see red
or green as others do, and read on white and on black. Charts are drawn small: panels stand side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from taurank.html import page
from taurank.paper.report.tables import places
from taurank.paper.verdicts import paper_tables
from taurank.paper.verdicts.comparison import LIMITS, SMALLER_IS_BETTER, methods_of, name, of_dlce

WIDTH, HEIGHT = 330, 210
CHART_METRICS = ("CP@10", "CDCG")
COLOURS = {
    "random": "#8c8c8c", "popular": "#9c755f", "bpr": "#8a7fd1", "ulbpr": "#1b7fc0", "ulrmf": "#3fa3db",
    "cause": "#009e73", "dlto": "#c28a00", "blce": "#c2689a", "dlce": "#d55e00", "countingbayes": "#6b8e23",
    "truth": "currentColor", "ten_weeks": "currentColor",
}  # fmt: skip
MARKS = {
    "random": "circle", "popular": "cross", "bpr": "diamond", "ulbpr": "square", "ulrmf": "triangle-up",
    "cause": "triangle-down", "dlto": "diamond", "blce": "triangle-right", "dlce": "circle",
    "countingbayes": "cross", "truth": "stroke", "ten_weeks": "stroke",
}  # fmt: skip
OWN_COLOURS, OWN_MARK = ("#5f6b7a", "#a0522d", "#4d9aa3"), "square"  # methods the paper does not know
SETTING_COLOURS = {"original": "#7a6fd0", "personalized": "#b58a1b"}
LOSSES = {"logistic": "upper bound (logistic)", "sigmoid": "approximation (sigmoid)", "hinge": "hinge"}
DASHES = ([1, 0], [6, 3], [2, 3], [8, 3, 2, 3])


def densities(frame: pd.DataFrame) -> list[page.Block]:
    """Fig. 2."""
    return [_density(rows, str(items)) for items, rows in frame.groupby("items", sort=False)]


def _density(frame: pd.DataFrame, items: str) -> page.Block:
    names = [setting for setting in SETTING_COLOURS if setting in set(frame["setting"])]
    colour = alt.Color("setting:N", sort=names, scale=_scale({key: SETTING_COLOURS[key] for key in names}))
    picture = (
        alt.Chart(_steps(frame), title=items)
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            alt.X("low:Q", title="propensity", scale=alt.Scale(domain=[0, 1])),
            alt.Y("density:Q", title="density (square-root scale)", scale=alt.Scale(type="sqrt"), axis=_few()),
            colour,
            alt.StrokeDash("setting:N", sort=names, scale=alt.Scale(domain=names, range=list(DASHES[: len(names)]))),
        )
    )
    return _panel(picture, f"Density of the propensity over the purchases of a sampled log, {items}")


def _steps(frame: pd.DataFrame) -> pd.DataFrame:
    """A last point at the right end, so that the last step has its width."""
    ends = frame.sort_values("low").groupby("setting").tail(1)
    return pd.concat([frame, ends.assign(low=ends["high"])]).sort_values(["setting", "low"])


def brier(frame: pd.DataFrame) -> list[page.Block]:
    """The Brier score of the last week by prior weight; the lowest is marked, the paper's weight is dashed."""
    printed = paper_tables.statistics()
    weights = printed[printed["quantity"] == "prior_weight"].set_index("items")["value"]
    return [_brier(rows, str(items), weights.get(items)) for items, rows in frame.groupby("items", sort=False)]


def _brier(frame: pd.DataFrame, items: str, theirs: float | None) -> page.Block:
    x = alt.X("prior_weight:Q", title="prior weight w")
    y = alt.Y("brier:Q", title="Brier score", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5, format=".6~g"))
    lowest = frame.loc[[frame["brier"].idxmin()]]
    line = alt.Chart(frame, title=items).mark_line(color=SETTING_COLOURS["original"], strokeWidth=2).encode(x, y)
    mark = (
        alt.Chart(lowest).mark_point(filled=True, size=90, opacity=1, color=SETTING_COLOURS["original"]).encode(x, y)
    )
    picture = line + mark
    if theirs is not None:
        rule = alt.Chart(pd.DataFrame({"prior_weight": [theirs]})).mark_rule(strokeDash=[3, 3], opacity=0.7)
        picture = picture + rule.encode(alt.X("prior_weight:Q"))
    return _panel(picture, f"Brier score of the last week by prior weight, {items}")


def scores(frame: pd.DataFrame, metric: str) -> list[page.Block]:
    """Tables 3, 4 and 5 as pictures: a dot for each method with its spread, the paper's as a hollow diamond."""
    printed = paper_tables.car() if metric == "CAR" else paper_tables.comparison()
    return [
        _dots(_at(frame, place, metric), _at(printed, place, metric), metric, ", ".join(place))
        for place in places(frame)
        if len(_at(frame, place, metric))
    ]


def comparison_file(frame: pd.DataFrame, metric: str = "CP@10") -> str:
    """Tables 3 and 4 as one picture, an SVG with colours of its own, for a README."""
    panels = [
        _dots_picture(
            _at(frame, place, metric), _at(paper_tables.comparison(), place, metric), metric, ", ".join(place)
        )
        for place in places(frame)
    ]
    sized = [panel.properties(width=260, height=12 * 18) for panel in panels]
    rows = [alt.hconcat(*sized[first : first + 2]) for first in range(0, len(sized), 2)]
    return page.picture(alt.vconcat(*rows), "#333333", "white")


def _dots(ours: pd.DataFrame, theirs: pd.DataFrame, metric: str, place: str) -> page.Block:
    picture = _dots_picture(ours, theirs, metric, place)
    return _panel(picture, f"{metric}, {place}", len(methods_of(ours)) * 20)


def _dots_picture(ours: pd.DataFrame, theirs: pd.DataFrame, metric: str, place: str) -> alt.LayerChart:
    shown = methods_of(ours)
    labels = [_short(key) for key in shown]
    theirs = theirs[theirs["method"].isin(shown)]
    y = alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(grid=True, labelLimit=120))
    title = f"{metric}, smaller is better" if metric in SMALLER_IS_BETTER else metric
    x = alt.X("mean:Q", title=title, axis=_few())
    colour = alt.Color("method:N", scale=_scale({key: _colour(key) for key in shown}), legend=None)
    base = alt.Chart(_spreads(ours))
    bars = base.mark_rule(strokeWidth=2).encode(y, alt.X("low:Q", title=title), alt.X2("high:Q"), colour)
    dots = base.mark_point(filled=True, size=75, opacity=1).encode(y, x, colour)
    hollow = alt.Chart(_spreads(theirs)).mark_point(shape="diamond", filled=False, size=80, opacity=0.9)
    return (bars + dots + hollow.encode(y, x, colour)).properties(title=place)


def outcome_against_effect(frame: pd.DataFrame) -> list[page.Block]:
    """P@10 against CP@10: a method that sells what is bought anyway stands far right and low."""
    blocks = []
    for place in places(frame):
        wide = frame[(frame["items"] == place[0]) & (frame["setting"] == place[1])]
        wide = wide[wide["metric"].isin(["P@10", "CP@10"])].pivot_table(
            index="method", columns="metric", values="mean"
        )
        if {"P@10", "CP@10"} <= set(wide.columns):
            wide = wide.dropna().rename(columns={"P@10": "outcome", "CP@10": "effect"}).reset_index()
            blocks.append(_scatter(wide[~wide["method"].isin(LIMITS)], ", ".join(place)))
    return blocks


def _scatter(frame: pd.DataFrame, place: str) -> page.Block:
    encode = {
        "x": alt.X("outcome:Q", title="P@10", axis=_few()),
        "y": alt.Y("effect:Q", title="CP@10", axis=_few()),
        **_by_method(frame),
    }
    picture = alt.Chart(_named(frame), title=place).mark_point(filled=True, size=90, opacity=1).encode(**encode)
    return _panel(picture, f"P@10 against CP@10, {place}")


def caps(frame: pd.DataFrame, metric: str) -> list[page.Block]:
    """Figs. 3 and 4: DLCE by cap, with the spread over weeks; the best cap is marked."""
    frame = of_dlce(frame)
    return [
        _cap(_at(frame, place, metric), metric, ", ".join(place))
        for place in places(frame)
        if len(_at(frame, place, metric))
    ]


def _cap(frame: pd.DataFrame, metric: str, place: str) -> page.Block:
    title = f"{metric}, smaller is better" if metric in SMALLER_IS_BETTER else metric
    x = alt.X("cap:Q", title="cap χ", scale=alt.Scale(type="log", nice=False), axis=_cap_axis(frame))
    top = frame.loc[[frame["mean"].idxmin() if metric in SMALLER_IS_BETTER else frame["mean"].idxmax()]]
    y = alt.Y("mean:Q", title=title, scale=alt.Scale(zero=False), axis=_few())
    base = alt.Chart(_spreads(frame))
    band = base.mark_area(opacity=0.2, color=COLOURS["dlce"]).encode(x, alt.Y("low:Q", title=title), alt.Y2("high:Q"))
    line = base.mark_line(point=_points("dlce"), color=COLOURS["dlce"], strokeWidth=2).encode(x, y)
    mark = alt.Chart(top).mark_point(size=260, strokeWidth=2.5, color="currentColor", opacity=1).encode(x, y)
    return _panel((band + line + mark).properties(title=place), f"{metric} of DLCE by cap, {place}")


def _cap_axis(frame: pd.DataFrame) -> alt.Axis:
    return alt.Axis(values=sorted(set(frame["cap"])), format="~g", labelOverlap="greedy")


def estimator_errors(frame: pd.DataFrame) -> list[page.Block]:
    """Tables 6 and 7 as pictures: the error relative to the truth, by cap."""
    metrics = [metric for metric in (*CHART_METRICS, "CAR") if metric in set(frame["metric"])]
    frame = frame.assign(mean=100 * frame["mae"] / frame["truth"].abs(), place=frame["cap"].map("{:g}".format))
    frame = frame[frame["mean"] > 0]
    return [
        _errors(_at(frame, place, metric), metric, ", ".join(place))
        for metric in metrics
        for place in places(frame)
        if len(_at(frame, place, metric))
    ]


def _errors(frame: pd.DataFrame, metric: str, place: str) -> page.Block:
    order = [f"{cap:g}" for cap in sorted(set(frame["cap"]))]
    encode = {
        "x": alt.X("place:O", sort=order, title="cap χ (0: none)", axis=alt.Axis(labelAngle=0)),
        "y": alt.Y(
            "mean:Q",
            title=f"MAE, % of {metric}",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(tickCount=3, format=",.4~g"),
        ),
        **_by_method(frame),
    }
    picture = (
        alt.Chart(_named(frame), title=f"{metric}: {place}")
        .mark_line(point=_points(), strokeWidth=2)
        .encode(**encode)
    )
    return _panel(picture, f"Error of the estimates of {metric} relative to the truth, {place}")


def unevenness(frame: pd.DataFrame) -> list[page.Block]:
    """Fig. 5."""
    ticks = alt.Axis(values=sorted(set(frame["beta"])), format="~g", labelOverlap="greedy")
    x = alt.X("beta:Q", title="unevenness β", scale=alt.Scale(zero=False, nice=False), axis=ticks)
    return [
        _lines(rows, x, metric, f"{items}, personalized")
        for metric in CHART_METRICS
        for items, rows in frame[frame["metric"] == metric].groupby("items", sort=False)
    ]


def misspecification(frame: pd.DataFrame) -> list[page.Block]:
    """Fig. 6: DLCE by ξ; what sees no propensity, or an estimated one, is a level line."""
    return [
        _misspecified(_at(frame, place, metric), metric, ", ".join(place))
        for metric in CHART_METRICS
        for place in places(frame)
        if len(_at(frame, place, metric))
    ]


def _misspecified(frame: pd.DataFrame, metric: str, place: str) -> page.Block:
    grid = sorted(set(frame["xi"].dropna())) or [0.0, 1.0]
    level = frame[frame["xi"].isna()]
    ends = pd.concat([level.assign(xi=grid[0]), level.assign(xi=grid[-1])])
    rows = pd.concat([frame[frame["xi"].notna()], ends])
    rows = rows.assign(series=[_series(*pair) for pair in zip(rows["method"], rows["propensity"], strict=True)])
    names = list(dict.fromkeys(rows["series"]))
    colours = dict(zip(rows["series"], rows["method"].map(_colour), strict=True))
    dashes = [DASHES[1] if "estimated" in key else DASHES[0] for key in names]
    encode = {
        "x": alt.X("xi:Q", title="misspecification ξ"),
        "y": alt.Y("mean:Q", title=metric, scale=alt.Scale(zero=False), axis=_few()),
        "color": alt.Color("series:N", sort=names, scale=_scale(colours), legend=_legend(2, "stroke")),
        "strokeDash": alt.StrokeDash(
            "series:N", sort=names, scale=alt.Scale(domain=names, range=dashes), legend=_legend(2, "stroke")
        ),
    }
    base = alt.Chart(rows, title=place).mark_line(strokeWidth=2).encode(**encode)
    dots = alt.Chart(rows[rows["propensity"] == "misspecified"]).mark_point(filled=True, size=40, opacity=1)
    picture = base + dots.encode(encode["x"], encode["y"], encode["color"])
    return _panel(picture, f"{metric} by misspecification of the propensity, {place}")


def _series(method: str, propensity: str) -> str:
    return name(method) if propensity == "none" else f"{name(method)}, {propensity} P"


def losses(frame: pd.DataFrame) -> list[page.Block]:
    """Section 5.1.2: one line per loss, all DLCE, by number of factors."""
    return [
        _loss(_at(frame, place, metric), metric, ", ".join(place))
        for metric in CHART_METRICS
        for place in places(frame)
        if len(_at(frame, place, metric))
    ]


def _loss(frame: pd.DataFrame, metric: str, place: str) -> page.Block:
    frame = of_dlce(frame).assign(series=of_dlce(frame)["loss"].map(lambda loss: LOSSES.get(loss, loss)))
    names = [words for words in LOSSES.values() if words in set(frame["series"])]
    marks = alt.Scale(domain=names, range=["circle", "square", "triangle-up"][: len(names)])
    encode = {
        "x": alt.X("factors:Q", title="factors d", scale=alt.Scale(type="log", base=2, nice=False),
                   axis=alt.Axis(values=sorted(set(frame["factors"])), format="d")),
        "y": alt.Y("mean:Q", title=metric, scale=alt.Scale(zero=False), axis=_few()),
    }  # fmt: skip
    dash = alt.StrokeDash("series:N", sort=names, scale=alt.Scale(domain=names, range=list(DASHES[: len(names)])),
                          legend=_legend(1))  # fmt: skip
    base = alt.Chart(_spreads(frame), title=place)
    line = base.mark_line(strokeWidth=2, color=COLOURS["dlce"]).encode(**encode, strokeDash=dash)
    dots = base.mark_point(filled=True, size=50, opacity=1, color=COLOURS["dlce"])
    shape = alt.Shape("series:N", sort=names, scale=marks, legend=_legend(1))
    return _panel(
        line + dots.encode(**encode, shape=shape), f"{metric} of DLCE by number of factors and loss, {place}"
    )


def _lines(frame: pd.DataFrame, x: alt.X, metric: str, place: str) -> page.Block:
    """One line per method with its spread over weeks."""
    y = alt.Y("mean:Q", title=metric, scale=alt.Scale(zero=False), axis=_few())
    base = alt.Chart(_named(_spreads(frame)), title=f"{metric}: {place}")
    keys = _by_method(frame)
    bars = base.mark_rule(opacity=0.6).encode(x, alt.Y("low:Q", title=metric), alt.Y2("high:Q"), color=keys["color"])
    line = base.mark_line(point=_points(), strokeWidth=2).encode(x, y, **keys)
    return _panel(bars + line, f"{metric}, {place}")


def _by_method(frame: pd.DataFrame) -> dict[str, Any]:
    """Colour and mark of the methods that occur, in the paper's order."""
    shown = methods_of(frame)
    names = [_short(key) for key in shown]
    marks = alt.Scale(domain=names, range=[MARKS.get(key, OWN_MARK) for key in shown])
    colours = _scale({_short(key): _colour(key) for key in shown})
    return {
        "color": alt.Color("label:N", sort=names, scale=colours, legend=_legend(4)),
        "shape": alt.Shape("label:N", sort=names, scale=marks, legend=_legend(4)),
    }


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(label=frame["method"].map(_short))


def _spreads(frame: pd.DataFrame) -> pd.DataFrame:
    spread = frame["std"].fillna(0)
    out = frame.assign(low=frame["mean"] - spread, high=frame["mean"] + spread)
    return _named(out) if "method" in out else out


def _colour(method: str) -> str:
    """A method's colour; one that is not the paper's gets its own by its name."""
    return COLOURS.get(method, OWN_COLOURS[sum(method.encode()) % len(OWN_COLOURS)])


def _short(method: str) -> str:
    return "Ten weeks" if method == "ten_weeks" else name(method)


def _scale(colours: dict[str, str]) -> alt.Scale:
    return alt.Scale(domain=list(colours), range=list(colours.values()))


def _legend(columns: int, symbol: str | None = None) -> alt.Legend:
    shape = {"symbolType": symbol, "symbolSize": 300, "symbolStrokeWidth": 2} if symbol else {}
    return alt.Legend(title=None, orient="top", columns=columns, symbolOpacity=1, labelLimit=200, **shape)


def _points(method: str | None = None) -> alt.OverlayMarkDef:
    colour = {"color": COLOURS[method]} if method else {}
    return alt.OverlayMarkDef(filled=True, size=45, opacity=1, **colour)


def _few() -> alt.Axis:
    return alt.Axis(tickCount=5, format=".3~g")


def _at(frame: pd.DataFrame, place: Sequence[str], metric: str) -> pd.DataFrame:
    return frame[(frame["items"] == place[0]) & (frame["setting"] == place[1]) & (frame["metric"] == metric)]


def _panel(picture: Any, caption: str, height: int = HEIGHT) -> page.Block:
    return page.chart(picture.properties(width=WIDTH, height=height), caption)
