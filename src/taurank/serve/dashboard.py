"""The dashboard: one page per surface with the figures of its settled periods, made by `taurank.report`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from sqlalchemy import Float, case, cast, func, select

from taurank.report import page
from taurank.report.page import Block, Cell
from taurank.serve import tables
from taurank.serve.lift import (
    RECOMMENDED,
    Comparison,
    ConfidenceSequence,
    Visits,
    against_holdout,
    arm_lift,
    compare_challenger,
    confidence,
    read_visits,
)
from taurank.serve.models import list_models
from taurank.serve.recorder import Row
from taurank.serve.store import Store
from taurank.serve.surfaces import Surface, Surfaces, read_history

PERIODS = 90  # that the dashboard looks back
OVERLAP_PERIODS = 14
MIN_PURCHASES = 30  # of an item before it is listed
EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)

_opened = cache(Store)


@dataclass(frozen=True)
class Figures:
    """What the page shows about the settled periods of a surface."""

    surface: Surface
    visits: Visits
    lift: ConfidenceSequence
    holdout: ConfidenceSequence
    cost: ConfidenceSequence
    arms: dict[str, ConfidenceSequence]
    comparison: Comparison | None
    overlap: list[tuple[str, int, float, list[int]]]
    working: list[Row]
    anyway: list[Row]

    @property
    def extra(self) -> tuple[float, ...]:
        """Purchases caused so far: estimate, low, high."""
        return tuple(end * int(self.visits.rows("recommended").sum()) for end in self.lift.last)

    @property
    def explored(self) -> float:
        """The share of the slots that explore."""
        measured = self.visits.explored[self.visits.rows("recommended") & ~np.isnan(self.visits.explored)]
        return float(measured.mean()) if len(measured) else math.nan

    @property
    def alerts(self) -> list[str]:
        mismatch = self.comparison.mismatch if self.comparison is not None else ""
        alerts = {
            "Recommendations are switched off.": not self.surface.enabled,
            "There is no model yet.": self.surface.incumbent is None,
            f"Nothing is promoted: {mismatch}.": mismatch,
            "The lists cause fewer purchases, not more.": self.lift.last[2] < 0,
            "No period has been settled yet: figures appear after the first one has ended.": not self.visits.periods,
        }
        return [text for text, true in alerts.items() if true]


def draw(address: str, name: str | None, now: float) -> str:
    """The page of a surface, or of the first one; without any surface it says how to create one."""
    store = _opened(address)
    surfaces = Surfaces(store)
    names = [surface.name for surface in surfaces.all()]
    if not names and name is None:
        text = "There is no surface yet. Create one: taurank server surface set home"
        return page.render("taurank", [page.text(text)])
    return render(store, gather(store, surfaces.get(name or names[0])), names, now)


def gather(store: Store, surface: Surface) -> Figures:
    """The figures of a surface, from settled periods."""
    visits = read_visits(store, surface.name, last=PERIODS)
    items = _items(store, surface, visits)
    return Figures(
        surface=surface,
        visits=visits,
        lift=arm_lift(visits, "recommended"),
        holdout=against_holdout(visits, "recommended"),
        cost=confidence(visits.means("recommended", "missed")),
        arms={arm: arm_lift(visits, arm) for arm in ("holdout", *RECOMMENDED) if visits.rows(arm).any()},
        comparison=None if surface.challenger is None else compare_challenger(store, surface),
        overlap=_overlap(store, surface, visits),
        working=sorted((row for row in items if row["low"] > 0), key=lambda row: -row["low"])[:8],
        anyway=sorted((row for row in items if row["low"] <= 0), key=lambda row: -row["control"])[:8],
    )


def _items(store: Store, surface: Surface, visits: Visits) -> list[Row]:
    """Each item's effect of being shown, per visit, with an ordinary 95% interval, and what it sells without."""
    c, n = tables.positives.c, max(1, int(visits.rows("recommended").sum()))
    up = case((c.treated == 1, 1.0 / c.propensity), else_=0.0)
    down = case((c.treated == 1, 0.0), else_=1.0 / (1.0 - c.propensity))
    sums = {"effect": up - down, "square": up * up + down * down, "control": down}
    columns = [cast(func.sum(term), Float).label(name) for name, term in sums.items()]
    query = _purchases(surface, visits.periods, c.item_id, *columns).group_by(c.item_id)
    items = []
    for row in store.rows(query.having(func.count() >= MIN_PURCHASES)):
        effect = row["effect"] / n
        error = 1.96 * math.sqrt(max(0.0, row["square"] / n - effect**2) / n)
        figures = {"effect": effect, "low": effect - error, "high": effect + error, "control": row["control"] / n}
        items.append({"item": row["item_id"], **figures})
    return items


def _overlap(store: Store, surface: Surface, visits: Visits) -> list[tuple[str, int, float, list[int]]]:
    """Purchases of shown and of other items: how many, how many after weighting (Kish), and their π."""
    c = tables.positives.c
    weight = case((c.treated == 1, 1.0 / c.propensity), else_=1.0 / (1.0 - c.propensity))
    place = case(*((c.propensity < edge, n) for n, edge in enumerate(EDGES[1:])), else_=len(EDGES) - 2)
    sums = (func.count().label("count"), func.sum(weight).label("sum"), func.sum(weight * weight).label("square"))
    columns = (c.treated, place.label("place"))
    rows = store.rows(
        _purchases(surface, visits.periods[-OVERLAP_PERIODS:], *columns, *sums).group_by(c.treated, place)
    )
    arms = []
    for name, treated in (("shown", 1), ("not shown", 0)):
        own = {row["place"]: row for row in rows if row["treated"] == treated}
        counts = [own[place]["count"] if place in own else 0 for place in range(len(EDGES) - 1)]
        total, square = (sum(row[column] for row in own.values()) for column in ("sum", "square"))
        arms.append((name, sum(counts), total**2 / square if own else 0.0, counts))
    return arms


def _purchases(surface: Surface, periods: list[int], *columns: Any) -> Any:
    """A query about what was bought after lists of a surface, since the first of the periods."""
    results = tables.results
    mine = (results.c.surface == surface.name) & results.c.arm.in_(RECOMMENDED)
    joined = tables.positives.join(results, results.c.decision == tables.positives.c.decision)
    return select(*columns).select_from(joined).where(mine & (results.c.period >= min(periods, default=0)))


def render(store: Store, figures: Figures, names: list[str], now: float) -> str:
    """The page of one surface, with links to the others."""
    surface = figures.surface
    period = f"{surface.period} seconds" if surface.period.isdigit() else surface.period
    state = f"{surface.policy.k} slots per {period}, {'on' if surface.enabled else 'OFF'}, {_date(now)} UTC"
    blocks = [page.text(state)]
    if len(names) > 1:
        blocks.append(page.links([(f"/?surface={name}", name) for name in names]))
    blocks += [page.verdict("poor", "Alert", text) for text in figures.alerts]
    grids = [_arms(figures), *_item_tables(figures), *_lists(store, surface)]
    blocks += [_summary(figures), page.group("panels", _charts(figures)), page.group("tables", grids)]
    return page.render(surface.name, blocks, broad=True)


def _summary(figures: Figures) -> Block:
    share = "–" if math.isnan(figures.explored) else f"{figures.explored:.0%}"
    lines = {
        "Extra purchases so far": (figures.extra, f"in {figures.visits.rows('recommended').sum():,} visits"),
        "Caused per visit": (figures.lift.last, "items not shown are the control"),
        "Against the hold-out, per visit": (figures.holdout.last, f"{figures.surface.holdout:.0%} of users held out"),
        "Cost of exploration, per visit": (figures.cost.last, f"{share} of the slots explore"),
    }
    rows = []
    for name, ((estimate, low, high), note) in lines.items():
        between = f"{number(low, '+')} to {number(high, '+')}" if math.isfinite(low) else "not enough users yet"
        rows.append([Cell(name), Cell(number(estimate, "+")), Cell(between), Cell(note)])
    note = "Intervals are 95% and valid at any time: look as often as you like. Those of items are for one look."
    return page.grid(["Purchases", "Estimate", "Interval", ""], rows, note)


def _effect(estimate: float, low: float, high: float) -> Cell:
    return Cell(number(estimate, "+"), f"{number(low, '+')} to {number(high, '+')}")


def _arms(figures: Figures) -> Block:
    rows = []
    for arm, lift in figures.arms.items():
        purchases = figures.visits.purchases[figures.visits.rows(arm)]
        without_lists = arm == "holdout" and figures.surface.holdout_model is None
        counts = [arm, f"{figures.visits.users_of(arm):,}", f"{len(purchases):,}", number(purchases.mean())]
        rows.append([*map(Cell, counts), Cell("–") if without_lists else _effect(*lift.last)])
    return page.grid(["Arm", "Users", "Visits", "Purchases per visit", "Caused per visit"], rows, "Arms")


def _item_tables(figures: Figures) -> list[Block]:
    blocks = []
    for title, items in (("They work because they are shown", figures.working), ("They sell anyway", figures.anyway)):
        rows = []
        for item in items:
            effect, low, high, control = (1000 * item[name] for name in ("effect", "low", "high", "control"))
            rows.append([Cell(item["item"]), _effect(effect, low, high), Cell(number(control))])
        columns = ["Item", "Caused, per 1,000 showings", "Without, per 1,000 visits"]
        blocks.append(page.grid(columns, rows, title if rows else f"{title}: not enough purchases yet"))
    return blocks


def _lists(store: Store, surface: Surface) -> list[Block]:
    """The latest models, and what happened."""
    roles = {surface.challenger: "challenger", surface.incumbent: "incumbent"}
    models = [
        [row["version"], row["learner"], f"{row['items']:,}", _date(row["created"]), roles.get(row["version"], "")]
        for row in list_models(store, 12)
    ]
    events = [
        [_date(row["time"]), row["event"], row["model"] or "", row["reason"]]
        for row in read_history(store, 25, surface.name)
    ]
    return [
        page.table(pd.DataFrame(models, columns=["Version", "Learner", "Items", "Stored", "Role"]), "Models"),
        page.table(pd.DataFrame(events, columns=["Time", "Event", "Model", "Reason"]), "History"),
    ]


def _charts(figures: Figures) -> list[Block]:
    """Lift over time, challenger − incumbent, arms and overlap, as far as there is something to show."""
    surface, periods, charts = figures.surface, figures.visits.periods, []
    if periods:
        lift = {"items not shown as control": figures.lift, "against the hold-out": figures.holdout}
        arms = {arm: sequence for arm, sequence in figures.arms.items() if arm in RECOMMENDED}
        charts.append((_bands(surface, periods, lift, "Lift over time"), "Caused purchases per visit over time"))
        charts.append((_bands(surface, periods, arms, "Arms"), "Caused purchases per visit of each arm over time"))
    if figures.comparison is not None and figures.comparison.periods:
        lines = {f"{surface.unit} per visit": figures.comparison.lift}
        title = "Challenger − incumbent: promoted above 0, demoted below"
        charts.append((_bands(surface, figures.comparison.periods, lines, "Challenger − incumbent"), title))
    if any(purchases for _, purchases, _, _ in figures.overlap):
        charts.append((_bars(figures), "Purchases by the probability of having been shown"))
    return [page.chart(drawing, caption) for drawing, caption in charts]


def _bands(surface: Surface, periods: list[int], lines: dict[str, ConfidenceSequence], title: str) -> alt.LayerChart:
    """Lines with bands over periods; parts that are not finite are left out."""
    times = [1000 * surface.periods.start(number) for number in periods]
    frames = [
        pd.DataFrame({"period": times, "line": name, "estimate": each.estimate, "low": each.low, "high": each.high})
        for name, each in lines.items()
    ]
    frame = pd.concat(frames).replace([np.inf, -np.inf], np.nan).dropna(subset="estimate")
    bounded = frame.dropna()
    x = alt.X("period:T", title=None, scale=alt.Scale(type="utc"))
    color = alt.Color("line:N", sort=list(lines), legend=alt.Legend(symbolOpacity=1, columns=1, labelLimit=400))
    # early bands are wide: the axis has the estimates, the last bands and 0
    last = bounded[bounded["period"] == times[-1]]
    ends = np.concatenate([frame["estimate"], last["low"], last["high"], [0.0]])
    domain = alt.Scale(domain=[ends.min(), ends.max() if ends.max() > ends.min() else 1.0], nice=True)
    band = alt.Chart(bounded).mark_area(fillOpacity=0.16, clip=True).encode(
        x, alt.Y("low:Q", scale=domain, title=None), alt.Y2("high:Q"), color
    )  # fmt: skip
    line = alt.Chart(frame).mark_line(point={"size": 12}).encode(x, alt.Y("estimate:Q", scale=domain), color)
    zero = alt.Chart(pd.DataFrame({"y": [0.0]})).mark_rule(opacity=0.6).encode(y="y:Q")
    return (zero + band + line).properties(title=title)


def _bars(figures: Figures) -> alt.Chart:
    """Purchases of shown and of other items, by π: both everywhere means that effects can be learned."""
    bins = [f"{low:g}–{high:g}" for low, high in pairwise(EDGES)]
    labels = [
        f"{name}: {purchases:,} purchases, worth {number(effective)} after weighting"
        for name, purchases, effective, _ in figures.overlap
    ]
    frames = [
        pd.DataFrame({"probability": bins, "purchases": counts, "items": label})
        for label, (_, _, _, counts) in zip(labels, figures.overlap, strict=True)
    ]
    legend = alt.Legend(columns=1, labelLimit=400)
    return alt.Chart(pd.concat(frames), title=f"Overlap, last {OVERLAP_PERIODS} periods").mark_bar().encode(
        alt.X("probability:N", sort=bins, title="probability of having been shown", axis=alt.Axis(labelAngle=-45)),
        alt.Y("purchases:Q", title="purchases"),
        alt.Color("items:N", sort=labels, legend=legend),
        alt.XOffset("items:N", sort=labels),
    )  # fmt: skip


def number(value: float, sign: str = "") -> str:
    """Three significant digits; "–" where there is nothing to say yet."""
    if not math.isfinite(value):
        return "–"
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:{sign},.{digits}f}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
