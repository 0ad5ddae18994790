"""The report of a run: one page that leads with the result, then every claim, then every experiment.

`write` reads what lies in the folder of a run (see ``folder``); the report says what is missing. Its prose is in
``report.toml``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import taurank as tr
from taurank.report import page
from taurank.toml import read_toml
from taurank_paper import charts, claims, folder, tables
from taurank_paper.charts import MAIN_METRIC
from taurank_paper.claims import VERDICTS, Assessment, ClaimResult
from taurank_paper.folder import Frames, Run, write_text
from taurank_paper.plan import LIMITS
from taurank_paper.scores import METRICS

COLORS = dict(zip(VERDICTS, ("good", "poor", "caution"), strict=True))
TEXTS: Mapping[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
KINDS = [kind for kind, text in TEXTS.items() if isinstance(text, dict)]  # in the order of the page
PAPER_WEEKS, PACKAGED_WEEKS = 93, 53
NONE = pd.DataFrame()
Charts = Iterable[tuple[str, list[page.Block]]]  # a caption and the charts below it


def write(out: str | os.PathLike[str]) -> None:
    """Write report.html, comparison.svg, comparison.md and verdicts.csv into the folder of the tables."""
    path = Path(out)
    run = folder.read(path)
    known = {"sections": [*KINDS, *run.record.get("own", {})], "explanations": [claim.id for claim in claims.CLAIMS]}
    for part, keys in known.items():
        for key in getattr(run.findings, part):
            if key not in keys:
                flaw = f"'{path / 'findings.toml'}' has the unknown key '{part}.{key}'"
                raise tr.InputError(f"{flaw}; known: {', '.join(keys)}.")
    is_smoke = run.record.get("preset") == "smoke"
    results = [] if is_smoke else claims.check(run.frames, run.findings.explanations, run.authors)
    page.write(path / "report.html", TEXTS["title"], blocks(run, results), broad=True)
    frame = run.frames.get("comparison", NONE)
    if len(frame):
        write_text(path / "comparison.svg", charts.comparison_file(frame))
        write_text(path / "comparison.md", tables.markdown(*tables.main(frame, MAIN_METRIC)))
    write_text(path / "verdicts.csv", claims.to_frame(results).to_csv(index=False))


def blocks(run: Run, results: Sequence[ClaimResult]) -> list[page.Block]:
    """The page: the result first, then the claims, then every experiment."""
    frame = run.frames.get("comparison", NONE)
    links, sections = [("claims", "Claims")] if results else [], []
    for kind in KINDS:
        if kind in run.frames:
            links.append((kind, TEXTS[kind]["title"]))
            text = f"{TEXTS[kind]['text']}\n\n{run.findings.sections.get(kind, '')}"
            sections += [page.heading(TEXTS[kind]["title"], kind), page.text(text)]
            sections += _section(kind, run.frames)
    for name, entry in run.record.get("own", {}).items():
        if name in run.frames:
            kind, title, anchor = entry["kind"], entry["title"], f"own-{name}"
            ends = ("", "_brier", "_density", "_curves", "_targets")
            own = {kind + end: run.frames[name + end] for end in ends if name + end in run.frames}
            links.append((anchor, title))
            sections += [page.heading(title, anchor), *(_lead(own[kind]) if kind == "comparison" else [])]
            sections += [page.text(run.findings.sections.get(name, "")), *_section(kind, own)]
    tallies = _tally("claims:", [result.here for result in results])
    tallies += _tally("claims at the authors' settings:", [result.authors for result in results if result.authors])
    parts = tallies or [page.verdict("caution", "No verdicts", TEXTS["synthetic"])]
    parts += [page.verdict("caution", "Note", run.findings.note)] if run.findings.note else []
    parts += _lead(frame, _about(run)) if len(frame) else _about(run)
    parts.append(page.links((f"#{anchor}", label) for anchor, label in [*links, ("run", "The run")]))
    if results:
        cards = page.group("cards", map(_card, results))
        parts += [page.heading("Claims", "claims"), page.text(TEXTS["criterion"]), cards]
    record = pd.json_normalize(dict(run.record), sep=" ").T.dropna().reset_index()
    known = page.fold("Versions, seed and time", [page.table(record.set_axis(["", "value"], axis=1), "This run")])
    parts += [*sections, page.heading("The run", "run"), known if run.record else page.text(TEXTS["unknown_run"])]
    if "search" in run.frames:
        parts.append(page.fold("Hyper-parameter search", [tables.plain(run.frames["search"])]))
    return [*parts, page.text(TEXTS["reference"])]


def _lead(frame: pd.DataFrame, beside: Iterable[page.Block] = ()) -> list[page.Block]:
    """The main chart and the main table of a comparison; for the paper's, the first screen of the page."""
    caption, columns, rows = tables.main(frame, MAIN_METRIC)
    table = page.grid(columns, rows, caption)
    return [
        page.group("panels", charts.scores(frame, MAIN_METRIC)),
        page.lead([table], [page.text(TEXTS["main_chart"]), *beside]),
    ]


def _about(run: Run) -> list[page.Block]:
    """What the page is, how the data differ from the paper's, and which experiments are missing."""
    about = [page.text(TEXTS["opening"])]
    if run.record.get("preset") != "smoke":
        weeks = run.record.get("weeks")  # a number, or one for each kind of items
        numbers = weeks.values() if isinstance(weeks, Mapping) else [weeks]
        ours = min((number for number in numbers if isinstance(number, int)), default=PACKAGED_WEEKS)
        is_same = ours == PAPER_WEEKS
        label = "The data cover as many weeks as the paper's" if is_same else "The data differ"
        text = TEXTS["same_weeks" if is_same else "packaged_weeks"].format(ours=ours, paper=PAPER_WEEKS)
        about.append(page.verdict("caution", label, text))
    names = [name for name in KINDS if name not in run.frames]
    if names:
        missing = f"Missing experiments: {', '.join(names)}. To run one: taurank paper {names[0]}"
        about.append(page.verdict("caution", "Incomplete run", missing))
    return about


def _tally(words: str, results: Sequence[Assessment]) -> list[page.Block]:
    """24 claims: 6 reproduced, 11 not reproduced, 7 inconclusive."""
    given = [result.verdict for result in results]
    counts = [(COLORS[verdict], f"{given.count(verdict)} {verdict}") for verdict in VERDICTS]
    return [page.tally(f"{len(given)} {words}", counts)] if given else []


def _card(result: ClaimResult) -> page.Block:
    """A claim; figures, explanation and criterion open on demand."""
    claim, here, explanation, paper, authors = result
    parts = [page.listed(here.figures.splitlines())] if here.figures else []
    parts += [page.text(text) for text in (here.remark, explanation) if text]
    if authors:
        parts.append(page.text(f"At the authors' settings: {authors.verdict}."))
        parts.append(page.listed(authors.figures.splitlines()))
    where = f"In the paper: section {claim.where}. Its printed figures by the same criterion: {paper}."
    parts += [page.text(f"Criterion: {claim.criterion}"), page.text(where)]
    return page.card(COLORS[here.verdict], here.verdict, claim.claim, parts, claim.id)


# ---- the experiments -----------------------------------------------------------------------------


def _section(kind: str, frames: Frames) -> list[page.Block]:
    """The charts and tables of an experiment; where there are charts, its tables are folded below them."""
    frame, texts = frames[kind], TEXTS[kind]
    drawn: list[page.Block] = []
    for caption, panels in CHARTS[kind](frames):
        drawn += [page.text(caption), page.group("panels", panels)] if panels else []
    figures = page.group("tables", TABLES[kind](frames))
    body = [*drawn, page.fold(texts["folded"], [figures])] if "folded" in texts else [figures, *drawn]
    if kind == "comparison":
        fits = frame[~frame["method"].isin(LIMITS) & frame["metric"].isin(METRICS)]
        columns = ["items", "setting", "method", "metric", "settings", "updates", "seconds"]
        body.append(page.fold("Hyper-parameters, updates and time of each fit", [tables.plain(fits[columns])]))
    return body


def _comparison_tables(frames: Frames) -> list[page.Block]:
    targets, curves = frames.get("comparison_targets", NONE), frames.get("comparison_curves", NONE)
    made = tables.compared(frames["comparison"], "comparison", (*METRICS, "P@10"), ("Table 3", "Table 4"))
    made += [tables.targets(targets, TEXTS["comparison"]["targets"])] if len(targets) else []
    return made + ([tables.convergence(curves)] if len(curves) else [])


def _comparison_charts(frames: Frames) -> Charts:
    curves, texts = frames.get("comparison_curves", NONE), TEXTS["comparison"]
    yield texts["scores"], charts.scores(frames["comparison"], "CDCG")
    yield texts["convergence"], charts.convergence(curves, "CDCG") if len(curves) else []


def _statistics_charts(frames: Frames) -> Charts:
    for part, draw in (("density", charts.densities), ("brier", charts.brier)):
        frame = frames.get(f"statistics_{part}", NONE)
        yield TEXTS["statistics"][part], draw(frame) if len(frame) else []


TABLES: Mapping[str, Callable[[Frames], list[page.Block]]] = {
    "comparison": _comparison_tables,
    "car": lambda frames: tables.compared(frames["car"], "car", ("CAR",), ("Table 5", "Table 5")),
    "capping": lambda frames: [tables.by_value(frames["capping"], "cap", "DLCE by cap χ")],
    "estimators": lambda frames: tables.estimators(frames["estimators"]),
    "unevenness": lambda frames: [tables.by_value(frames["unevenness"], "beta", "By unevenness β")],
    "misspecification": lambda frames: [tables.by_value(frames["misspecification"], "xi", "By misspecification ξ")],
    "losses": lambda frames: [tables.by_value(frames["losses"], "factors", "DLCE by loss and factors d")],
    "statistics": lambda frames: [tables.statistics(frames["statistics"])],
}
CHARTS: Mapping[str, Callable[[Frames], Charts]] = {
    "comparison": _comparison_charts,
    "car": lambda frames: [("", charts.scores(frames["car"], "CAR"))],
    "capping": lambda frames: [
        (TEXTS["capping"][metric.lower()], charts.caps(frames["capping"], metric)) for metric in ("CDCG", "CAR")
    ],
    "estimators": lambda frames: [(TEXTS["estimators"]["errors"], charts.estimator_errors(frames["estimators"]))],
    "unevenness": lambda frames: [("", charts.unevenness(frames["unevenness"]))],
    "misspecification": lambda frames: [("", charts.misspecification(frames["misspecification"]))],
    "losses": lambda frames: [("", charts.losses(frames["losses"]))],
    "statistics": _statistics_charts,
}
