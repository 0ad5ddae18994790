"""The page: one file, whole or not at all, nothing from outside, every text escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pytest

from taurank.errors import InputError
from taurank.html import page

NASTY = "<script>alert('x')</script> & \"quoted\""


class Reader(HTMLParser):
    """All tags, their attributes, and the text outside of them."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def attributes(self, name: str) -> list[str]:
        return [values[name] for _, values in self.tags if name in values]


def small_chart(title: str = "y") -> alt.Chart:
    frame = pd.DataFrame({"x": [0, 1, 2], "y": [1, 3, 2]})
    return alt.Chart(frame).mark_line(clip=True).encode(alt.X("x:Q"), alt.Y("y:Q", title=title))


def whole_page() -> str:
    frame = pd.DataFrame({"name": [NASTY, "b"], "value": [1.5, float("nan")]})
    blocks = [
        page.verdict("poor", NASTY, NASTY),
        page.heading(NASTY),
        page.text(f"{NASTY}\n\nsecond"),
        page.table(frame, NASTY),
        page.chart(small_chart(NASTY), NASTY),
        page.chart(small_chart(), "another"),
    ]
    return page.render(NASTY, blocks)


def test_every_text_is_escaped_and_arrives() -> None:
    reader = Reader(whole_page())
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert "".join(reader.words).count(NASTY) >= 8
    assert NASTY in reader.attributes("aria-label")
    assert not [name for _, values in reader.tags for name in values if name.startswith("on")]


def test_nothing_comes_from_outside() -> None:
    document = whole_page()
    addresses = set(re.findall(r"https?://[^\"' <)]+", document))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)  # names of XML, not fetched
    reader = Reader(document)
    assert not reader.attributes("src")
    assert not reader.attributes("href")
    assert "@import" not in document


def test_names_inside_charts_do_not_meet() -> None:
    document = whole_page()
    names = Reader(document).attributes("id")
    assert names  # a clipped chart has them
    assert len(names) == len(set(names))
    used = set(re.findall(r"url\(#([^)]+)\)", document))
    assert used
    assert used <= set(names)
    assert whole_page() == document  # and do not change from one page to the next


def test_charts_take_the_colour_of_the_page() -> None:
    block = page.chart(small_chart())
    assert 'fill="currentColor"' in block
    assert 'fill="white"' not in block
    assert "#000" not in block


def test_a_chart_keeps_its_own_settings() -> None:
    block = page.chart(small_chart().configure_axis(labelFontSize=17))
    assert "17px" in block


def test_numbers_stand_right_and_missing_ones_are_empty() -> None:
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
