"""A reader of pages: tags, attributes and text, in the order of the document."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any


class Reader(HTMLParser):
    """All tags with their attributes, the text outside of them, and the style sheet."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self.style: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        (self.style if self.tags and self.tags[-1][0] == "style" else self.words).append(data)

    def attributes(self, name: str) -> list[str]:
        return [values[name] for _, values in self.tags if name in values]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def assert_self_contained(document: str) -> None:
    """No script, no event handler, and nothing that a browser would fetch."""
    reader = Reader(document)
    addresses = set(re.findall(r"https?://[^\"' <)]+", document))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)  # names of XML, not fetched
    assert not {tag for tag, _ in reader.tags} & {"script", "link", "iframe", "img", "object", "embed", "base"}
    assert not [name for _, values in reader.tags for name in values if name.startswith("on")]
    assert not reader.attributes("src")
    assert all(address.startswith("#") for address in reader.attributes("href"))
    assert "url(" not in "".join(reader.style)
    assert "@import" not in document


def assert_links_resolve(document: str) -> None:
    """Ids are unique, and every link inside the page leads to one."""
    reader = Reader(document)
    names = reader.attributes("id")
    assert len(names) == len(set(names))
    used = {address.removeprefix("#") for address in reader.attributes("href")}
    assert used | set(re.findall(r"url\(#([^)]+)\)", document)) <= set(names)
