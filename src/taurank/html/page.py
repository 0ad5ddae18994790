"""One self-contained page: title, text, tables and charts in a single HTML file that needs no network.

Charts are drawn when the page is written and stand in it as SVG; there is no script. Text and axes take the
colour of the page, so that it reads well in light and in dark surroundings, on wide and on narrow screens.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from taurank.data.files import atomic_path

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

Block = str  # a piece of HTML made by one of the functions below

CHART_WIDTH = 400  # drawn narrow, so that the letters stay readable on a telephone
_SIGNS = {"good": "✓", "caution": "?", "poor": "✗"}
SERIES_COLOURS = ("#2e86c8", "#d9772b", "#3a9d6e", "#a65fb8", "#b58a1b", "#c8506e")  # on white and on black


class Cell(NamedTuple):
    """A cell of a table made by hand: its words, a small note behind them, a kind ("best" or "quiet")."""

    words: str
    note: str = ""
    kind: str = ""


def write(path: str | os.PathLike[str], title: str, blocks: Iterable[Block], broad: bool = False) -> None:
    """Write the blocks as one page; the file appears whole or not at all. A ``broad`` page has room for panels."""
    document = render(title, blocks, broad)
    with atomic_path(path) as temporary:
        temporary.write_text(document, encoding="utf-8")


def render(title: str, blocks: Iterable[Block], broad: bool = False) -> str:
    """The whole page as text."""
    body = "\n".join(_apart(block, number) for number, block in enumerate(blocks))
    kind = ' class="broad"' if broad else ""
    return _PAGE.format(title=html.escape(title), style=_STYLE, body=body, kind=kind)


def heading(words: str, anchor: str = "") -> Block:
    """A heading; with an ``anchor`` the table of contents can lead to it."""
    place = f' id="{html.escape(anchor, quote=True)}"' if anchor else ""
    return f"<h2{place}>{html.escape(words)}</h2>"


def contents(entries: Iterable[tuple[str, str]]) -> Block:
    """Links to headings: (anchor, words)."""
    links = (f'<a href="#{html.escape(to, quote=True)}">{html.escape(words)}</a>' for to, words in entries)
    return f'<nav aria-label="Contents">{" ".join(links)}</nav>'


def text(words: str) -> Block:
    """Paragraphs; an empty line starts a new one."""
    return "\n".join(f"<p>{html.escape(part.strip())}</p>" for part in words.split("\n\n") if part.strip())


def verdict(kind: str, label: str, words: str) -> Block:
    """A framed statement; ``kind`` is "good", "caution" or "poor"."""
    return f'<section class="verdict {_kind(kind)}"><strong>{html.escape(label)}</strong>{text(words)}</section>'


def table(frame: pd.DataFrame, caption: str = "", right: Iterable[str] = ()) -> Block:
    """A table with the columns of the frame, without its index; numbers and ``right`` stand right."""
    from pandas.api.types import is_numeric_dtype

    named = set(right)
    numbers = [name in named or is_numeric_dtype(frame[name]) for name in frame.columns]
    head = "".join(_cell("th", name, number) for name, number in zip(frame.columns, numbers, strict=True))
    rows = []
    for values in frame.itertuples(index=False, name=None):
        cells = (_cell("td", value, number) for value, number in zip(values, numbers, strict=True))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    body = "".join(rows)
    return (
        '<div class="wide" tabindex="0"><table>'
        f"{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def statement(
    kind: str, label: str, words: str, lines: Sequence[str] = (), more: Block = "", anchor: str = ""
) -> Block:
    """A verdict with the figures it stands on, one per line, and ``more`` below them."""
    first, _, rest = words.partition("\n\n")
    place = f' id="{html.escape(anchor, quote=True)}"' if anchor else ""
    figures = listed(lines) if lines else ""
    head = f"<p><strong>{html.escape(label)}</strong> {html.escape(first)}</p>{text(rest)}"
    return f'<section class="verdict {_kind(kind)}"{place}>{head}{figures}{more}</section>'


def listed(lines: Iterable[str]) -> Block:
    """Figures in words, one per line; a line that begins with a space belongs to the one above."""
    entries = (f"<li{' class=inner' if line[:1] == ' ' else ''}>{html.escape(line.strip())}</li>" for line in lines)
    return f'<ul class="figures">{"".join(entries)}</ul>'


def overview(entries: Iterable[tuple[str, str, str, str]]) -> Block:
    """Many verdicts at a glance, each a link to where it is explained: (kind, label, words, anchor)."""
    rows = (
        f'<li class="{_kind(kind)}"><strong title="{html.escape(label, quote=True)}">{_SIGNS[kind]}</strong>'
        f'<a href="#{html.escape(to, quote=True)}">{html.escape(words)}</a></li>'
        for kind, label, words, to in entries
    )
    return f'<ul class="overview">{"".join(rows)}</ul>'


def fold(summary: str, blocks: Iterable[Block]) -> Block:
    """Blocks that open on demand."""
    return f"<details><summary>{html.escape(summary)}</summary>{''.join(blocks)}</details>"


def panels(blocks: Iterable[Block]) -> list[Block]:
    """Charts side by side where there is room."""
    return ['<div class="panels">', *blocks, "</div>"]


def grid(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    caption: str = "",
    groups: Sequence[tuple[str, int]] = (),
    apart: Collection[int] = (),
) -> Block:
    """A table of cells: the first column names the rows, ``groups`` (words, width) stand over the columns.

    The rows whose numbers are in ``apart`` get a line above them.
    """
    head = f"<tr>{''.join(_cell('th', name, place > 0) for place, name in enumerate(columns))}</tr>"
    if groups:
        over = "".join(f'<th colspan="{width}" class="group">{html.escape(name)}</th>' for name, width in groups)
        head = f"<tr>{over}</tr>{head}"
    body = "".join(
        f"<tr{' class=apart' if number in apart else ''}>{''.join(_worded(c, i > 0) for i, c in enumerate(row))}</tr>"
        for number, row in enumerate(rows)
    )
    title = f"<caption><span>{html.escape(caption)}</span></caption>" if caption else ""
    return (
        '<div class="wide" tabindex="0"><table class="grid">'
        f"{title}<thead>{head}</thead><tbody>{body}</tbody></table></div>"
    )


def _kind(kind: str) -> str:
    if kind not in _SIGNS:
        raise ValueError(f"a verdict is good, caution or poor, not {kind!r}.")
    return kind


def _worded(cell: Cell, number: bool) -> str:
    kinds = " ".join(kind for kind in ("number" if number else "", cell.kind) if kind)
    note = f" <small>{html.escape(cell.note)}</small>" if cell.note else ""
    return f'<td class="{html.escape(kinds, quote=True)}">{html.escape(cell.words)}{note}</td>'


def chart(drawing: alt.TopLevelMixin, caption: str = "") -> Block:
    """An Altair chart as a picture in the page; ``caption`` also describes it to those who cannot see it."""
    svg = picture(drawing)
    label = f'role="img" aria-label="{html.escape(caption, quote=True)}" ' if caption else ""
    svg = re.sub(r"<svg ", f"<svg {label}", svg, count=1)
    words = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{svg}{words}</figure>"


def picture(drawing: alt.TopLevelMixin, ink: str = "currentColor", background: str = "transparent") -> str:
    """An Altair chart as SVG; a file of its own needs colours of its own: ``ink`` and ``background``."""
    import vl_convert

    own: dict[str, Any] = drawing.to_dict()
    given = own.get("config", {})
    merged = {name: {**part, **given.get(name, {})} for name, part in _chart_config().items()}
    own["config"] = {**given, **merged, "background": background}
    return str(vl_convert.vegalite_to_svg(own)).replace("currentColor", ink)


def _chart_config() -> dict[str, dict[str, Any]]:
    """The page's colours and letters; a chart's own come first."""
    colours = {"labelColor": "currentColor", "titleColor": "currentColor"}
    letters = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    lines = {"domainColor": "currentColor", "tickColor": "currentColor"}
    grid = {"gridColor": "currentColor", "gridOpacity": 0.15, "domainOpacity": 0.6, "tickOpacity": 0.6}
    return {
        "axis": {**colours, **letters, **lines, **grid},
        "legend": {**colours, **letters, "orient": "top", "title": None},
        "header": {**colours, **letters},
        "title": {"color": "currentColor", "fontSize": 13},
        "text": {"color": "currentColor"},
        "rule": {"color": "currentColor"},
        "view": {"stroke": None, "continuousWidth": CHART_WIDTH, "continuousHeight": 220},
        "range": {"category": list(SERIES_COLOURS)},
    }


def _cell(tag: str, value: Any, number: bool) -> str:
    side = ' class="number"' if number else ""
    missing = isinstance(value, float) and value != value
    words = "" if missing else f"{value:,.4g}" if isinstance(value, float) else str(value)
    return f"<{tag}{side}>{html.escape(words)}</{tag}>"


def _apart(block: Block, number: int) -> Block:
    """Names inside one chart must not meet those of another on the same page."""
    if "<svg" not in block:
        return block  # anchors of headings keep their names
    names = dict.fromkeys(re.findall(r'\bid="([^"]+)"', block))
    for place, name in enumerate(names):
        fresh = f"block{number}-{place}"  # not the drawing's own: it counts on from page to page
        block = block.replace(f'id="{name}"', f'id="{fresh}"').replace(f"url(#{name})", f"url(#{fresh})")
    return block


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main{kind}>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""

_STYLE = """
:root { --paper: #ffffff; --ink: #1c2430; --quiet: #5b6675; --line: #d8dde4; --band: #f5f7f9; --link: #1a66a8;
  --good: #2e8b57; --caution: #b7791f; --poor: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #e3e8ee; --quiet: #9aa6b4;
  --line: #343c46; --band: #1c2229; --link: #7db8ea; --good: #5fc48d; --caution: #e0a94a; --poor: #ef7f72; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 52rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.2rem 0 .4rem; }
p { margin: .5rem 0; max-width: 44rem; }
.verdict { border: 1px solid var(--line); border-left: .4rem solid var(--tone); border-radius: .3rem;
  background: var(--band); padding: .7rem 1rem; }
.verdict strong { color: var(--tone); }
.good { --tone: var(--good); } .caution { --tone: var(--caution); } .poor { --tone: var(--poor); }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .92rem; min-width: max(100%, 34rem); }
caption { text-align: left; color: var(--quiet); padding-bottom: .3rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: .8rem 0; }
figure svg { display: block; width: 100%; max-width: 36rem; height: auto; }
figcaption { color: var(--quiet); font-size: .9rem; max-width: 36rem; }
.broad { max-width: 68rem; }
.panels { display: grid; gap: 0 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1rem 0; }
a { color: var(--link); }
.verdict + .verdict { margin-top: .6rem; }
.verdict p { margin: .2rem 0; }
.overview { list-style: none; margin: 1rem 0; padding: 0; columns: 24rem 2; column-gap: 2rem; }
.overview li { display: flex; gap: .6rem; break-inside: avoid; padding: .15rem 0; }
.overview strong { color: var(--tone); min-width: 1rem; text-align: center; }
.overview a { color: inherit; text-decoration: none; } .overview a:hover { text-decoration: underline; }
.figures { margin: .4rem 0 .2rem; padding: 0; list-style: none; color: var(--quiet); font-size: .88rem;
  font-variant-numeric: tabular-nums; }
.inner { padding-left: 1.2rem; }
details { margin: .4rem 0; font-size: .92rem; }
summary { cursor: pointer; color: var(--quiet); }
.grid { min-width: 0; font-size: .88rem; }
.grid td, .grid th { padding: .3rem .75rem .3rem 0; }
.grid td:first-child, .grid thead tr:last-child th:first-child { position: sticky; left: 0;
  background: var(--paper); white-space: nowrap; }
.grid .group { border-bottom: 0; padding-left: 1.6rem; }
.grid small { color: var(--quiet); font-size: .82em; font-weight: 400; }
.grid caption span { display: block; max-width: calc(100vw - 2rem); }
.best { font-weight: 700; }
.quiet { color: var(--quiet); }
tr.apart td { border-top: 2px solid var(--quiet); }
"""
