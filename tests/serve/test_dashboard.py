"""The dashboard: right figures, nothing unescaped, and a page that fits wide and narrow screens in Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, select
from starlette.testclient import TestClient

from support.shop import NOON, SECRET, SetClock, decider, loaded, open_shop, stored, visit
from taurank.report import page as report
from taurank.serve import tables
from taurank.serve.api import Service
from taurank.serve.dashboard import Figures, Settled, advice, gained, gather, number, render, working
from taurank.serve.dashboard import _bands as draw_bands
from taurank.serve.jobs import beat, draw_pages
from taurank.serve.lift import Interval, Measure
from taurank.serve.policy import Policy
from taurank.serve.security import create_token
from taurank.serve.server import create_app
from taurank.serve.settlement import settle
from taurank.serve.store import Store
from taurank.serve.surfaces import Surface, start_challenger, switch

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
    surface = made.surfaces.get("home")
    settle(made, surface, clock.now)
    figures = gather(store, surface, clock.now)
    results, lists = store.rows(select(tables.results)), ("incumbent", "challenger")
    assert figures.gain.estimate == pytest.approx(sum(row["lift"] for row in results if row["arm"] in lists))
    purchases = {
        name: sum(period.overlap[name]["purchases"] for period in figures.periods) for name in figures.overlap
    }
    assert sum(purchases.values()) == len(store.rows(select(tables.positives)))
    assert all(0 < effective <= purchases[name] for name, effective in figures.overlap.items())
    assert any(row["low"] > 0 for row in figures.items)
    assert [period.visits for period in figures.periods] == [600] * 3
    assert figures.running == {"visits": 0, "outcomes": 0}
    return render(figures, ["home"], clock.now)


def test_the_page_is_whole_and_escaped(page: str) -> None:
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<svg") == 3
    assert not re.search(r'(src|href)="(?!/)', page)  # nothing from elsewhere
    assert "nan" not in re.sub(r"<[^>]*>", "", page).lower().split()
    order = [page.index(text) for text in ("Is it working today?", "How much did we gain?", "What should I do?")]
    assert order == sorted(order) < [page.index("Arms since")]
    for text in ("They sell anyway", "Challenger − incumbent", "History"):
        assert text in page


def test_a_view_is_what_the_job_has_drawn(sqlite_store: Store, clock: SetClock) -> None:
    """The page is stored; it says so if the job that draws it has stopped."""
    token = create_token(sqlite_store, "analyst")[1]
    made = decider(sqlite_store, clock)
    service = Service(sqlite_store, SECRET, clock)
    with TestClient(create_app(service)) as client:
        loaded(service)
        headers = {"Authorization": f"Bearer {token}"}
        assert "has not drawn this page yet" in client.get("/", headers=headers).text
        open_shop(sqlite_store)
        switch(sqlite_store, "home", False, "", NOON)
        draw_pages(made)
        beat(sqlite_store, clock.now)
        text = client.get("/?surface=home", headers=headers).text
        assert "recommendations are switched off" in text
        assert "background job has stopped" not in text
        queries = count_rows(sqlite_store)
        assert client.get("/", headers=headers).text == text
        assert not queries & {"decisions", "results", "settled.figures"}
        clock.now += 3600
        assert client.get("/health/ready").json() == {"status": "ok", "job_seconds_ago": 3600.0}
        assert "taurank_job_age_seconds 3600.0" in client.get("/metrics", headers=headers).text
        assert "background job has stopped" in client.get("/", headers=headers).text
        assert client.get("/?surface=other", headers=headers).status_code == 404
        assert client.get("/").headers["www-authenticate"].startswith("Basic")


def count_rows(store: Store) -> set[str]:
    """The large tables that are read from now on."""
    seen: set[str] = set()

    @event.listens_for(store.engine, "before_cursor_execute")
    def see(_: Any, __: Any, statement: str, *rest: Any) -> None:
        seen.update(name for name in ("decisions", "results", "settled.figures") if name in statement)

    return seen


def shown(surface: Surface, **changes: Any) -> Figures:
    """Figures of four equal days, with changes."""
    sums = {"visits": 100.0, "purchases": 50.0, "lift": 20.0, "value": 20.0}
    days = [Settled(day, {"incumbent": sums}, {}, 95, 60, {}) for day in range(19_000, 19_004)]
    effective = {"shown": 400.0, "not shown": 400.0}
    figures = Figures(
        surface, days, 19_004, {"visits": 5, "outcomes": 3}, Measure(19_000), None, effective, [], [], []
    )
    return replace(figures, **changes)


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        ({}, "Yes."),
        ({"outcomes": 10}, "far fewer outcomes"),
        ({"lists": 2, "outcomes": 0}, "far fewer lists and outcomes"),
    ],
)
def test_tracking_that_broke_is_seen(sqlite_store: Store, last: dict[str, Any], answer: str) -> None:
    open_shop(sqlite_store)
    figures = shown(decider(sqlite_store).surfaces.get("home"))
    periods = [*figures.periods[:-1], replace(figures.periods[-1], **last)]
    kind, _, text = working(replace(figures, periods=periods))
    assert answer in text
    assert kind == ("good" if answer == "Yes." else "poor")
    assert "usually 60 to 60" in text


def test_the_first_three_questions(sqlite_store: Store) -> None:
    """Each state of a surface has its advice."""
    open_shop(sqlite_store)
    surface = decider(sqlite_store).surfaces.get("home")
    assert "promote it" in advice(shown(surface.model_copy(update={"incumbent": None})))[2]
    assert "switch on" in advice(shown(surface.model_copy(update={"enabled": False})))[2]
    assert "retrain" in advice(shown(surface))[2]
    assert "Overlap is missing" in advice(shown(surface, overlap={"shown": 4.0, "not shown": 0.0}))[2]
    days = shown(surface).periods * 5
    assert "too small" in advice(shown(surface, periods=days))[2]
    assert "cannot be said yet" in gained(shown(surface))[2]
    for sign, kind in ((1, "good"), (-1, "poor")):
        life = Measure(19_000, last={"recommended lift": Interval(0.2 * sign, *sorted((0.1 * sign, 0.3 * sign)))})
        life.arm("recommended").change(np.zeros((200, 4)), np.tile([1.0, 1.0, 0.2, 0.2], (200, 1)))
        made = gained(shown(surface, life=life))
        assert (made[0], "+40" in made[2] or "-40" in made[2]) == (kind, True)
        assert ("rollback" in advice(shown(surface, life=life))[2]) == (sign < 0)
    trial = shown(surface.model_copy(update={"challenger": "0" * 16, "share": 0.5}), trial=Measure(19_000, 4))
    assert "24 at most to go" in advice(trial)[2]


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
        assert len(seen["charts"]) == 3
        assert max(seen["charts"]) <= seen["client"]
    assert narrow["height"] > wide["height"]
    assert wide["paper"] == "rgb(255, 255, 255)"
    assert narrow["paper"] == "rgb(20, 24, 29)"


def bands(store: Store, *ends: tuple[float, float, float]) -> Any:
    """The chart of one line over some days."""
    figures = shown(decider(store).surfaces.get("home"))
    rows = [(day, "<a>", each) for day, each in zip(figures.periods, ends, strict=False)]
    return draw_bands(figures, rows, "title")


@pytest.mark.integration
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; the page is not looked at")
def test_labels_of_any_size_are_whole(sqlite_store: Store, tmp_path: Path) -> None:
    """On a narrow screen."""
    open_shop(sqlite_store)
    sizes = (-1e9, -2.5e5, -11_000.0, -900.0, -0.0021, 0.0021, 11_000.0, 1.5e5, 4e6)
    ends = [[(end * size,) * 3 for end in (0.3, 0.6, 1.0)] for size in sizes]
    charts = [report.chart(bands(sqlite_store, *each)) for each in ends]
    seen = measure(report.render("charts", charts), tmp_path, 400, False)
    assert len(seen["charts"]) == 9
    assert seen["cut"] == []


def test_bands_leave_out_what_is_not_finite(sqlite_store: Store) -> None:
    open_shop(sqlite_store)
    inf = np.inf
    chart = bands(sqlite_store, (0.1, -inf, inf), (0.2, 0.1, 0.3), (0.3, 0.2, 0.4))
    assert [len(rows) for rows in chart.to_dict()["datasets"].values()] == [1, 2, 3]  # zero, band, line
    svg = report.chart(chart)
    assert "&lt;a&gt;" in svg
    assert not re.search("inf|nan", svg.lower())
    assert "<svg" in report.chart(bands(sqlite_store, *[(np.nan, -inf, inf)] * 3))


def test_numbers() -> None:
    assert [number(v) for v in (0.0, 0.012345, 1.5, 123.4, 45678.0, float("nan"), float("inf"))] == [
        "0", "0.0123", "1.50", "123", "45,678", "–", "–",
    ]  # fmt: skip
    assert [number(v, "+") for v in (1.0, -1.0, float("inf"))] == ["+1.00", "-1.00", "–"]
