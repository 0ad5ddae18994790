"""Charts as SVG text, drawn by hand: lines with bands over time, and bars. Colors come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 84, 12, 14, 34  # on the left, room for "-10,000" in the large letters of a narrow screen


@dataclass(frozen=True)
class Line:
    """A line with its band; ``kind`` is the class that colors it."""

    name: str
    kind: str
    middle: Floats
    low: Floats
    high: Floats


def band_chart(labels: Sequence[str], lines: Sequence[Line], description: str) -> str:
    """Lines with bands over periods; parts that are not finite are left out."""
    bottom, top = _range(lines)
    x = [LEFT + (WIDTH - LEFT - RIGHT) * (n + 0.5) / max(1, len(labels)) for n in range(len(labels))]

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (top - min(max(value, bottom), top)) / (top - bottom)

    parts = [_grid(bottom, top, y), _ticks(labels, x)]
    for line in lines:
        known = [n for n in range(len(labels)) if math.isfinite(line.low[n]) and math.isfinite(line.high[n])]
        edge = [(x[n], y(line.high[n])) for n in known] + [(x[n], y(line.low[n])) for n in reversed(known)]
        drawn = [n for n in range(len(labels)) if math.isfinite(line.middle[n])]
        parts.append(f'<polygon class="band {line.kind}" points="{_points(edge)}"/>')
        way = [(x[n], y(line.middle[n])) for n in drawn]
        parts.append(f'<polyline class="line {line.kind}" points="{_points(way)}"/>')
        parts += [f'<circle class="dot {line.kind}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in way[-1:]]
    return _svg("".join(parts), description)


def bar_chart(edges: Sequence[str], groups: Sequence[tuple[str, str, Sequence[float]]], description: str) -> str:
    """Bars side by side: (name, kind, heights) per group."""
    top = _nice(max([max(heights, default=0.0) for _, _, heights in groups], default=0.0) or 1.0)
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(edges))
    width = 0.8 * slot / max(1, len(groups))

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (top - value) / top

    parts = [_grid(0.0, top, y), _ticks(edges, [LEFT + slot * (n + 0.5) for n in range(len(edges))])]
    for place, (_, kind, heights) in enumerate(groups):
        for n, height in enumerate(heights):
            left = LEFT + slot * (n + 0.1) + place * width
            box = f'x="{left:.1f}" y="{y(height):.1f}" width="{width:.1f}" height="{HEIGHT - BOTTOM - y(height):.1f}"'
            parts.append(f'<rect class="bar {kind}" {box}/>')
    return _svg("".join(parts), description)


def _range(lines: Sequence[Line]) -> tuple[float, float]:
    """The range of the middles, and of the bands as far as they are not much wider; 0 is always seen."""
    middles = np.concatenate([line.middle for line in lines] or [np.zeros(1)])
    middles = np.append(middles[np.isfinite(middles)], 0.0)
    last = [value for line in lines for value in (line.low[-1:], line.high[-1:])]
    ends = np.concatenate([middles, *last]) if last else middles
    ends = ends[np.isfinite(ends)]
    low, high = float(ends.min()), float(ends.max())
    margin = 0.15 * ((high - low) or 1.0)
    return (low - margin if low < 0 else low), high + margin


def _grid(bottom: float, top: float, y: Callable[[float], float]) -> str:
    step = _nice((top - bottom) / 4)
    parts = []
    for number in range(math.ceil(bottom / step), math.floor(top / step) + 1):
        value = number * step
        at = y(value)
        kind = "axis" if number == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    return "".join(parts)


def _ticks(labels: Sequence[str], x: Sequence[float]) -> str:
    every = max(1, math.ceil(len(labels) / 7))
    chosen = range(0, len(labels), every)
    return "".join(
        f'<text x="{x[n]:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(labels[n])}</text>' for n in chosen
    )


def _tick(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    if abs(value) >= 1e5:
        return f"{value / 1e3:.4g}k"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _nice(value: float) -> float:
    """1, 2 or 5 times a power of ten, at least ``value``."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= value * (1 - 1e-9))


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in pairs)


def _svg(content: str, description: str) -> str:
    label = escape(description, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{content}</svg>'
