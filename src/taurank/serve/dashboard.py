"""The dashboard: one page, rendered on the server, without scripts."""

from __future__ import annotations

import math
import time
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any

import jinja2
from markupsafe import Markup

from taurank.serve.charts import Line, band_chart, bar_chart
from taurank.serve.figures import EDGES, Figures
from taurank.serve.surfaces import Surface


def render(figures: Figures | None, surfaces: list[Surface], now: float) -> str:
    """The page of one surface; without any surface it says how to create one."""
    charts = {} if figures is None else {name: Markup(svg) for name, svg in _charts(figures).items()}
    stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    return _template().render(f=figures, surfaces=surfaces, charts=charts, now=stamp)


def _charts(f: Figures) -> dict[str, str]:
    charts = {"lift": "", "challenger": "", "arms": "", "overlap": ""}
    if f.labels:
        lines = [
            Line("items not shown as control", "one", f.lift.estimate, f.lift.low, f.lift.high),
            Line("against the hold-out", "two", f.holdout.estimate, f.holdout.low, f.holdout.high),
        ]
        charts["lift"] = band_chart(f.labels, lines, "Caused purchases per visit over time, with intervals")
        kinds = {"incumbent": "one", "challenger": "three"}
        arms = [Line(arm, kinds[arm], each.estimate, each.low, each.high) for arm, each in f.arm_lifts.items()]
        charts["arms"] = band_chart(f.labels, arms, "Caused purchases per visit of each arm over time")
    if f.comparison is not None and f.comparison.periods:
        lift = f.comparison.lift
        line = Line("challenger − incumbent", "three", lift.estimate, lift.low, lift.high)
        charts["challenger"] = band_chart(f.comparison_labels, [line], "Challenger minus incumbent over time")
    if any(purchases for _, purchases, _, _ in f.overlap):
        edges = [f"{low:g}–{high:g}" for low, high in pairwise(EDGES)]
        colored = zip(f.overlap, ("one", "two"), strict=True)
        groups = [(name, kind, counts) for (name, _, _, counts), kind in colored]
        charts["overlap"] = bar_chart(edges, groups, "Purchases by the probability of having been shown")
    return charts


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters.update(number=number, signed=signed, date=_date)
    text = resources.files("taurank.serve").joinpath("dashboard.html").read_text(encoding="utf-8")
    return environment.from_string(text)


def number(value: Any, digits: int = 3) -> str:
    """Three significant digits; "–" where there is nothing to say yet."""
    if value is None or not math.isfinite(value):
        return "–"
    if value != 0 and abs(value) < 10 ** (digits - 1):
        return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return f"{value:,.0f}"


def signed(value: Any) -> str:
    text = number(value)
    return text if text == "–" or value < 0 else f"+{text}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
