"""The claims in the report: one line of counts, a folded card for each claim, and a list for the text."""

from __future__ import annotations

from collections.abc import Sequence

from taurank.report import page
from taurank_paper.report.table import escape, wrap
from taurank_paper.verdicts.claims import VERDICTS, ClaimResult

KINDS = {True: "good", False: "poor", None: "caution"}


AUTHORS = "At the authors' settings"


def tally(results: Sequence[ClaimResult]) -> str:
    """ "24 claims: 6 reproduced, 11 not reproduced, 7 inconclusive."""
    return " ".join(f"{title} {', '.join(label for _, label in counts)}." for title, counts in _tallies(results))


def tally_blocks(results: Sequence[ClaimResult]) -> list[page.Block]:
    return [page.tally(title, counts) for title, counts in _tallies(results)]


def _tallies(results: Sequence[ClaimResult]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The counts of this run, and those at the authors' settings if they are known."""
    tallies = [(f"{len(results)} claims:", _counts(results))] if results else []
    second = [result.authors for result in results if result.authors]
    if second:
        counts = [(KINDS[key], f"{second.count(verdict)} {verdict}") for key, verdict in VERDICTS.items()]
        tallies.append((f"{AUTHORS}, {len(second)} of them:", counts))
    return tallies


def _counts(results: Sequence[ClaimResult]) -> list[tuple[str, str]]:
    return [
        (KINDS[key], f"{sum(result.reproduced is key for result in results)} {verdict}")
        for key, verdict in VERDICTS.items()
    ]


def cards(results: Sequence[ClaimResult]) -> page.Block:
    """A card for each claim; figures, explanation and criterion open on demand."""
    return page.cards(_card(result) for result in results)


def _card(result: ClaimResult) -> page.Block:
    blocks = [page.listed(result.figures.splitlines())] if result.figures else []
    blocks += [page.text(text) for text in (result.remark, result.explanation) if text]
    if result.authors:
        blocks += [page.text(f"{AUTHORS}: {result.authors}."), page.listed(result.authors_figures.splitlines())]
    blocks += [page.text(text) for text in _criterion(result)]
    return page.card(KINDS[result.reproduced], result.verdict, result.claim, blocks, result.id)


def _criterion(result: ClaimResult) -> tuple[str, str]:
    where = f"In the paper: section {result.where}. Its printed figures by the same criterion: {result.paper}."
    return f"Criterion: {result.criterion}", where


def markdown(results: Sequence[ClaimResult]) -> str:
    """All claims as a Markdown list; indented figures, which are details, are left out."""
    lines = []
    for result in results:
        source = f"(section {result.where}; the paper's figures: {result.paper})"
        lines.append(wrap(f"- **{result.verdict}**: {escape(result.claim)} {source}", "  "))
        figures = [line for line in result.figures.splitlines() if not line.startswith(" ")]
        second = [line for line in result.authors_figures.splitlines() if not line.startswith(" ")]
        answer = f"{AUTHORS}: {result.authors}. {'; '.join(second)}" if result.authors else ""
        texts = [text for text in (*figures, result.remark, result.explanation, answer) if text]
        lines += [wrap(f"  - {escape(text)}", "    ") for text in texts]
    return "\n".join(lines)
