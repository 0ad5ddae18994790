"""The report of a reproduction: one page to look at, a short text, and a verdict on every claim of the paper.

`write` reads what lies in a folder (`<experiment>.csv`, `run.json`); what is missing is said to be missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from taurank.data.files import atomic_path
from taurank.errors import InputError, plural
from taurank.html import page
from taurank.paper.report import charts, tables, texts
from taurank.paper.report.tables import Table
from taurank.paper.verdicts import claims, paper_tables
from taurank.paper.verdicts.claims import Verdict
from taurank.paper.verdicts.comparison import Frames
from taurank.paper.verdicts.criteria import ALL, CATEGORY, rank_correlation

TITLE = "Unbiased learning for the causal effect of recommendation: the experiments, run again"
_SCORES = ("items", "setting", "method", "metric", "mean", "std")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "statistics": ("items", "quantity", "value"),
    "statistics_brier": ("items", "prior_weight", "brier"),
    "statistics_density": ("items", "setting", "low", "high", "density"),
    "comparison": _SCORES,
    "comparison_targets": _SCORES,
    "car": _SCORES,
    "capping": ("items", "setting", "metric", "cap", "mean", "std"),
    "estimators": ("items", "setting", "method", "metric", "cap", "mae", "truth"),
    "unevenness": ("items", "beta", "method", "metric", "mean", "std"),
    "misspecification": (*_SCORES, "propensity", "xi"),
    "losses": ("items", "setting", "loss", "factors", "metric", "mean", "std"),
    "search": ("items", "setting", "method", "objective", "trials", "cut", "updates", "core_minutes", "validation"),
}
_TEXT = ("items", "setting", "method", "metric", "objective", "quantity", "propensity", "loss", "settings")
SHOWN = {
    "comparison": ALL, "car": (("category", "personalized"),), "capping": ALL, "estimators": CATEGORY,
    "misspecification": (*CATEGORY, ("product", "original")),
}  # fmt: skip
_PARTS = ("", "_brier", "_density", "_targets")  # what one experiment may write
KINDS = {True: "good", False: "poor", None: "caution"}


class Section(NamedTuple):
    """An experiment in the report: its title, the words above it, its tables, and its charts by caption."""

    name: str
    title: str
    words: str
    tables: Callable[[Frames], list[Table]]
    charts: Callable[[Frames], list[tuple[str, list[page.Block]]]]
    folded: bool = False  # the paper shows a figure: charts first, our figures as a table on demand
    own: str = ""  # the name of a researcher's own experiment, which is shown as this one

    @property
    def anchor(self) -> str:
        return f"own-{self.own}" if self.own else self.name

    def absent(self, frames: Frames) -> str:
        """The settings that the paper shows and this run does not; nothing is missing in one's own."""
        frame = frames[self.name]
        run = set(zip(frame["items"], frame["setting"], strict=True)) if "setting" in frame else set()
        shown = () if self.own else SHOWN.get(self.name, ())
        return texts.absent([", ".join(place) for place in shown if place not in run])


def write(out: str | os.PathLike[str]) -> None:
    """Write report.html, report.md, comparison.svg, comparison.md and the verdicts into the folder of the tables."""
    folder = Path(out)
    frames, run = read(folder)
    found = claims.judge(frames, explain=texts.packaged(run))
    page.write(folder / "report.html", TITLE, blocks(frames, run, found), broad=True)
    _write_text(folder / "report.md", markdown(frames, run, found))
    if len(frames.get("comparison", ())):
        _write_text(folder / "comparison.svg", charts.comparison_file(frames["comparison"]))
        _write_text(folder / "comparison.md", tables.short(frames["comparison"], "CP@10").markdown() + "\n")
    _write_text(folder / "verdicts.csv", claims.to_frame(found).to_csv(index=False))
    rows = [asdict(verdict) for verdict in found]
    _write_text(folder / "verdicts.json", json.dumps(rows, indent=2, ensure_ascii=False) + "\n")


def read(folder: Path) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """The tables that are there, by name, and what is known about the run."""
    if not folder.is_dir():
        raise InputError(f"the folder '{folder}' does not exist; run 'taurank reproduce --out {folder}' first.")
    run = _read_run(folder / "run.json")
    kinds = {name: name for name in COLUMNS} | {
        own + part: kind + part for own, kind in _own(run).items() for part in _PARTS if kind + part in COLUMNS
    }
    paths = {name: folder / f"{name}.csv" for name in kinds}
    return {name: _read(path, COLUMNS[kinds[name]]) for name, path in paths.items() if path.is_file()}, run


def _own(run: Mapping[str, Any]) -> dict[str, str]:
    """A researcher's own experiments: the kind of each by its name."""
    return {name: str(facts["kind"]) for name, facts in run.get("own", {}).items()}


def sections(frames: Frames, run: Mapping[str, Any]) -> list[tuple[Section, Frames]]:
    """All sections with the tables they show: the paper's, then a researcher's own, made as those of their kind."""
    found: list[tuple[Section, Frames]] = [(section, frames) for section in SECTIONS]
    by_kind = {section.name: section for section in SECTIONS}
    for name, kind in _own(run).items():
        if name in frames:
            theirs = {kind + part: frames[name + part] for part in _PARTS if name + part in frames}
            section = by_kind[kind]._replace(title=str(run["own"][name]["title"]), words="", own=name)
            found.append((section, theirs))
    return found


def blocks(frames: Frames, run: Mapping[str, Any], found: Sequence[Verdict]) -> list[page.Block]:
    """The page, from the verdicts to the tables and charts of every experiment."""
    shown = sections(frames, run)
    links = [("verdicts", "Verdicts"), *((section.anchor, section.title) for section, _ in shown), ("run", "The run")]
    parts = [page.text(texts.OPENING), page.verdict("caution", *texts.data(run))]
    parts += [_missing(frames), page.contents(links), *_verdicts(found)]
    for section, theirs in shown:
        parts += _section(section, theirs)
    parts += [page.heading("The run", "run"), *_run(run), *_search(frames)]
    return [*parts, page.text(f"The paper: {paper_tables.REFERENCE}.")]


def markdown(frames: Frames, run: Mapping[str, Any], found: Sequence[Verdict]) -> str:
    """Tables and verdicts as a short text."""
    parts = [
        f"# {TITLE}",
        texts.OPENING,
        "**{}.** {}".format(*texts.data(run)),
        _missing_words(frames),
        "## Verdicts",
    ]
    parts += [tally(found), texts.CRITERION_TEXT, tables.verdict_lines(found)]
    for section, theirs in sections(frames, run):
        if section.name in theirs:
            parts += [f"## {section.title}", section.words, section.absent(theirs)]
            parts += [table.markdown() for table in section.tables(theirs)]
    parts += ["## The run", tables.run(run).markdown() if run else texts.NO_RUN]
    return "\n\n".join(part for part in parts if part) + "\n"


def tally(found: Sequence[Verdict]) -> str:
    """How many claims hold, do not hold, and stay open."""
    counts = {key: sum(verdict.holds is key for verdict in found) for key in KINDS}
    said = [f"{counts[True]} hold", f"{counts[False]} do not hold here", f"{counts[None]} cannot be told"]
    return f"Of {len(found)} claims of the paper's section 5: {', '.join(said)}."


def _verdicts(found: Sequence[Verdict]) -> list[page.Block]:
    glance = page.overview((KINDS[v.holds], v.verdict, v.claim, v.id) for v in found)
    head = [page.heading("Verdicts", "verdicts"), page.text(tally(found)), glance, page.text(texts.CRITERION)]
    return [*head, *(_statement(verdict) for verdict in found)]


def _statement(verdict: Verdict) -> page.Block:
    """The lines that begin with a space are details of the line above and open on demand."""
    words = [verdict.claim, verdict.remark, verdict.explanation and f"Why: {verdict.explanation}"]
    lines = verdict.figures.splitlines()
    more = [page.text(texts.judged(verdict.criterion, verdict.where, verdict.paper))]
    if any(line.startswith(" ") for line in lines):
        more.append(page.listed(lines))
    body = "\n\n".join(part for part in words if part)
    shown = [line for line in lines if not line.startswith(" ")]
    fold = page.fold("How it is judged", more)
    return page.statement(KINDS[verdict.holds], f"{verdict.verdict}:", body, shown, fold, verdict.id)


def _section(section: Section, frames: Frames) -> list[page.Block]:
    head = page.heading(section.title, section.anchor)
    if section.name not in frames:
        return [head, page.text(texts.not_run(section.name))]
    absent = section.absent(frames)
    figures = [table.html() for table in section.tables(frames)]
    if section.folded:
        figures = [page.fold("The figures as a table", figures)]
    pictures: list[page.Block] = []
    for caption, drawn in section.charts(frames):
        pictures += [page.text(caption), *page.panels(drawn)] if drawn else []
    used = tables.settings(frames["comparison"]) if section.name == "comparison" else []
    last = [page.fold("Hyper-parameters, updates and time of each fit", [t.html() for t in used])] if used else []
    body = [*pictures, *figures] if section.folded else [*figures, *pictures]
    return [head, page.text(section.words), page.text(absent), *body, *last]


def _missing(frames: Frames) -> page.Block:
    words = _missing_words(frames)
    return page.verdict("caution", "Not all was run", words) if words else ""


def _missing_words(frames: Frames) -> str:
    names = [section.name for section in SECTIONS if section.name not in frames]
    return f"Missing experiments: {', '.join(names)}." if names else ""


def _run(run: Mapping[str, Any]) -> list[page.Block]:
    return [tables.run(run).html()] if run else [page.text(texts.NO_RUN)]


def _search(frames: Frames) -> list[page.Block]:
    """What the search for hyper-parameters found and cost, where there was one."""
    if "search" not in frames:
        return []
    return [page.fold("The search for hyper-parameters", [tables.search(frames["search"]).html()])]


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    types = dict.fromkeys(_TEXT, object)
    try:
        frame = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])
    except (ValueError, OSError) as error:
        raise InputError(f"'{path}' cannot be read as CSV: {error}.") from error
    lacking = [name for name in columns if name not in frame.columns]
    if lacking:
        raise InputError(f"'{path}' lacks the column {lacking[0]!r}; make it again with 'taurank reproduce'.")
    numbers = [name for name in columns if name not in _TEXT]
    for name in numbers:
        frame[name] = _numbers(frame[name], path)
    return frame


def _numbers(column: pd.Series[Any], path: Path) -> pd.Series[float]:
    found = pd.to_numeric(column, errors="coerce").astype("float64")
    bad = column[found.isna() & column.notna()]
    if len(bad):
        where = f"'{path}' has {plural(len(bad), 'value')} in the column {column.name!r}"
        raise InputError(f"{where} that should be numbers, such as {bad.iloc[0]!r}; make it again.")
    return found


def _read_run(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"'{path}' cannot be read as JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InputError(f"'{path}' holds no JSON object; make it again with 'taurank reproduce'.")
    return found


def _write_text(path: Path, words: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(words, encoding="utf-8")


def _statistics_charts(frames: Frames) -> list[tuple[str, list[page.Block]]]:
    density, brier = (frames.get(f"statistics_{kind}", pd.DataFrame()) for kind in ("density", "brier"))
    return [
        (texts.DENSITY, charts.densities(density) if len(density) else []),
        (texts.BRIER, charts.brier(brier) if len(brier) else []),
    ]


def _comparison_tables(frames: Frames) -> list[Table]:
    shown = tables.comparison(frames["comparison"])
    targets = frames.get("comparison_targets", pd.DataFrame())
    if len(targets):
        shown.append(tables.targets(targets, texts.TARGETS))
    return shown


def _comparison_charts(frames: Frames) -> list[tuple[str, list[page.Block]]]:
    frame = frames["comparison"]
    said = [
        f"{', '.join(place)}: {value:+.2f}"
        for place in ALL
        if (value := rank_correlation(frame, "P@10", "CP@10", place)[0]) is not None
    ]
    both = f"{texts.OUTCOME} {'; '.join(said)}." if said else texts.OUTCOME
    dots = [(texts.DOTS if not n else "", metric) for n, metric in enumerate(charts.CHART_METRICS)]
    scores = [(words, charts.scores(frame, metric)) for words, metric in dots]
    return [*scores, (both, charts.outcome_against_effect(frame))]


def _capping_tables(frames: Frames) -> list[Table]:
    frame = frames["capping"]
    down = [name for name in ("items", "setting", "method", "metric") if name in frame]
    return [tables.plain_means(frame, down, "cap", "DLCE by cap χ")]


SECTIONS: tuple[Section, ...] = (
    Section(
        "statistics", "Data", texts.STATISTICS,
        lambda frames: tables.statistics(frames["statistics"]), _statistics_charts,
    ),
    Section(
        "comparison", "Comparison", texts.COMPARISON,
        _comparison_tables, _comparison_charts,
    ),
    Section(
        "car", "CAR", texts.CAR,
        lambda frames: tables.car(frames["car"]),
        lambda frames: [("", charts.scores(frames["car"], "CAR"))],
    ),
    Section(
        "capping", "Caps", texts.CAPPING, _capping_tables,
        lambda frames: [
            (texts.CAP_CHARTS, charts.caps(frames["capping"], "CDCG")),
            (texts.CAP_CAR, charts.caps(frames["capping"], "CAR")),
        ],
        folded=True,
    ),
    Section(
        "estimators", "Estimators", texts.ESTIMATORS,
        lambda frames: tables.estimators(frames["estimators"]),
        lambda frames: [(texts.ERROR_CHARTS, charts.estimator_errors(frames["estimators"]))],
    ),
    Section(
        "unevenness", "Unevenness", texts.UNEVENNESS,
        lambda frames: [
            tables.plain_means(frames["unevenness"], ["items", "method", "metric"], "beta", "By unevenness β")
        ],
        lambda frames: [("", charts.unevenness(frames["unevenness"]))],
        folded=True,
    ),
    Section(
        "misspecification", "Misspecification", texts.MISSPECIFICATION,
        lambda frames: tables.misspecification(frames["misspecification"]),
        lambda frames: [("", charts.misspecification(frames["misspecification"]))],
        folded=True,
    ),
    Section(
        "losses", "Losses and factors", texts.LOSSES,
        lambda frames: [
            tables.plain_means(
                frames["losses"], ["items", "setting", "loss", "metric"], "factors", "DLCE by loss and factors d"
            )
        ],
        lambda frames: [("", charts.losses(frames["losses"]))],
        folded=True,
    ),
)  # fmt: skip
