"""The report of a run: one page that leads with the result, then every claim, then every experiment.

`write` reads what lies in the folder of a run (see `inputs`); the report says what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from taurank.report import page
from taurank_paper import claims, printed
from taurank_paper.claims import CATEGORY, VERDICTS, ClaimResult, rank_correlation
from taurank_paper.comparison import DATASETS, DatasetKey, Frames, datasets_of
from taurank_paper.files import write_text
from taurank_paper.report import charts, inputs, tables, texts
from taurank_paper.report.charts import MAIN_METRIC
from taurank_paper.report.inputs import SUFFIXES, Inputs

COLORS = {True: "good", False: "poor", None: "caution"}
AUTHORS = "At the authors' settings"
NONE = pd.DataFrame()


def write(out: str | os.PathLike[str]) -> None:
    """Write report.html, comparison.svg, comparison.md and verdicts.csv into the folder of the tables."""
    folder = Path(out)
    run = inputs.read(folder)
    results = [] if run.is_smoke else claims.check(run.frames, run.findings.explanations, run.authors)
    page.write(folder / "report.html", texts.TITLE, blocks(run, results), broad=True)
    frame = run.frames.get("comparison", NONE)
    if len(frame):
        write_text(folder / "comparison.svg", charts.comparison_file(frame))
        write_text(folder / "comparison.md", tables.markdown(*tables.main(frame, MAIN_METRIC)))
    write_text(folder / "verdicts.csv", claims.to_frame(results).to_csv(index=False))


def blocks(run: Inputs, results: Sequence[ClaimResult]) -> list[page.Block]:
    """The page: the result first, then the claims, then every experiment."""
    frame = run.frames.get("comparison", NONE)
    sections = sections_of(run)
    links = (
        [("claims", "Claims")] * bool(results)
        + [(each.anchor, each.title) for each in sections]
        + [("run", "The run")]
    )
    parts = tally(results) or [page.verdict("caution", "No verdicts", texts.SYNTHETIC)]
    parts += [page.verdict("caution", "Note", run.findings.note)] if run.findings.note else []
    parts += lead(frame, _about(run)) if len(frame) else _about(run)
    parts.append(page.contents(links))
    if results:
        cards = page.cards(_card(result) for result in results)
        parts += [page.heading("Claims", "claims"), page.text(texts.CRITERION), cards]
    for section in sections:
        parts += section.blocks()
    record = page.fold("Versions, seed and time", [tables.record(run.record)])
    parts += [page.heading("The run", "run"), record if run.record else page.text(texts.UNKNOWN_RUN)]
    if "search" in run.frames:
        parts.append(page.fold("Hyper-parameter search", [tables.search(run.frames["search"])]))
    return [*parts, page.text(f"The paper: {printed.REFERENCE}.")]


def lead(frame: pd.DataFrame, beside: Iterable[page.Block] = ()) -> list[page.Block]:
    """The main chart and the main table of a comparison; for the paper's, the first screen of the page."""
    caption, columns, rows = tables.main(frame, MAIN_METRIC)
    first = page.grid(columns, rows, caption)
    return [
        page.panels(charts.scores(frame, MAIN_METRIC)),
        page.lead([first], [page.text(texts.MAIN_CHART), *beside]),
    ]


def _about(run: Inputs) -> list[page.Block]:
    """What the page is, how the data differ from the paper's, and which experiments are missing."""
    data = [] if run.is_smoke else [page.verdict("caution", *texts.data(run.record))]
    names = [name for name in KINDS if name not in run.frames]
    missing = f"Missing experiments: {', '.join(names)}. To run one: taurank paper {names[0]}" if names else ""
    return [
        page.text(texts.OPENING),
        *data,
        *([page.verdict("caution", "Incomplete run", missing)] if missing else []),
    ]


# ---- the claims ----------------------------------------------------------------------------------


def tally(results: Sequence[ClaimResult]) -> list[page.Block]:
    """24 claims: 6 reproduced, 11 not reproduced, 7 inconclusive; and the same at the authors' settings if known."""
    second = [result.authors for result in results if result.authors]
    answers = [(f"{len(results)} claims:", [result.verdict for result in results])] if results else []
    answers += [(f"{AUTHORS}, {len(second)} of them:", second)] if second else []
    return [
        page.tally(title, [(COLORS[key], f"{given.count(verdict)} {verdict}") for key, verdict in VERDICTS.items()])
        for title, given in answers
    ]


def _card(result: ClaimResult) -> page.Block:
    """A claim; figures, explanation and criterion open on demand."""
    parts = [page.listed(result.figures.splitlines())] if result.figures else []
    parts += [page.text(text) for text in (result.remark, result.explanation) if text]
    if result.authors:
        parts += [page.text(f"{AUTHORS}: {result.authors}."), page.listed(result.authors_figures.splitlines())]
    where = f"In the paper: section {result.where}. Its printed figures by the same criterion: {result.paper}."
    parts += [page.text(f"Criterion: {result.criterion}"), page.text(where)]
    return page.card(COLORS[result.reproduced], result.verdict, result.claim, parts, result.id)


# ---- the experiments -----------------------------------------------------------------------------

Charts = list[tuple[str, list[page.Block]]]  # a caption and the charts below it


class Kind(NamedTuple):
    """How an experiment of a kind is shown: tables below the charts are folded under a summary."""

    title: str
    text: str
    tables: Callable[[Frames], list[page.Block]]
    charts: Callable[[Frames], Charts]
    folded: str = ""
    datasets: Sequence[DatasetKey] = ()  # those that the paper shows


class Section(NamedTuple):
    """An experiment in the report: one of the paper's, or of a researcher's own."""

    anchor: str
    title: str
    text: str
    name: str
    frames: Frames
    is_own: bool = False

    def blocks(self) -> list[page.Block]:
        kind = KINDS[self.name]
        figures = page.tables(kind.tables(self.frames))
        drawn: list[page.Block] = []
        for caption, panels in kind.charts(self.frames):
            drawn += [page.text(caption), page.panels(panels)] if panels else []
        body = [*drawn, page.fold(kind.folded, [figures])] if kind.folded else [figures, *drawn]
        frame = self.frames[self.name]
        if self.name == "comparison":
            body.append(page.fold("Hyper-parameters, updates and time of each fit", [tables.fits(frame)]))
        first = lead(frame) if self.is_own and self.name == "comparison" else []
        run = datasets_of(frame) if "setting" in frame else []
        missing = [", ".join(each) for each in kind.datasets if each not in run and not self.is_own]
        note = f"Not run, though the paper shows them: {'; '.join(missing)}." if missing else ""
        return [page.heading(self.title, self.anchor), *first, page.text(self.text), page.text(note), *body]


def sections_of(run: Inputs) -> list[Section]:
    """The sections of what was run: the paper's experiments, then a researcher's own."""
    found = run.findings.sections
    sections = [
        Section(name, kind.title, f"{kind.text}\n\n{found.get(name, '')}", name, run.frames)
        for name, kind in KINDS.items()
        if name in run.frames
    ]
    for name, entry in run.own.items():
        if name in run.frames:
            own = {entry["kind"] + part: run.frames[name + part] for part in SUFFIXES if name + part in run.frames}
            sections.append(Section(f"own-{name}", entry["title"], found.get(name, ""), entry["kind"], own, True))
    return sections


def _comparison_tables(frames: Frames) -> list[page.Block]:
    targets, curves = frames.get("comparison_targets", NONE), frames.get("comparison_curves", NONE)
    more = [tables.targets(targets, texts.TARGETS)] if len(targets) else []
    more += [tables.convergence(curves)] if len(curves) else []
    return [*tables.comparison(frames["comparison"]), *more]


def _comparison_charts(frames: Frames) -> Charts:
    frame, curves = frames["comparison"], frames.get("comparison_curves", NONE)
    values = {dataset: rank_correlation(frame, "P@10", "CP@10", dataset)[0] for dataset in datasets_of(frame)}
    known = "; ".join(f"{', '.join(dataset)}: {value:+.2f}" for dataset, value in values.items() if value is not None)
    correlations = f" Rank correlation over the methods: {known}." if known else ""
    return [
        (texts.SCORES, charts.scores(frame, "CDCG")),
        (texts.CONVERGENCE, charts.convergence(curves, "CDCG") if len(curves) else []),
        (texts.OUTCOME + correlations, charts.outcome_against_effect(frame)),
    ]


def _statistics_charts(frames: Frames) -> Charts:
    density, brier = (frames.get(f"statistics_{kind}", NONE) for kind in ("density", "brier"))
    return [
        (texts.DENSITY, charts.densities(density) if len(density) else []),
        (texts.BRIER, charts.brier(brier) if len(brier) else []),
    ]


def _by(name: str, across: str, caption: str) -> Callable[[Frames], list[page.Block]]:
    def made(frames: Frames) -> list[page.Block]:
        columns = ("items", "setting", "method", "loss", "propensity", "metric")
        down = [each for each in columns if each in frames[name]]
        return [tables.by_value(frames[name], down, across, caption)]

    return made


KINDS: Mapping[str, Kind] = {
    "comparison": Kind(
        "Comparison", texts.COMPARISON, _comparison_tables, _comparison_charts,
        "All metrics with standard deviations (Tables 3 and 4), population targets, and convergence", DATASETS,
    ),
    "car": Kind(
        "CAR", texts.CAR,
        lambda frames: tables.car(frames["car"]),
        lambda frames: [("", charts.scores(frames["car"], "CAR"))],
        datasets=[("category", "personalized")],
    ),
    "capping": Kind(
        "Caps", texts.CAPPING, _by("capping", "cap", "DLCE by cap χ"),
        lambda frames: [
            (texts.CAP_CHARTS, charts.caps(frames["capping"], "CDCG")),
            (texts.CAP_CAR, charts.caps(frames["capping"], "CAR")),
        ],
        "Table", DATASETS,
    ),
    "estimators": Kind(
        "Estimators", texts.ESTIMATORS,
        lambda frames: tables.estimators(frames["estimators"]),
        lambda frames: [(texts.ERROR_CHARTS, charts.estimator_errors(frames["estimators"]))],
        "Tables 6 and 7", CATEGORY,
    ),
    "unevenness": Kind(
        "Unevenness", texts.UNEVENNESS, _by("unevenness", "beta", "By unevenness β"),
        lambda frames: [("", charts.unevenness(frames["unevenness"]))],
        "Table",
    ),
    "misspecification": Kind(
        "Misspecification", texts.MISSPECIFICATION, _by("misspecification", "xi", "By misspecification ξ"),
        lambda frames: [("", charts.misspecification(frames["misspecification"]))],
        "Table", (*CATEGORY, ("product", "original")),
    ),
    "losses": Kind(
        "Losses and factors", texts.LOSSES, _by("losses", "factors", "DLCE by loss and factors d"),
        lambda frames: [("", charts.losses(frames["losses"]))],
        "Table",
    ),
    "statistics": Kind(
        "Data", texts.STATISTICS, lambda frames: [tables.statistics(frames["statistics"])], _statistics_charts
    ),
}  # fmt: skip
