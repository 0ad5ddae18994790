"""The sections of the report, one for each experiment: which tables, which charts, which text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pandas as pd

from taurank.report import page
from taurank_paper.report import charts, curve_charts, tables, texts
from taurank_paper.report.inputs import SUFFIXES, Inputs
from taurank_paper.report.styles import MAIN_METRIC
from taurank_paper.report.table import Table
from taurank_paper.verdicts.claims import CATEGORY
from taurank_paper.verdicts.comparison import DATASETS, Frames, datasets_of
from taurank_paper.verdicts.criteria import rank_correlation

Charts = list[tuple[str, list[page.Block]]]  # a caption and the charts below it
PAPER_DATASETS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "comparison": DATASETS,
    "car": (("category", "personalized"),),
    "capping": DATASETS,
    "estimators": CATEGORY,
    "misspecification": (*CATEGORY, ("product", "original")),
}


class Section(NamedTuple):
    """An experiment in the report."""

    name: str
    title: str
    text: str
    tables: Callable[[Frames], list[Table]]
    charts: Callable[[Frames], Charts]
    folded: str = ""  # the summary of the tables if they are folded, below the charts
    own: str = ""  # the name of a researcher's own experiment of this kind

    @property
    def anchor(self) -> str:
        return f"own-{self.own}" if self.own else self.name

    def missing_datasets(self, frames: Frames) -> str:
        """The datasets that the paper shows and this run does not; an experiment of one's own misses none."""
        run = datasets_of(frames[self.name]) if "setting" in frames[self.name] else []
        expected = () if self.own else PAPER_DATASETS.get(self.name, ())
        return texts.missing_datasets([", ".join(each) for each in expected if each not in run])


def sections_of(inputs: Inputs) -> list[tuple[Section, Frames]]:
    """The sections of what was run, with the tables they show: the paper's, then a researcher's own."""
    sections: list[tuple[Section, Frames]] = [
        (section._replace(text=_with(section.text, inputs.findings.sections.get(section.name, ""))), inputs.frames)
        for section in SECTIONS
        if section.name in inputs.frames
    ]
    by_name = {section.name: section for section in SECTIONS}
    for name, kind in inputs.own.items():
        if name in inputs.frames:
            own = {kind + part: inputs.frames[name + part] for part in SUFFIXES if name + part in inputs.frames}
            title, text = str(inputs.record["own"][name]["title"]), inputs.findings.sections.get(name, "")
            sections.append((by_name[kind]._replace(title=title, text=text, own=name), own))
    return sections


def _with(text: str, more: str) -> str:
    return f"{text}\n\n{more}" if more else text


def blocks(section: Section, frames: Frames) -> list[page.Block]:
    """A section as HTML."""
    head = page.heading(section.title, section.anchor)
    figures = page.tables(table.html() for table in section.tables(frames))
    drawn: list[page.Block] = []
    for caption, panels in section.charts(frames):
        drawn += [page.text(caption), page.panels(panels)] if panels else []
    body = [*drawn, page.fold(section.folded, [figures])] if section.folded else [figures, *drawn]
    if section.name == "comparison":
        body += [page.fold("Hyperparameters, updates and time of each fit", [table.html()])
                 for table in tables.hyperparameters(frames["comparison"])]  # fmt: skip
    first = lead(frames["comparison"]) if section.own and section.name == "comparison" else []
    return [head, *first, page.text(section.text), page.text(section.missing_datasets(frames)), *body]


def lead(frame: pd.DataFrame, beside: Iterable[page.Block] = ()) -> list[page.Block]:
    """The main chart and the main table of a comparison; for the paper's, the first screen of the page."""
    table = tables.main(frame, MAIN_METRIC).html()
    return [
        page.panels(charts.scores(frame, MAIN_METRIC)),
        page.lead([table], [page.text(texts.MAIN_CHART), *beside]),
    ]


def _comparison_tables(frames: Frames) -> list[Table]:
    targets = frames.get("comparison_targets", pd.DataFrame())
    curves = frames.get("comparison_curves", pd.DataFrame())
    more = [tables.targets(targets, texts.TARGETS)] if len(targets) else []
    more += [tables.convergence(curves)] if len(curves) else []
    return [*tables.comparison(frames["comparison"]), *more]


def _comparison_charts(frames: Frames) -> Charts:
    frame = frames["comparison"]
    values = {dataset: rank_correlation(frame, "P@10", "CP@10", dataset)[0] for dataset in datasets_of(frame)}
    known = {", ".join(dataset): value for dataset, value in values.items() if value is not None}
    curves = frames.get("comparison_curves", pd.DataFrame())
    return [
        (texts.SCORES, charts.scores(frame, "CDCG")),
        (texts.CONVERGENCE, curve_charts.convergence(curves, "CDCG") if len(curves) else []),
        (texts.correlations(known), charts.outcome_against_effect(frame)),
    ]


def _statistics_charts(frames: Frames) -> Charts:
    density, brier = (frames.get(f"statistics_{kind}", pd.DataFrame()) for kind in ("density", "brier"))
    return [
        (texts.DENSITY, charts.densities(density) if len(density) else []),
        (texts.BRIER, charts.brier(brier) if len(brier) else []),
    ]


def _capping_tables(frames: Frames) -> list[Table]:
    down = [name for name in ("items", "setting", "method", "metric") if name in frames["capping"]]
    return [tables.by_value(frames["capping"], down, "cap", "DLCE by cap χ")]


SECTIONS: tuple[Section, ...] = (
    Section(
        "comparison", "Comparison", texts.COMPARISON,
        _comparison_tables,
        _comparison_charts,
        folded="All metrics with standard deviations (Tables 3 and 4), population targets, and convergence",
    ),
    Section(
        "car", "CAR", texts.CAR,
        lambda frames: tables.car(frames["car"]),
        lambda frames: [("", charts.scores(frames["car"], "CAR"))],
    ),
    Section(
        "capping", "Caps", texts.CAPPING,
        _capping_tables,
        lambda frames: [
            (texts.CAP_CHARTS, curve_charts.caps(frames["capping"], "CDCG")),
            (texts.CAP_CAR, curve_charts.caps(frames["capping"], "CAR")),
        ],
        folded="Table",
    ),
    Section(
        "estimators", "Estimators", texts.ESTIMATORS,
        lambda frames: tables.estimators(frames["estimators"]),
        lambda frames: [(texts.ERROR_CHARTS, curve_charts.estimator_errors(frames["estimators"]))],
        folded="Tables 6 and 7",
    ),
    Section(
        "unevenness", "Unevenness", texts.UNEVENNESS,
        lambda frames: [
            tables.by_value(frames["unevenness"], ["items", "method", "metric"], "beta", "By unevenness β")
        ],
        lambda frames: [("", curve_charts.unevenness(frames["unevenness"]))],
        folded="Table",
    ),
    Section(
        "misspecification", "Misspecification", texts.MISSPECIFICATION,
        lambda frames: tables.misspecification(frames["misspecification"]),
        lambda frames: [("", curve_charts.misspecification(frames["misspecification"]))],
        folded="Table",
    ),
    Section(
        "losses", "Losses and factors", texts.LOSSES,
        lambda frames: [
            tables.by_value(
                frames["losses"], ["items", "setting", "loss", "metric"], "factors", "DLCE by loss and factors d"
            )
        ],
        lambda frames: [("", curve_charts.losses(frames["losses"]))],
        folded="Table",
    ),
    Section(
        "statistics", "Data", texts.STATISTICS,
        lambda frames: tables.statistics(frames["statistics"]),
        _statistics_charts,
    ),
)  # fmt: skip
