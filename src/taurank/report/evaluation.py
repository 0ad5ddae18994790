"""The result of ``evaluate`` as one page."""

from __future__ import annotations

from taurank.evaluation.results import Comparison, Result
from taurank.report import page


def evaluation_page(result: Result | Comparison) -> str:
    """The verdict first, then the answer with its differences, and all estimators if they were computed."""
    blocks = []
    if result.verdict is not None:
        kind, label = ("good", "Believe it") if result.verdict.believe else ("poor", "Do not believe it")
        cautions = result.cautions if isinstance(result, Comparison) else []
        blocks.append(page.verdict(kind, label, " ".join([str(result.verdict), *cautions])))
    blocks.append(page.table(result.to_frame(), "The estimate" if blocks else "The measurement"))
    estimators = result.estimators()
    if len(estimators):
        blocks.append(page.fold("All estimators", [page.table(estimators)]))
    return page.render("What the rankings are worth", blocks)
