"""The report of a run: one page that leads with the result, the same as text, and a verdict on every claim.

`write` reads what lies in the folder of a run (see `inputs`); the report says what is missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from taurank.data.files import atomic_path
from taurank.report import page
from taurank_paper.report import charts, claim_list, inputs, sections, tables, texts
from taurank_paper.report.inputs import Inputs
from taurank_paper.report.sections import SECTIONS
from taurank_paper.report.styles import MAIN_METRIC
from taurank_paper.report.table import paragraphs
from taurank_paper.verdicts import claims, paper_tables
from taurank_paper.verdicts.claims import ClaimResult


def write(out: str | os.PathLike[str]) -> None:
    """Write report.html, report.md, comparison.svg, comparison.md and the verdicts into the folder of the tables."""
    folder = Path(out)
    run = inputs.read(folder)
    results = [] if run.is_smoke else claims.check(run.frames, run.findings.explanations, authors=run.authors)
    page.write(folder / "report.html", texts.TITLE, blocks(run, results), broad=True)
    _write_text(folder / "report.md", markdown(run, results))
    if len(run.frames.get("comparison", ())):
        _write_text(folder / "comparison.svg", charts.comparison_file(run.frames["comparison"]))
        _write_text(folder / "comparison.md", tables.main(run.frames["comparison"], MAIN_METRIC).markdown() + "\n")
    _write_text(folder / "verdicts.csv", claims.to_frame(results).to_csv(index=False))
    rows = [asdict(result) for result in results]
    _write_text(folder / "verdicts.json", json.dumps(rows, indent=2, ensure_ascii=False) + "\n")


def blocks(run: Inputs, results: Sequence[ClaimResult]) -> list[page.Block]:
    """The page: the result first, then the claims, then every experiment."""
    chosen = sections.sections_of(run)
    links = [(section.anchor, section.title) for section, _ in chosen]
    links = [*([("claims", "Claims")] if results else []), *links, ("run", "The run")]
    parts = [*_lead(run, results), page.contents(links), *_claims(run, results)]
    for section, frames in chosen:
        parts += sections.blocks(section, frames)
    parts += [page.heading("The run", "run"), *_record(run)]
    return [*parts, page.text(f"The paper: {paper_tables.REFERENCE}.")]


def _lead(run: Inputs, results: Sequence[ClaimResult]) -> list[page.Block]:
    """The first screen: one line of counts, what to be careful about, the main chart and the main table."""
    result = claim_list.tally_blocks(results) or [page.verdict("caution", "No verdicts", texts.SYNTHETIC)]
    note = [page.verdict("caution", "Note", run.findings.note)] if run.findings.note else []
    frame = run.frames.get("comparison")
    if frame is None or frame.empty:
        return [*result, *note, *_about(run)]
    return [*result, *note, *sections.lead(frame, _about(run))]


def _about(run: Inputs) -> list[page.Block]:
    """What the page is, how the data differ from the paper's, and which experiments are missing."""
    data = [] if run.is_smoke else [page.verdict("caution", *texts.data(run.record))]
    missing = _missing(run)
    incomplete = [page.verdict("caution", "Incomplete run", missing)] if missing else []
    return [page.text(texts.OPENING), *data, *incomplete]


def _missing(run: Inputs) -> str:
    return texts.missing_experiments([section.name for section in SECTIONS if section.name not in run.frames])


def _claims(run: Inputs, results: Sequence[ClaimResult]) -> list[page.Block]:
    if not results:
        return []
    return [page.heading("Claims", "claims"), page.text(texts.criterion(run.in_pairs)), claim_list.cards(results)]


def _record(run: Inputs) -> list[page.Block]:
    record = page.fold("Versions, seed and time", [tables.record(run.record).html()])
    parts = [record if run.record else page.text(texts.UNKNOWN_RUN)]
    if "search" in run.frames:
        parts.append(page.fold("Hyperparameter search", [tables.search(run.frames["search"]).html()]))
    return parts


def markdown(run: Inputs, results: Sequence[ClaimResult]) -> str:
    """The same as text, without the charts."""
    label, data = ("No verdicts", texts.SYNTHETIC) if run.is_smoke else texts.data(run.record)
    parts = [f"# {texts.TITLE}"]
    parts += [f"**{claim_list.tally(results)}**"] if results else []
    parts += [paragraphs(run.findings.note), paragraphs(texts.OPENING), paragraphs(f"{label}. {data}")]
    parts += [paragraphs(_missing(run))]
    if results:
        parts += ["## Claims", paragraphs(texts.criterion(run.in_pairs)), claim_list.markdown(results)]
    for section, frames in sections.sections_of(run):
        parts += [f"## {section.title}", paragraphs(section.text)]
        parts += [paragraphs(section.missing_datasets(frames))]
        parts += [table.markdown() for table in section.tables(frames)]
    parts += ["## The run", tables.record(run.record).markdown() if run.record else texts.UNKNOWN_RUN]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_latex(out: str | os.PathLike[str]) -> Path:
    """Write every table of a run as LaTeX (package booktabs) into tables.tex, and return its path."""
    folder = Path(out)
    run = inputs.read(folder)
    parts = [f"% {texts.TITLE}; needs \\usepackage{{booktabs}}"]
    for section, frames in sections.sections_of(run):
        parts += [f"% {section.title}", *(table.latex() for table in section.tables(frames))]
    _write_text(folder / "tables.tex", "\n\n".join(parts) + "\n")
    return folder / "tables.tex"


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
