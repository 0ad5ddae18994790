"""The result of ``evaluate``, and a curve, as one page."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from taurank.evaluation.curves import Curve
from taurank.evaluation.evidence import Verdict
from taurank.evaluation.results import Comparison, Result
from taurank.report import charts, page

_DECILES = "The effect of each tenth of the pairs by score (points, with intervals) and the mean score (ticks)"


def evaluation_page(result: Result | Comparison) -> str:
    """The verdict first, then the answer with its differences, and all estimators if they were computed."""
    blocks = _verdict(result.verdict, result.cautions if isinstance(result, Comparison) else [])
    blocks.append(page.table(result.to_frame(), "The estimate" if blocks else "The measurement"))
    if isinstance(result, Comparison):
        drawn = charts.estimates_chart(result)
        blocks.append(page.chart(drawn, "The first metric with its intervals; what is not to be believed is pale"))
    estimators = result.estimators()
    if len(estimators):
        blocks.append(page.fold("All estimators", [page.table(estimators)]))
    return page.render("What the rankings are worth", blocks)


def curve_page(curve: Curve) -> str:
    """The verdict, the curve, its areas, and the deciles of the scores."""
    blocks = _verdict(curve.verdict)
    blocks.append(page.chart(charts.curve_chart(curve), f"{curve.unit}, with {curve.level:.0%} intervals"))
    if curve.areas:
        areas = pd.DataFrame([{"area": name, **one._asdict()} for name, one in curve.areas.items()])
        blocks += [page.table(areas, "Areas"), page.chart(charts.deciles_chart(curve), _DECILES)]
        blocks.append(page.table(curve.deciles(), "Deciles"))
    blocks.append(page.fold("All points", [page.table(curve.to_frame())]))
    return page.render("What showing more is worth", blocks)


def _verdict(verdict: Verdict | None, cautions: Iterable[str] = ()) -> list[page.Block]:
    if verdict is None:
        return []
    kind, label = ("good", "Believe it") if verdict.believe else ("poor", "Do not believe it")
    return [page.verdict(kind, label, " ".join([str(verdict), *cautions]))]
