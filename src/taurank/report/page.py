"""One self-contained page: title, text, tables and charts in a single HTML file that needs no network.

A page is a list of blocks. A block is `Markup` made by one of the functions below, from the templates beside this
file; any other string is text and is escaped. There is no script: charts are SVG, and what folds is ``<details>``.
The page follows the reader's choice of light or dark and fits wide and narrow screens.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from taurank.report import require

require()

import jinja2  # noqa: E402
from markupsafe import Markup  # noqa: E402

from taurank.data.files import write_text  # noqa: E402
from taurank.report import svg  # noqa: E402

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

Block = Markup
KINDS = ("good", "caution", "poor")


class Cell(NamedTuple):
    """A table cell: its text, a small note behind it, and its kinds ("best", "quiet")."""

    text: str
    note: str = ""
    kind: str = ""


def write(path: str | os.PathLike[str], title: str, blocks: Iterable[str], broad: bool = False) -> None:
    """Write the blocks as one page; the file appears whole or not at all. A ``broad`` page uses a wide screen."""
    write_text(path, render(title, blocks, broad))


def render(title: str, blocks: Iterable[str], broad: bool = False) -> str:
    """The whole page as text."""
    body = Markup(svg.with_unique_ids(_joined(blocks)))
    return _templates().get_template("page.html.j2").render(title=title, body=body, broad=broad)


def heading(text: str, anchor: str = "") -> Block:
    """A heading; with an ``anchor`` the table of contents can link to it."""
    return _block("heading", text, anchor)


def links(entries: Iterable[tuple[str, str]]) -> Block:
    """Links beside each other: (address, label)."""
    return _block("links", list(entries))


def text(content: str) -> Block:
    """Paragraphs; an empty line starts a new one."""
    return _block("text", [part.strip() for part in content.split("\n\n") if part.strip()])


def verdict(kind: str, label: str, content: str) -> Block:
    """A framed statement; ``kind`` is "good", "caution" or "poor"."""
    return _block("verdict", _known(kind), label, text(content))


def tally(before: str, counts: Iterable[tuple[str, str]]) -> Block:
    """One line of counts, each in the color of its kind: (kind, label)."""
    return _block("tally", [(_known(kind), label) for kind, label in counts], before)


def lead(first: Iterable[str], beside: Iterable[str] = ()) -> Block:
    """The first screen: one telling chart and, beside it where there is room, what it means and what to do now."""
    return _block("lead", _joined(first), _joined(beside))


def steps(lines: Iterable[str]) -> Block:
    """Things to do, in order."""
    return _block("steps", list(lines))


def listed(lines: Iterable[str]) -> Block:
    """Figures as sentences, one per line; a line that begins with a space belongs to the one above."""
    return _block("listed", list(lines))


def fold(summary: str, blocks: Iterable[str]) -> Block:
    """Blocks that open on demand."""
    return _block("fold", summary, _joined(blocks))


def card(kind: str, label: str, summary: str, blocks: Iterable[str], anchor: str = "") -> Block:
    """A statement on one line, such as a verdict and the claim it is about; the blocks behind it open on demand."""
    return _block("card", _known(kind), label, summary, _joined(blocks), anchor)


def group(kind: str, blocks: Iterable[str]) -> Block:
    """Blocks of a kind, "cards", "panels" (charts) or "tables", side by side where there is room."""
    return _block("group", kind, _joined(blocks))


def table(frame: pd.DataFrame, caption: str = "", right: Iterable[str] = ()) -> Block:
    """A table with the columns of the frame, without its index; numbers and the columns ``right`` align right."""
    from pandas.api.types import is_numeric_dtype

    aligned = set(right)
    numbers = [name in aligned or is_numeric_dtype(frame[name]) for name in frame.columns]
    rows = [[Cell(_shown(value)) for value in values] for values in frame.itertuples(index=False, name=None)]
    return _block("table", [Cell(str(name)) for name in frame.columns], rows, numbers, caption, (), (), False)


def grid(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    caption: str = "",
    groups: Sequence[tuple[str, int]] = (),
    ruled: Collection[int] = (),
) -> Block:
    """A table of cells: the first column names the rows, ``groups`` (label, width) span the columns below them.

    The rows whose numbers are in ``ruled`` get a line above them.
    """
    numbers = [column > 0 for column in range(len(columns))]
    return _block("table", [Cell(name) for name in columns], list(rows), numbers, caption, groups, ruled, True)


def chart(drawing: alt.TopLevelMixin, caption: str = "") -> Block:
    """An Altair chart in the page; ``caption`` is also its text for screen readers."""
    label = Markup('<svg role="img" aria-label="{}" ').format(caption) if caption else "<svg "
    return _block("figure", Markup(svg.draw(drawing).replace("<svg ", label, 1)), caption)


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("taurank", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _block(macro: str, *values: Any) -> Block:
    made: Markup = getattr(_templates().get_template("blocks.html.j2").module, macro)(*values)
    return made


def _joined(blocks: Iterable[str]) -> Markup:
    """Blocks one below the other; a plain string among them is text and is escaped."""
    return Markup("\n").join(blocks)


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"a verdict is good, caution or poor, got {kind!r}.")
    return kind


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if value != value else f"{value:,.4g}"
