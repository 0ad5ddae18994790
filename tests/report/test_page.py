"""The page: one file, whole or not at all, nothing from outside, every text escaped."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest

from support.html_reader import Reader, assert_links_resolve, assert_self_contained
from taurank.errors import InputError, MissingExtra
from taurank.report import page

NASTY = "<script>alert('x')</script> & \"quoted\" onload=\"alert('y')\" </title></style></svg>"
CELL = page.Cell(NASTY, NASTY)

# every function that makes a block, with text that would break out of it if it were not escaped
BLOCKS: dict[str, list[str]] = {
    "heading": [page.heading(NASTY, NASTY)],
    "links": [page.links([("#anchor", NASTY)]), page.heading("", "anchor")],
    "text": [page.text(f"{NASTY}\n\nsecond")],
    "verdict": [page.verdict("poor", NASTY, NASTY)],
    "tally": [page.tally(NASTY, [("good", NASTY)])],
    "lead": [page.lead([NASTY], [NASTY])],
    "steps": [page.steps([NASTY])],
    "listed": [page.listed([NASTY, f"  {NASTY}"])],
    "fold": [page.fold(NASTY, [NASTY])],
    "card": [page.card("good", NASTY, NASTY, [NASTY], "card")],
    "group": [page.group("cards", [NASTY])],
    "table": [page.table(pd.DataFrame({NASTY: [NASTY], "value": [1.5]}), NASTY)],
    "grid": [page.grid(["", NASTY], [[CELL, CELL]], NASTY, [("", 1), (NASTY, 1)])],
    "chart": [page.chart(alt.Chart(pd.DataFrame({"x": [NASTY], "y": [1]}), title=NASTY).mark_bar().encode(
        alt.X("x:N", title=NASTY), alt.Y("y:Q"), alt.Color("x:N")), NASTY)],
    "plain string": [NASTY],
}  # fmt: skip


def small_chart() -> alt.Chart:
    frame = pd.DataFrame({"x": [0, 1, 2], "y": [1, 3, 2]})
    return alt.Chart(frame).mark_line(clip=True).encode(alt.X("x:Q"), alt.Y("y:Q"))


@pytest.mark.parametrize("name", BLOCKS)
def test_every_text_is_escaped_and_arrives(name: str) -> None:
    document = page.render(NASTY, BLOCKS[name])
    assert_self_contained(document)
    assert "<script" not in document
    reader = Reader(document)
    assert "".join(reader.words).count(NASTY) >= 3  # the title twice
    assert {tag for tag, _ in reader.tags if tag in ("html", "main", "style")} == {"html", "main", "style"}


def test_blocks_are_markup_and_nested_blocks_are_escaped_once() -> None:
    inner = page.text("a & b")
    assert isinstance(inner, page.Block)
    assert "<p>a &amp; b</p>" in page.fold("more", [inner])
    assert "&lt;p&gt;" in page.fold("more", [str(inner)])  # no longer markup: text


def test_ids_inside_charts_are_unique_and_the_page_is_reproducible() -> None:
    def document() -> str:
        charts = [page.chart(small_chart(), "one"), page.fold("more", [page.chart(small_chart(), "two")])]
        return page.render("Title", [page.heading("Charts", "charts"), *charts])

    first = document()
    assert_links_resolve(first)
    assert len(set(re.findall(r"url\(#([^)]+)\)", first))) == 2  # a clipped chart refers to its clip path
    assert "charts" in Reader(first).attributes("id")
    assert document() == first


def test_charts_take_the_color_of_the_page() -> None:
    block = page.chart(small_chart())
    assert 'fill="currentColor"' in block
    assert 'fill="white"' not in block
    assert "#000" not in block


def test_a_chart_keeps_its_own_configuration() -> None:
    assert "17px" in page.chart(small_chart().configure_axis(labelFontSize=17))


def test_charts_and_tables_are_accessible() -> None:
    document = page.render("Title", [page.chart(small_chart(), "What it shows"), *BLOCKS["grid"]])
    reader = Reader(document)
    assert ("img", "What it shows") in [
        (v.get("role"), v.get("aria-label")) for tag, v in reader.tags if tag == "svg"
    ]
    assert {"col", "row"} <= set(reader.attributes("scope"))
    assert 'lang="en"' in document


def test_the_page_follows_light_and_dark_and_the_width() -> None:
    document = page.render("Title", [], broad=True)
    style = "".join(Reader(document).style)
    assert "@media (prefers-color-scheme: dark)" in style
    light, dark = (dict(re.findall(r"(--\w+): (#\w+)", part)) for part in style.split("@media")[:2])
    assert set(light) == set(dark)
    assert not set(light.values()) & set(dark.values())
    assert '<meta name="color-scheme" content="light dark">' in document
    assert "width=device-width" in document
    assert '<main class="broad">' in document
    assert '<main class="broad">' not in page.render("Title", [])


def test_numbers_align_right_and_missing_ones_are_empty() -> None:
    frame = pd.DataFrame({"name": ["a", "b"], "n": [1234567, 2], "x": [0.123456, float("nan")], "t": ["1", "2"]})
    block = page.table(frame, right=["t"])
    assert '<td class="number">1234567</td>' in block
    assert '<td class="number">0.1235</td>' in block
    assert '<td class="number"></td>' in block
    assert '<td class="number">2</td>' in block
    assert "<td>a</td>" in block


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    page.write(path, "Title", [page.text("one")])
    before = path.read_text(encoding="utf-8")
    assert before.startswith("<!DOCTYPE html>")
    assert "<title>Title</title>" in before

    def broken() -> Any:
        yield page.text("two")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        page.write(path, "Title", broken())
    assert path.read_text(encoding="utf-8") == before
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="does not exist"):
        page.write(tmp_path / "no" / "page.html", "Title", [])


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(ValueError, match="good, caution or poor"):
        page.verdict("fine", "a", "b")


@pytest.mark.parametrize("module", ["jinja2", "altair", "vl_convert"])
def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(MissingExtra, match=rf"{module}.* is not installed.*taurank\[report\]"):
        importlib.reload(page)
