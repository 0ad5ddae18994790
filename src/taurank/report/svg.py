"""Altair charts as SVG: drawn when the page is written, in the colors of the page, with no script."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Any

import vl_convert

if TYPE_CHECKING:
    import altair as alt

CHART_WIDTH = 400  # narrow, so text stays legible on phones
PADDING = {"left": 16, "right": 5, "top": 5, "bottom": 5}  # a browser's font can be wider than the one measured here
SERIES_COLORS = ("#2e86c8", "#d9772b", "#3a9d6e", "#a65fb8", "#b58a1b", "#c8506e")  # legible on white and on black


def draw(chart: alt.TopLevelMixin, ink: str = "currentColor", background: str = "transparent") -> str:
    """An Altair chart as SVG; a file of its own needs its own colors: ``ink`` and ``background``."""
    spec: dict[str, Any] = chart.to_dict()
    given = spec.get("config", {})
    merged = {name: {**part, **given.get(name, {})} for name, part in _config().items()}
    spec["config"] = {**given, **merged, "background": background}
    spec.setdefault("padding", PADDING)
    return str(vl_convert.vegalite_to_svg(spec)).replace("currentColor", ink)


def with_unique_ids(document: str) -> str:
    """The document with the ids inside its SVG numbered: charts on one page must not share an id.

    The ids that the drawing library writes count on from call to call; numbering makes the page reproducible.
    """
    numbers = count()

    def renumber(match: re.Match[str]) -> str:
        svg = match[0]
        for name in dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg)):
            fresh = f"chart-{next(numbers)}"
            svg = svg.replace(f'id="{name}"', f'id="{fresh}"').replace(f"url(#{name})", f"url(#{fresh})")
        return svg

    return re.sub(r"<svg\b.*?</svg>", renumber, document, flags=re.DOTALL)


def _config() -> dict[str, dict[str, Any]]:
    """Colors and font sizes of the page; those set on a chart take precedence."""
    colors = {"labelColor": "currentColor", "titleColor": "currentColor"}
    fonts = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    lines = {"domainColor": "currentColor", "tickColor": "currentColor"}
    grid = {"gridColor": "currentColor", "gridOpacity": 0.15, "domainOpacity": 0.6, "tickOpacity": 0.6}
    return {
        "axis": {**colors, **fonts, **lines, **grid},
        "legend": {**colors, **fonts, "orient": "top", "title": None},
        "header": {**colors, **fonts},
        "title": {"color": "currentColor", "fontSize": 13},
        "text": {"color": "currentColor"},
        "rule": {"color": "currentColor"},
        "view": {"stroke": None, "continuousWidth": CHART_WIDTH, "continuousHeight": 220},
        "range": {"category": list(SERIES_COLORS)},
    }
