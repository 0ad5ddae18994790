"""The dashboard: one page per surface with the figures of its settled periods, made by `taurank.report`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import altair as alt
import numpy as np
import pandas as pd
from sqlalchemy import Float, case, cast, func, select

from taurank._types import Mask
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


@dataclass(frozen=True)
class Figures:
    """Everything the page shows about a surface."""

    surface: Surface
    visits: Visits
    lift: ConfidenceSequence
    holdout: ConfidenceSequence
    comparison: Comparison | None
    explored: float
    cost: ConfidenceSequence
    arms: dict[str, ConfidenceSequence]
    overlap: list[tuple[str, int, float, list[int]]]
    working: list[Row]
    anyway: list[Row]
    models: list[Row]
    history: list[Row]

    @property
    def drawn(self) -> Mask:
        """The visits with a list."""
        return np.isin(self.visits.arm, RECOMMENDED)

    @property
    def extra(self) -> tuple[float, ...]:
        """Purchases caused so far: estimate, low, high."""
        return tuple(end * int(np.count_nonzero(self.drawn)) for end in self.lift.last)

    @property
    def alerts(self) -> list[str]:
        alerts = []
        if not self.surface.enabled:
            alerts.append("Recommendations are switched off.")
        if self.surface.incumbent is None:
            alerts.append("There is no model yet.")
        if self.comparison is not None and self.comparison.mismatch:
            alerts.append(f"Nothing is promoted: {self.comparison.mismatch}.")
        if self.lift.last[2] < 0:
            alerts.append("The lists cause fewer purchases, not more.")
        if not self.visits.periods:
            alerts.append("No period has been settled yet: figures appear after the first one has ended.")
        return alerts


def draw(address: str, name: str | None, now: float) -> str:
    """The page of a surface, or of the first one."""
    store = _opened(address)
    surfaces = Surfaces(store)
    every = surfaces.all()
    figures = gather(store, surfaces.get(name or every[0].name)) if name or every else None
    return render(figures, every, now)


_opened = cache(Store)


def gather(store: Store, surface: Surface) -> Figures:
    """The figures of a surface, from settled periods."""
    visits = read_visits(store, surface.name, last=PERIODS)
    drawn = np.isin(visits.arm, RECOMMENDED)
    explored = visits.explored[drawn & ~np.isnan(visits.explored)]
    items = _items(store, surface, visits)
    return Figures(
        surface=surface,
        visits=visits,
        lift=arm_lift(visits, "recommended"),
        holdout=against_holdout(visits, "recommended"),
        comparison=None if surface.challenger is None else compare_challenger(store, surface),
        explored=float(explored.mean()) if len(explored) else math.nan,
        cost=confidence(visits.means("recommended", "missed")),
        arms={arm: arm_lift(visits, arm) for arm in ("holdout", *RECOMMENDED) if (visits.arm == arm).any()},
        overlap=_overlap(store, surface, visits),
        working=sorted(items, key=lambda row: -row["low"])[:8],
        anyway=sorted((row for row in items if row["low"] <= 0), key=lambda row: -row["control"])[:8],
        models=list_models(store, 12),
        history=read_history(store, 25, surface.name),
    )


def _items(store: Store, surface: Surface, visits: Visits) -> list[Row]:
    """Each item's effect of being shown, per visit, with an ordinary 95% interval, and what it sells without."""
    table, n = tables.positives, max(1, int(np.isin(visits.arm, RECOMMENDED).sum()))
    treated, control = case((table.c.treated == 1, 1.0), else_=0.0), case((table.c.treated == 1, 0.0), else_=1.0)
    up, down = treated / table.c.propensity, control / (1.0 - table.c.propensity)
    columns = (
        table.c.item_id,
        func.count().label("purchases"),
        cast(func.sum(up - down), Float).label("effect"),
        cast(func.sum(up * up + down * down), Float).label("square"),
        cast(func.sum(down), Float).label("control"),
    )
    joined = table.join(tables.results, tables.results.c.decision == table.c.decision)
    mine = (tables.results.c.surface == surface.name) & tables.results.c.arm.in_(RECOMMENDED)
    mine &= tables.results.c.period >= (visits.periods[0] if visits.periods else 0)
    grouped = select(*columns).select_from(joined).where(mine).group_by(table.c.item_id)
    items = []
    for row in store.rows(grouped.having(func.count() >= MIN_PURCHASES)):
        effect = row["effect"] / n
        error = 1.96 * math.sqrt(max(0.0, row["square"] / n - effect**2) / n)
        figures = {"effect": effect, "low": effect - error, "high": effect + error, "control": row["control"] / n}
        items.append({"item": row["item_id"], "purchases": row["purchases"], **figures})
    return items


def _overlap(store: Store, surface: Surface, visits: Visits) -> list[tuple[str, int, float, list[int]]]:
    """Purchases of shown and of other items: how many, how many after weighting (Kish), and their π."""
    table = tables.positives
    weight = case((table.c.treated == 1, 1.0 / table.c.propensity), else_=1.0 / (1.0 - table.c.propensity))
    place = case(*((table.c.propensity < edge, n) for n, edge in enumerate(EDGES[1:])), else_=len(EDGES) - 2)
    sums = (func.count().label("count"), func.sum(weight).label("sum"), func.sum(weight * weight).label("square"))
    joined = table.join(tables.results, tables.results.c.decision == table.c.decision)
    mine = tables.results.c.surface == surface.name
    mine &= tables.results.c.period.in_(visits.periods[-OVERLAP_PERIODS:])
    query = select(table.c.treated, place.label("place"), *sums).select_from(joined).where(mine)
    rows = store.rows(query.group_by(table.c.treated, place))
    arms = []
    for name, treated in (("shown", 1), ("not shown", 0)):
        own = {row["place"]: row for row in rows if row["treated"] == treated}
        counts = [own[place]["count"] if place in own else 0 for place in range(len(EDGES) - 1)]
        total, square = (sum(row[column] for row in own.values()) for column in ("sum", "square"))
        arms.append((name, sum(counts), total**2 / square if own else 0.0, counts))
    return arms


def render(figures: Figures | None, surfaces: list[Surface], now: float) -> str:
    """The page of one surface; without any surface it says how to create one."""
    if figures is None:
        text = "There is no surface yet. Create one: taurank server surface set home"
        return page.render("taurank", [page.text(text)])
    surface = figures.surface
    period = f"{surface.period} seconds" if surface.period.isdigit() else surface.period
    state = f"{surface.policy.k} slots per {period}, {'on' if surface.enabled else 'OFF'}, {_date(now)} UTC"
    blocks = [page.text(state)]
    if len(surfaces) > 1:
        blocks.append(page.links([(f"/?surface={each.name}", each.name) for each in surfaces]))
    blocks += [page.verdict("poor", "Alert", text) for text in figures.alerts]
    blocks += [_summary(figures), page.group("panels", _charts(figures)), page.group("tables", _tables(figures))]
    return page.render(surface.name, blocks, broad=True)


def _summary(figures: Figures) -> Block:
    def row(name: str, sequence: tuple[float, ...], note: str) -> list[Cell]:
        estimate, low, high = sequence
        between = f"{number(low, '+')} to {number(high, '+')}" if math.isfinite(low) else "not enough users yet"
        return [Cell(name), Cell(number(estimate, "+")), Cell(between), Cell(note)]

    surface, share = figures.surface, "–" if math.isnan(figures.explored) else f"{figures.explored:.0%}"
    rows = [
        row("Extra purchases so far", figures.extra, f"in {np.count_nonzero(figures.drawn):,} visits"),
        row("Caused per visit", figures.lift.last, "items not shown are the control"),
        row(
            "Against the hold-out, per visit",
            figures.holdout.last,
            f"{surface.holdout:.0%} of users held out",
        ),
        row("Cost of exploration, per visit", figures.cost.last, f"{share} of the slots explore"),
    ]
    note = "Intervals are 95% and valid at any time: look as often as you like. Those of items are for one look."
    return page.grid(["Purchases", "Estimate", "Interval", ""], rows, note)


def _tables(figures: Figures) -> list[Block]:
    surface, visits = figures.surface, figures.visits

    def effect(row: tuple[float, ...]) -> Cell:
        return Cell(number(row[0], "+"), f"{number(row[1], '+')} to {number(row[2], '+')}")

    arms = []
    for arm, lift in figures.arms.items():
        mine = visits.arm == arm
        caused = Cell("–") if surface.model(arm) is None and arm == "holdout" else effect(lift.last)
        counts = [f"{visits.users_of(arm):,}", f"{mine.sum():,}", number(visits.purchases[mine].mean())]
        arms.append([Cell(arm), *map(Cell, counts), caused])
    blocks = [page.grid(["Arm", "Users", "Visits", "Purchases per visit", "Caused per visit"], arms, "Arms")]
    columns = ["Item", "Caused, per 1,000 showings", "Without, per 1,000 visits"]
    for title, items in (("They work because they are shown", figures.working), ("They sell anyway", figures.anyway)):
        rows = [
            [
                Cell(item["item"]), effect(tuple(1000 * item[name] for name in ("effect", "low", "high"))),
                Cell(number(1000 * item["control"])),
            ]
            for item in items
        ]  # fmt: skip
        blocks.append(page.grid(columns, rows, title if rows else f"{title}: not enough purchases yet"))
    roles = {surface.challenger: "challenger", surface.incumbent: "incumbent"}
    models = [
        [row["version"], row["learner"], f"{row['items']:,}", _date(row["created"]), roles.get(row["version"], "")]
        for row in figures.models
    ]
    events = [[_date(row["time"]), row["event"], row["model"] or "", row["reason"]] for row in figures.history]
    for names, texts, title in (
        (["Version", "Learner", "Items", "Stored", "Role"], models, "Models"),
        (["Time", "Event", "Model", "Reason"], events, "History"),
    ):
        blocks.append(page.table(pd.DataFrame(texts, columns=names), title))
    return blocks


def _charts(figures: Figures) -> list[Block]:
    """Lift over time, challenger − incumbent, arms and overlap, as far as there is something to show."""
    surface, charts = figures.surface, []
    if figures.visits.periods:
        lift = {"items not shown as control": figures.lift, "against the hold-out": figures.holdout}
        arms = {arm: sequence for arm, sequence in figures.arms.items() if arm in RECOMMENDED}
        periods = figures.visits.periods
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
