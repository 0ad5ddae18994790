"""The dashboard: right figures, nothing unescaped, and a page that fits wide and narrow screens in Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from support.shop import NOON, SECRET, SetClock, decider, open_shop, stored, visit
from taurank.report import page as report
from taurank.serve.api import Service
from taurank.serve.dashboard import _bands as draw_bands
from taurank.serve.dashboard import gather, number, render
from taurank.serve.lift import ConfidenceSequence
from taurank.serve.policy import Policy
from taurank.serve.security import create_token
from taurank.serve.server import create_app
from taurank.serve.settlement import settle
from taurank.serve.store import Store
from taurank.serve.surfaces import start_challenger, switch

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def page(store: Store, clock: SetClock) -> str:
    """The page of a shop with three settled days, a challenger and a hostile name."""
    open_shop(store, Policy(k=4, floor=0.03, temperature=0.5), holdout=0.3)
    second = stored(store)
    start_challenger(store, "home", second, 0.5, "<script>alert(1)</script>", NOON)
    made = decider(store, clock)
    for _ in range(3):
        visit(made, clock, np.random.default_rng(0), copies=15)
    settle(made, made.surfaces.get("home"), clock.now)
    figures = gather(store, made.surfaces.get("home"))
    lists = sum((figures.visits.arm == arm).sum() for arm in ("incumbent", "challenger"))
    assert figures.extra[0] == pytest.approx(figures.lift.estimate[-1] * lists)
    assert list(figures.arms) == ["holdout", "incumbent", "challenger"]
    assert 0 < figures.explored < 1
    assert figures.working
    assert all(row["low"] > 0 for row in figures.working)
    assert all(row["low"] <= 0 for row in figures.anyway)
    assert [sum(counts) for _, _, _, counts in figures.overlap] == [
        purchases for _, purchases, _, _ in figures.overlap
    ]
    assert all(0 < effective <= purchases for _, purchases, effective, _ in figures.overlap)
    return render(store, figures, ["home"], clock.now)


def test_the_page_is_whole_and_escaped(page: str) -> None:
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<svg") == 4
    assert not re.search(r'(src|href)="(?!/)', page)  # nothing from elsewhere
    assert "nan" not in re.sub(r"<[^>]*>", "", page).lower().split()
    for text in ("Extra purchases so far", "They sell anyway", "Challenger − incumbent", "Overlap", "History"):
        assert text in page


def test_before_anything_happened(sqlite_store: Store, clock: SetClock) -> None:
    token = create_token(sqlite_store, "analyst")[1]
    with TestClient(create_app(Service(sqlite_store, SECRET, clock))) as client:
        headers = {"Authorization": f"Bearer {token}"}
        assert "There is no surface yet" in client.get("/", headers=headers).text
        open_shop(sqlite_store)
        switch(sqlite_store, "home", False, "", NOON)
        text = client.get("/?surface=home", headers=headers).text
        assert "Recommendations are switched off" in text
        assert "No period has been settled yet" in text
        assert client.get("/?surface=other", headers=headers).status_code == 404
        assert client.get("/").headers["www-authenticate"].startswith("Basic")


def measure(page: str, folder: Path, width: int, dark: bool) -> dict[str, Any]:
    """Chromium lays the page out in a frame of this width and says what it sees."""
    script = """
      const inside = document.querySelector("iframe").contentDocument;
      const root = inside.documentElement;
      const small = [...inside.querySelectorAll("td, p, b")].filter(e => e.getClientRects().length
        && parseFloat(getComputedStyle(e).fontSize) < 11).length;
      document.title = JSON.stringify({scroll: root.scrollWidth, client: root.clientWidth, height: root.scrollHeight,
        cut: [...inside.querySelectorAll("svg text")].filter(e => {
          const [text, chart] = [e, e.ownerSVGElement].map(one => one.getBoundingClientRect());
          return text.left < chart.left || text.right > chart.right; }).map(e => e.textContent),
        paper: getComputedStyle(inside.body).backgroundColor, ink: getComputedStyle(inside.body).color, small: small,
        charts: [...inside.querySelectorAll("svg")].map(e => e.getBoundingClientRect().width)});"""
    frame = f'<iframe width="{width}" height="900" srcdoc="{html.escape(page, quote=True)}"></iframe>'
    file = folder / "frame.html"
    file.write_text(f"<title></title>{frame}<script>window.onload = () => {{{script}}}</script>", encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile", "--dump-dom"]
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--window-size=1600,1000"]
    answer = subprocess.run([str(CHROMIUM), *options, file.as_uri()], capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(.*?)</title>", answer.stdout)
    assert title is not None
    seen: dict[str, Any] = json.loads(html.unescape(title.group(1)))
    return seen


@pytest.mark.integration
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; the page is not looked at")
def test_in_chromium(page: str, tmp_path: Path) -> None:
    wide, narrow = measure(page, tmp_path, 1280, False), measure(page, tmp_path, 360, True)
    for seen in (wide, narrow):
        assert seen["scroll"] <= seen["client"]  # nothing sticks out to the right
        assert seen["small"] == 0
        assert seen["cut"] == []
        assert len(seen["charts"]) == 4
        assert max(seen["charts"]) <= seen["client"]
    assert narrow["height"] > wide["height"]
    assert wide["paper"] == "rgb(255, 255, 255)"
    assert narrow["paper"] == "rgb(20, 24, 29)"


def bands(store: Store, sequence: ConfidenceSequence) -> Any:
    """The chart of one line over three days."""
    return draw_bands(decider(store).surfaces.get("home"), [20_000, 20_001, 20_002], {"<a>": sequence}, "title")


@pytest.mark.integration
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; the page is not looked at")
def test_labels_of_any_size_are_whole(sqlite_store: Store, tmp_path: Path) -> None:
    """On a narrow screen."""
    open_shop(sqlite_store)
    charts = []
    for size in (-1e9, -2.5e5, -11_000.0, -900.0, -0.0021, 0.0021, 11_000.0, 1.5e5, 4e6):
        ends = np.array([0.3, 0.6, 1.0]) * size
        charts.append(report.chart(bands(sqlite_store, ConfidenceSequence(ends, ends, ends))))
    seen = measure(report.render("charts", charts), tmp_path, 400, False)
    assert len(seen["charts"]) == 9
    assert seen["cut"] == []


def test_bands_leave_out_what_is_not_finite(sqlite_store: Store) -> None:
    open_shop(sqlite_store)
    inf = np.inf
    sequence = ConfidenceSequence(np.array([0.1, 0.2, 0.3]), np.array([-inf, 0.1, 0.2]), np.array([inf, 0.3, 0.4]))
    chart = bands(sqlite_store, sequence)
    assert [len(rows) for rows in chart.to_dict()["datasets"].values()] == [1, 2, 3]  # zero, band, line
    svg = report.chart(chart)
    assert "&lt;a&gt;" in svg
    assert not re.search("inf|nan", svg.lower())
    nothing = ConfidenceSequence(*(np.full(3, value) for value in (np.nan, -inf, inf)))
    assert "<svg" in report.chart(bands(sqlite_store, nothing))


def test_numbers() -> None:
    assert [number(v) for v in (0.0, 0.012345, 1.5, 123.4, 45678.0, float("nan"), float("inf"))] == [
        "0", "0.0123", "1.50", "123", "45,678", "–", "–",
    ]  # fmt: skip
    assert [number(v, "+") for v in (1.0, -1.0, float("inf"))] == ["+1.00", "-1.00", "–"]
