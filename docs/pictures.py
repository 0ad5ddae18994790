"""Draw the pictures of the README and the site: ``python docs/pictures.py``.

The figures of the methods are those of docs/results/comparison.csv (``taurank paper comparison --preset full``).
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import altair as alt
import pandas as pd

from taurank.report import svg
from taurank_paper.scores import NAMES

DOCS = Path(__file__).parent
INK, PAPER = "#333333", "#ffffff"
Boxes = dict[str, tuple[int, int, str]]  # name: x, y and text, its lines separated by a slash

FLOW: Boxes = {
    "log": (20, 75, "a log: who was shown what,/with which probability,/and what happened"),
    "learn": (284, 20, "learn: which items does/showing make people buy?"),
    "measure": (284, 140, "measure: what would/a ranking have caused?"),
    "lists": (548, 20, "a list for every user,/by effect"),
    "verdict": (548, 140, "an estimate, its interval,/and whether to believe it"),
}
FLOW_ARROWS = [("log", "learn"), ("log", "measure"), ("learn", "lists"), ("measure", "verdict")]
LOOP: Boxes = {
    "serve": (20, 20, "show a list, partly random,/with known probabilities"),
    "log": (284, 20, "log what was shown/and what was bought"),
    "measure": (548, 20, "measure the challenger/against the incumbent"),
    "learn": (284, 140, "learn a challenger/from the log"),
    "promote": (548, 140, "promote it/if it is better"),
}
LOOP_ARROWS = [("serve", "log"), ("log", "measure"), ("log", "learn"), ("measure", "promote"), ("learn", "serve")]


def main() -> None:
    pictures = {"methods": methods(), "flow": boxes(FLOW, FLOW_ARROWS), "loop": boxes(LOOP, LOOP_ARROWS)}
    for name, picture in pictures.items():
        (DOCS / "_static" / f"{name}.svg").write_text(picture, encoding="utf-8")


def methods() -> str:
    """CP@10 of every method in percent of the ten-week limit, a panel for each world."""
    frame = pd.read_csv(DOCS / "results" / "comparison.csv").query("metric == 'CP@10'")
    mean = frame.set_index(["items", "setting", "method"])["mean"]
    limit = mean.xs("ten_weeks", level="method")
    share = (mean / limit).drop(["truth", "ten_weeks", "random"], level="method").rename("share").reset_index()
    share["method"] = share["method"].map(NAMES)
    share["world"] = share["items"] + ", " + share["setting"]
    order = list(share.groupby("method")["share"].mean().sort_values(ascending=False).index)
    ours = alt.condition(alt.datum.method == "EmpiricalBayes", alt.value("#d55e00"), alt.value("#7a8fa6"))
    bars = alt.Chart(share).mark_bar().encode(
        alt.X("share", axis=alt.Axis(format="%", tickCount=4), title=None, scale=alt.Scale(domain=[0, 1])),
        alt.Y("method", sort=order, title=None), color=ours,
    )  # fmt: skip
    return svg.draw(
        bars.properties(width=250, height=170).facet(alt.Facet("world", title=None), columns=2), INK, PAPER
    )


def boxes(places: Boxes, arrows: list[tuple[str, str]]) -> str:
    """Boxes of text and arrows between them."""
    width, height = 212, 76
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 236" font-family="sans-serif" font-size="14">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
        f'<rect width="780" height="236" fill="{PAPER}"/>',
    ]
    for one, two in arrows:
        (x1, y1, _), (x2, y2, _) = places[one], places[two]
        if x1 == x2:
            ends = (x1 + width // 2, y1 + height, x2 + width // 2, y2 - 2)
        elif x1 < x2:
            ends = (x1 + width, y1 + height // 2, x2 - 2, y2 + height // 2)
        else:
            ends = (x1, y1 + height // 2, x2 + width // 2, y2 + height + 2)
        line = 'x1="{}" y1="{}" x2="{}" y2="{}"'.format(*ends)
        parts.append(f'<line {line} stroke="{INK}" stroke-width="1.5" marker-end="url(#tip)"/>')
    for x, y, text in places.values():
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="#eef3f8" stroke="#7a8fa6"/>'
        )
        lines = text.split("/")
        top = y + height / 2 + 5 - 10 * (len(lines) - 1)
        for n, words in enumerate(lines):
            parts.append(
                f'<text x="{x + width / 2}" y="{top + 20 * n}" text-anchor="middle" fill="{INK}">'
                f"{escape(words)}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main()
