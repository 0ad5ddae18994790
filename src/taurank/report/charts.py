"""Charts of evaluation results, for notebooks and for pages."""

from __future__ import annotations

from taurank.report import require

require()

import altair as alt  # noqa: E402
import pandas as pd  # noqa: E402

from taurank.evaluation.curves import Curve  # noqa: E402
from taurank.evaluation.results import Comparison, Result  # noqa: E402

WIDTH = 420
_ZERO = pd.DataFrame({"zero": [0.0]})


def curve_chart(curve: Curve) -> alt.LayerChart:
    """The effect by share or k with its interval, and the straight line of a random order."""
    frame = curve.to_frame()
    start = pd.DataFrame({name: [0.0] for name in (curve.by, "effect", "low", "high")})
    frame = pd.concat([start, frame], ignore_index=True)
    title = "share of all pairs shown" if curve.by == "share" else "items shown, k"
    x = alt.X(f"{curve.by}:Q", title=title)
    base = alt.Chart(frame, width=WIDTH, height=260)
    band = base.mark_area(opacity=0.25).encode(x=x, y=alt.Y("low:Q", title=curve.unit), y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(x=x, y="effect:Q")
    ends = alt.Chart(frame.iloc[[0, -1]]).mark_line(strokeDash=[4, 3], opacity=0.6).encode(x=x, y="effect:Q")
    return band + line + ends


def deciles_chart(curve: Curve) -> alt.LayerChart:
    """The mean effect of each tenth of the pairs with its interval, and the mean score beside it."""
    base = alt.Chart(curve.deciles(), width=WIDTH, height=220).encode(x=alt.X("decile:O", title="tenth by score"))
    effect = alt.Y("effect:Q", title="effect per pair")
    rule = base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title="effect per pair"), y2="high:Q")
    return (
        rule
        + base.mark_point(filled=True, size=70).encode(y=effect)
        + base.mark_tick(thickness=2).encode(y="score:Q")
    )


def estimates_chart(
    result: Result | Comparison, metric: str | None = None, scale: float = 1.0, title: str | None = None
) -> alt.LayerChart:
    """The means of all rankers, or of all metrics of one, with their intervals; refused ones are pale."""
    frame = result.to_frame()
    if "segment" in frame:
        frame = frame[frame["segment"] == "all"]
    several = isinstance(result, Comparison)
    if several:
        frame = frame[frame["metric"] == (metric or frame["metric"].iloc[0])]
    name = "ranker" if several else "metric"
    frame = frame.assign(**{end: scale * frame[end] for end in ("low", "mean", "high")})
    frame = frame.assign(opacity=[1.0 if one else 0.35 for one in frame.get("believe", [True] * len(frame))])
    base = alt.Chart(frame, width=WIDTH, height=max(90, 34 * len(frame))).encode(
        y=alt.Y(f"{name}:N", sort=None, title=None), opacity=alt.Opacity("opacity:Q", legend=None, scale=None)
    )
    title = title or (frame["metric"].iloc[0] if several else "mean")
    ends = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    zero = alt.Chart(_ZERO).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(x="zero:Q")
    return zero + ends + base.mark_point(filled=True, size=90).encode(x="mean:Q")
