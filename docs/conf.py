"""The site: ``make docs`` builds it into docs/_build, warnings are errors.

Pages are Markdown in this folder, notebooks are Markdown in ``examples``, run when the site is built. The reference
is made from the docstrings, the commands and the service's OpenAPI document by ``reference.py``.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, NumpyDocstring
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parent))

import reference
import taurank

project, author, copyright = "taurank", "taurank developers", "2026, taurank developers"
release = version = taurank.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.doctest", "sphinx_copybutton"]
exclude_patterns = ["_build", "requirements.txt", "results/authors", "results/comparison.md"]
html_theme = "furo"
pygments_dark_style = "monokai"
html_title = "taurank"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = html_copy_source = html_show_sourcelink = False

myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
nb_execution_mode = "force"
nb_execution_timeout = 90
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

HERE = Path(__file__).parent


def setup(app: Sphinx) -> None:
    reference.write(HERE)
    shutil.rmtree(HERE / "notebooks", ignore_errors=True)
    (HERE / "notebooks").mkdir()
    for page in (HERE.parent / "examples").glob("*.md"):
        text = page.read_text(encoding="utf-8").replace("](../docs/", "](../")
        (HERE / "notebooks" / page.name).write_text(text, encoding="utf-8")
    app.add_directive("mermaid", ImportGraph)
    app.connect("autodoc-process-docstring", to_rest)


# names that share a line stay together: users, items, times
SECTIONS = Config(
    napoleon_custom_sections=[("Parameters", "params_style"), ("Attributes", "params_style")],
    napoleon_attr_annotations=False,
)


def to_rest(app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are text: |x| is an absolute value, and a plural may follow a name in code.

    An entry of a section is one line, ``names : what they are``: the signature has the types.
    """
    lines[:] = [re.sub(r"(``\w+``)s\b", r"\1\\ s", line).replace("|", r"\|") for line in lines]
    if what != "property":  # of which a sentence with a colon would be taken for a type
        text = "\n".join(re.sub(r"^(\w[\w., ]*) : ", r"\1\n    ", line) for line in lines)
        lines[:] = NumpyDocstring(text, SECTIONS, app, what, name, item, options).lines()


class ImportGraph(SphinxDirective):  # type: ignore[misc]
    """A drawing of ``a --> b`` lines: each room as far up as the longest way down from it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        arrows = [tuple(line.split(" --> ")) for line in map(str.strip, self.content) if " --> " in line]
        return [nodes.raw("", drawn(arrows), format="html")]


def drawn(arrows: list[tuple[str, ...]]) -> str:
    """An SVG in the colors of the page."""
    rooms = dict.fromkeys(room for arrow in arrows for room in arrow)

    def height(room: str) -> int:
        return max((1 + height(lower) for upper, lower in arrows if upper == room), default=0)

    rows: dict[int, list[str]] = {}
    for room in rooms:
        rows.setdefault(height(room), []).append(room)
    top, width, step = max(rows), 640, 64
    at = {
        room: (width * (2 * n + 1) / (2 * len(row)), 24 + step * (top - level))
        for level, row in rows.items()
        for n, room in enumerate(row)
    }
    lines = [
        f'<line x1="{at[a][0]}" y1="{at[a][1] + 14}" x2="{at[b][0]}" y2="{at[b][1] - 14}" opacity="0.45"/>'
        for a, b in arrows
    ]
    boxes = [
        f'<rect x="{x - 50}" y="{y - 14}" width="100" height="28" rx="6" fill="var(--color-background-primary)"/>'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle" stroke="none" fill="currentColor">{room}</text>'
        for room, (x, y) in at.items()
    ]
    box = f"0 0 {width} {48 + step * top}"
    head = f'<svg role="img" aria-label="Who imports whom" viewBox="{box}" stroke="currentColor">'
    return "".join([head, *lines, *boxes, "</svg>"])
