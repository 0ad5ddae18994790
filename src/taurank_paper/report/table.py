"""A table before it is HTML, Markdown or LaTeX, and the Markdown of both tables and text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taurank.report import page
from taurank.report.page import Cell

WIDTH = 80  # columns of the text report; tables may be wider
NOTHING = Cell("–", kind="quiet")


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns; ``groups`` (label, width) span columns, ``ruled`` rows get a line above."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()
    ruled: frozenset[int] = frozenset()

    def html(self) -> page.Block:
        return page.grid(self.columns, self.rows, self.caption, self.groups, self.ruled)

    def markdown(self) -> str:
        groups = [label for label, width in self.groups for _ in range(width)] or [""] * len(self.columns)
        head = [escape(f"{group} {column}".strip()) for group, column in zip(groups, self.columns, strict=True)]
        align = ["---"] + ["---:"] * (len(head) - 1)
        rows = [head, align, *([_cell(cell) for cell in row] for row in self.rows)]
        return "\n".join([f"**{escape(self.caption)}**", "", *(f"| {' | '.join(row)} |" for row in rows)])

    def latex(self) -> str:
        """A ``table`` with the rules of the package booktabs."""
        head = [] if not self.groups else [_latex_row(_spanning(label, width) for label, width in self.groups)]
        head += [_latex_row(map(latex_escape, self.columns)), "\\midrule"]
        rows = []
        for number, row in enumerate(self.rows):
            rows += [*(["\\midrule"] if number in self.ruled else []), _latex_row(map(_latex_cell, row))]
        lines = ["\\begin{table}", f"\\caption{{{latex_escape(self.caption)}}}"]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", "\\toprule", *head, *rows]
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"])


def _latex_row(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _spanning(label: str, width: int) -> str:
    return f"\\multicolumn{{{width}}}{{c}}{{{latex_escape(label)}}}"


def _latex_cell(cell: Cell) -> str:
    text = latex_escape(cell.text)
    if "best" in cell.kind.split():
        text = f"\\textbf{{{text}}}"
    return f"{text} {latex_escape(cell.note)}".strip()


_LATEX = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "–": "--", "χ": "$\\chi$", "β": "$\\beta$",
    "ξ": "$\\xi$", "γ": "$\\gamma$", "μ": "$\\mu$", "ᵀ": "$^T$", "ᶜ": "$^C$", "\n": " ",
}  # fmt: skip


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    if "best" in cell.kind.split():
        text = f"**{text}**"
    return f"{text} {escape(cell.note)}".strip()


def paragraphs(text: str) -> str:
    """Plain text as Markdown: escaped, and wrapped to the width of the report."""
    return "\n\n".join(wrap(escape(part)) for part in text.split("\n\n") if part.strip())


def wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )  # fmt: skip


def escape(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_"), ("\n", " ")):
        text = text.replace(sign, safe)
    return text
