"""The dashboard: one page per surface, drawn by the background job from figures that settlement has stored."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import altair as alt
import numpy as np
import pandas as pd
from sqlalchemy import func, select

from taurank.report import page
from taurank.report.page import Block, Cell
from taurank.serve import tables
from taurank.serve.gate import PATIENCE, difference, mismatch
from taurank.serve.lift import Interval, Measure
from taurank.serve.models import list_models
from taurank.serve.recorder import Row
from taurank.serve.retrain import MIN_EFFECTIVE
from taurank.serve.settlement import read_measures
from taurank.serve.store import Store
from taurank.serve.surfaces import Surface, read_history

PERIODS = 90  # that the charts look back
RECENT_PERIODS = 14  # whose range is called usual, and whose overlap is shown
PROMOTIONS = ("promoted", "rolled back")
MIN_PURCHASES = 30  # of an item before it is listed


@dataclass(frozen=True)
class Settled:
    """The stored figures of a period."""

    number: int
    arms: dict[str, dict[str, float]]
    intervals: dict[str, list[float]]
    lists: int
    outcomes: int
    overlap: dict[str, dict[str, float]]
    challenger: str | None = None

    @property
    def visits(self) -> int:
        return round(sum(sums["visits"] for sums in self.arms.values()))


@dataclass(frozen=True)
class Figures:
    """What the page shows of a surface."""

    surface: Surface
    periods: list[Settled]  # the last ones
    now: int  # the running period
    running: dict[str, int]  # its visits and outcomes so far
    life: Measure
    trial: Measure | None
    overlap: dict[str, float]  # purchases of items "shown" and "not shown", after weighting
    items: list[Row]
    models: list[Row]
    history: list[Row]

    @property
    def gain(self) -> Interval:
        """Caused by all lists so far, in purchases or in value."""
        visits = self.life.arm("recommended").visits
        return Interval(*(end * visits for end in self.life.interval(f"recommended {self.surface.compared}")))


def draw(store: Store, surface: Surface, names: list[str], now: float) -> tuple[str, str]:
    """The page of a surface, and what is to be inserted at its top if the job has stopped."""
    alert = (
        "The background job has stopped: no period is settled, no challenger is judged, and this page is that of "
        f"{_date(now)} UTC."
    )
    return render(gather(store, surface, now), names, now), page.verdict("poor", "Alert", alert)


def gather(store: Store, surface: Surface, now: float) -> Figures:
    """The figures of a surface: sums that settlement has stored, and two counts of the running period."""
    number, settled = surface.periods.number(now), tables.settled.c
    with store.read() as connection:
        query = select(settled.period, settled.figures).where(settled.surface == surface.name)
        rows = connection.execute(query.order_by(settled.period.desc()).limit(PERIODS)).all()
        measures = read_measures(connection, surface.name)
        decisions, outcomes = tables.decisions.c, tables.outcomes.c
        mine = (decisions.surface == surface.name) & (decisions.period == number)
        bought = outcomes.time >= surface.periods.start(number)
        running = {
            "visits": connection.scalar(select(func.count(decisions.period)).where(mine)) or 0,
            "outcomes": connection.scalar(select(func.count(outcomes.time)).where(bought)) or 0,
        }
    names = {each.name for each in fields(Settled)}
    stored = [(row[0], json.loads(row[1])) for row in reversed(rows)]
    periods = [Settled(key, **{name: each[name] for name in names & each.keys()}) for key, each in stored]
    life = measures["life"]
    return Figures(
        surface, periods, number, running, life, measures.get("trial"), _overlap(periods[-RECENT_PERIODS:]),
        _items(store, surface, life.arm("recommended").visits), list_models(store, 12),
        read_history(store, 25, surface.name),
    )  # fmt: skip


def _overlap(periods: list[Settled]) -> dict[str, float]:
    """Kish's effective number of purchases of shown and of other items."""
    effective = {}
    for arm in ("shown", "not shown"):
        total, square = (sum(period.overlap[arm][name] for period in periods) for name in ("sum", "square"))
        effective[arm] = total**2 / square if square else 0.0
    return effective


def _items(store: Store, surface: Surface, visits: int) -> list[Row]:
    """Each item's effect of being shown, per visit, with an ordinary 95% interval, and what it sells without."""
    table, n, items = tables.item_sums, max(1, visits), []
    for row in store.rows(
        select(table).where((table.c.surface == surface.name) & (table.c.purchases >= MIN_PURCHASES))
    ):
        effect = (row["shown"] - row["unshown"]) / n
        variance = max(row["square"] / n - effect**2, row["chance"] / n)
        error = 1.96 * math.sqrt(variance / n)
        ends = {"effect": effect, "low": effect - error, "high": effect + error}
        items.append({"item": row["item_id"], **ends, "control": row["unshown"] / n})
    return items


def render(figures: Figures, names: list[str], now: float) -> str:
    """The page of one surface, with links to the others: three questions first, then what answers them."""
    surface = figures.surface
    state = f"{surface.policy.k} slots per {_period(surface)}, {'on' if surface.enabled else 'OFF'}, {_date(now)} UTC"
    blocks = [page.text(state)]
    if len(names) > 1:
        blocks.append(page.links([(f"/?surface={name}", name) for name in names]))
    blocks += [page.verdict(*working(figures)), page.verdict(*gained(figures)), page.verdict(*advice(figures))]
    tables_ = [_arms(figures), *_item_tables(figures), *_lists(figures)]
    blocks += [page.group("panels", _charts(figures)), page.group("tables", tables_)]
    return page.render(surface.name, blocks, broad=True)


def working(figures: Figures) -> tuple[str, str, str]:
    """Is it working today? The last settled period beside the usual range of those before it."""
    question, surface = "Is it working today?", figures.surface
    running = (
        f"So far in this period: {figures.running['visits']:,} visits, {figures.running['outcomes']:,} outcomes."
    )
    if not surface.enabled:
        return "poor", question, f"No: recommendations are switched off. {running}"
    if surface.incumbent is None:
        return "poor", question, f"No: there is no model yet. {running}"
    if not figures.periods:
        text = (
            f"No period has been settled yet: figures appear after the first {_period(surface)} has ended. {running}"
        )
        return "caution", question, text
    *before, last = figures.periods
    parts, low = [], []
    for name in ("visits", "lists", "outcomes"):
        value, usual = getattr(last, name), [getattr(period, name) for period in before[-RECENT_PERIODS:]]
        told = f"{value:,} {name}"
        if len(usual) >= 3:
            told += f" (usually {min(usual):,} to {max(usual):,})"
            if value < min(usual) / 2:
                low.append(name)
        parts.append(told)
    text = f"{_named(surface, last.number)}: {', '.join(parts)}. {running}"
    if low:
        return "poor", question, f"Something broke: far fewer {' and '.join(low)} than usual. {text}"
    if not last.outcomes:
        return "poor", question, f"Lists are shown, but no outcome arrives: send them to /v1/outcomes. {text}"
    if last.number < figures.now - 2 and not figures.running["visits"]:
        return "caution", question, f"Nobody has asked for a list since. {text}"
    return "good", question, f"Yes. {text}"


def gained(figures: Figures) -> tuple[str, str, str]:
    """How much did we gain? Against the items not shown, and against the hold-out."""
    question, surface = "How much did we gain?", figures.surface
    gain, lists = figures.gain, figures.life.arm("recommended")
    since = _named(surface, figures.life.since)
    if not math.isfinite(gain.low):
        need = "at least 100 users and enough purchases of items with and without being shown"
        return (
            "caution",
            question,
            f"It cannot be said yet: an interval needs {need} ({lists.visits:,} visits so far).",
        )
    unit = "purchases" if figures.surface.compared == "lift" else "in value"
    text = f"{number(gain.estimate, '+')} {unit} ({_between(gain)}) in {lists.visits:,} visits since {since}"
    without = lists.total("purchases") - lists.total("lift")
    if without > 0:
        text += f"; purchases {lists.total('lift') / without:+.1%} on what would have been bought anyway"
    holdout = figures.life.interval("holdout")
    if math.isfinite(holdout.low):
        text += f". Against the hold-out: {number(holdout.estimate, '+')} purchases per visit ({_between(holdout)})"
    kind = "good" if gain.low > 0 else "poor" if gain.high < 0 else "caution"
    if gain.high < 0:
        text = f"The lists cause fewer purchases, not more: {text}"
    return kind, question, f"{text}."


def advice(figures: Figures) -> tuple[str, str, str]:
    """What should I do? The first thing that applies."""
    surface, question = figures.surface, "What should I do?"
    if surface.incumbent is None:
        upload = "taurank server model promote $(taurank server model upload MODEL)"
        return "poor", question, f"Upload a fitted model and promote it: {upload} --surface {surface.name}."
    if not surface.enabled:
        return "caution", question, f"Turn it on again: taurank server surface switch on --surface {surface.name}."
    if figures.trial is not None and (found := mismatch(surface, figures.trial)):
        text = f"Nothing is promoted: {found}. Find out whose requests or outcomes are missing."
        return "poor", question, text
    if figures.gain.high < 0:
        return "poor", question, "Go back to the previous model (taurank server model rollback), or switch it off."
    if figures.trial is not None:
        left = max(0, PATIENCE - figures.trial.periods)
        ends = difference(surface, figures.trial)
        text = (
            f"Wait: '{surface.challenger}' is on trial, {figures.trial.periods} periods so far, {left} at most to go"
        )
        if math.isfinite(ends.low):
            text += f" (challenger − incumbent {_between(ends)} {surface.unit} per visit)"
        return "good", question, f"{text}. It is promoted or demoted by itself."
    if len(figures.periods) < 2:
        return "good", question, "Nothing: wait for the first settled periods."
    thin = [arm for arm, effective in figures.overlap.items() if effective < MIN_EFFECTIVE]
    if thin:
        text = (
            f"Overlap is missing: too few purchases of items {' and '.join(thin)} to learn effects from. Wait, or "
            f"show more variety: a higher temperature, a lower ceiling (taurank server surface set {surface.name})."
        )
        return "caution", question, text
    holdout = figures.life.interval("holdout")
    if surface.holdout and len(figures.periods) >= RECENT_PERIODS and not math.isfinite(holdout.low):
        text = f"The hold-out of {surface.holdout:.0%} is too small to say anything; raise it, or do without (0)."
        return "caution", question, text
    command = f"taurank server retrain --surface {surface.name}"
    return "good", question, f"Nothing is wrong. No challenger is on trial; learn from the log: {command}."


def _effect(ends: Interval) -> Cell:
    return Cell(number(ends.estimate, "+"), _between(ends) if math.isfinite(ends.low) else "")


def _arms(figures: Figures) -> Block:
    """The arms of the trial, or all lists and the hold-out."""
    measure = figures.trial or figures.life
    rows = []
    for arm, totals in measure.arms.items():
        purchases = totals.total("purchases") / totals.visits if totals.visits else math.nan
        counts = [arm, f"{totals.users:,}", f"{totals.visits:,}", number(purchases)]
        rows.append([*map(Cell, counts), _effect(measure.interval(f"{arm} lift")) if arm != "holdout" else Cell("–")])
    caption = (
        f"Arms since {_named(figures.surface, measure.since)}. Items not shown are the control. Intervals are "
        "95% and valid at any time: look as often as you like; those of items are for one look."
    )
    return page.grid(["Arm", "Users", "Visits", "Purchases per visit", "Caused per visit"], rows, caption)


def _item_tables(figures: Figures) -> list[Block]:
    """Items that sell because they are shown, and items that sell anyway."""
    because = sorted((row for row in figures.items if row["low"] > 0), key=lambda row: -row["low"])[:8]
    anyway = sorted((row for row in figures.items if row["low"] <= 0), key=lambda row: -row["control"])[:8]
    blocks = []
    for title, items in (("They work because they are shown", because), ("They sell anyway", anyway)):
        rows = []
        for item in items:
            effect, low, high, control = (1000 * item[name] for name in ("effect", "low", "high", "control"))
            rows.append([Cell(item["item"]), _effect(Interval(effect, low, high)), Cell(number(control))])
        columns = ["Item", "Caused, per 1,000 showings", "Without, per 1,000 visits"]
        if rows:
            blocks.append(page.grid(columns, rows, title))
    if not figures.items:
        blocks.append(page.text(f"Items are listed here from {MIN_PURCHASES} purchases of an item on, after lists."))
    return blocks


def _lists(figures: Figures) -> list[Block]:
    """The latest models, and what happened."""
    roles = {figures.surface.challenger: "challenger", figures.surface.incumbent: "incumbent"}
    models = [
        [row["version"], row["learner"], f"{row['items']:,}", _date(row["created"]), roles.get(row["version"], "")]
        for row in figures.models
    ]
    events = [[_date(row["time"]), row["event"], row["model"] or "", row["reason"]] for row in figures.history]
    return [
        page.table(pd.DataFrame(models, columns=["Version", "Learner", "Items", "Stored", "Role"]), "Models"),
        page.table(pd.DataFrame(events, columns=["Time", "Event", "Model", "Reason"]), "History"),
    ]


def _charts(figures: Figures) -> list[Block]:
    """Lift over time, challengers against incumbents, and traffic, as far as there is something to show."""
    surface, column, charts = figures.surface, figures.surface.compared, []
    lines = {f"life recommended {column}": "items not shown as control"}
    if column == "lift":
        lines["life holdout"] = "against the hold-out"
    counted = [period for period in figures.periods if period.number >= figures.life.since]
    lift = [(period, line, period.intervals.get(key)) for key, line in lines.items() for period in counted]
    compared = f"trial difference {column}"
    trials = [(period, period.challenger or "", period.intervals.get(compared)) for period in figures.periods]
    for rows, title, caption in (
        (lift, "Lift over time", f"{surface.unit} per visit over time, with promotions"),
        (trials, "Challenger − incumbent",
         "Each challenger against the incumbent of its time: promoted above 0, demoted below"),
    ):  # fmt: skip
        if any(ends is not None for _, _, ends in rows):
            charts.append(page.chart(_bands(figures, rows, title), caption))
    if figures.periods:
        charts.append(page.chart(_counts(figures), "Visits and outcomes of each period"))
    return charts


_TIME = alt.X("period:T", title=None, scale=alt.Scale(type="utc"))


def _bands(figures: Figures, ends_of: Sequence[tuple[Settled, str, Any]], title: str) -> alt.LayerChart:
    """Lines with bands over the periods; parts that are not finite are left out."""
    start = figures.surface.periods.start
    rows = [(1000 * start(period.number), line, *ends) for period, line, ends in ends_of if ends is not None]
    frame = pd.DataFrame(rows, columns=["period", "line", "estimate", "low", "high"])
    frame = frame.replace([np.inf, -np.inf], np.nan).dropna(subset="estimate")
    bounded = frame.dropna()
    color = alt.Color(
        "line:N", sort=frame["line"].unique().tolist(), legend=alt.Legend(symbolOpacity=1, columns=1, labelLimit=400)
    )
    # early bands are wide: the axis has the estimates, the last bands and 0
    last = bounded[bounded["period"] == bounded["period"].max()]
    ends = np.concatenate([frame["estimate"], last["low"], last["high"], [0.0]])
    domain = alt.Scale(domain=[ends.min(), ends.max() if ends.max() > ends.min() else 1.0], nice=True)
    axis = alt.Axis(format=",~r")  # plain numbers
    band = alt.Chart(bounded).mark_area(fillOpacity=0.16, clip=True).encode(
        _TIME, alt.Y("low:Q", scale=domain, title=None, axis=axis), alt.Y2("high:Q"), color
    )  # fmt: skip
    line = alt.Chart(frame).mark_line(point={"size": 12}).encode(_TIME, alt.Y("estimate:Q", scale=domain), color)
    zero = alt.Chart(pd.DataFrame({"y": [0.0]})).mark_rule(opacity=0.6).encode(y="y:Q")
    events = [1000 * row["time"] for row in figures.history if row["event"] in PROMOTIONS]
    events = [when for when in events if when >= frame["period"].min()]
    marks = alt.Chart(pd.DataFrame({"period": events})).mark_rule(strokeDash=[4, 3], opacity=0.6).encode(_TIME)
    return (zero + marks + band + line if events else zero + band + line).properties(title=title)


def _counts(figures: Figures) -> alt.Chart:
    rows = [
        (1000 * figures.surface.periods.start(period.number), name, getattr(period, name))
        for period in figures.periods
        for name in ("visits", "outcomes")
    ]
    frame = pd.DataFrame(rows, columns=["period", "line", "count"])
    count = alt.Y("count:Q", title=None, axis=alt.Axis(format=",~r"))
    color = alt.Color("line:N", sort=["visits", "outcomes"])
    return alt.Chart(frame, title="Traffic").mark_line(point={"size": 12}).encode(_TIME, count, color)


def number(value: float, sign: str = "") -> str:
    """Three significant digits; "–" where there is nothing to say yet."""
    if not math.isfinite(value):
        return "–"
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:{sign},.{digits}f}"


def _between(ends: Sequence[float]) -> str:
    return f"{number(ends[1], '+')} to {number(ends[2], '+')}"


def _period(surface: Surface) -> str:
    return f"{surface.period} seconds" if surface.period.isdigit() else surface.period


def _named(surface: Surface, number: int) -> str:
    """The beginning of a period on the clocks of the surface."""
    start = datetime.fromtimestamp(surface.periods.start(number), ZoneInfo(surface.timezone))
    return f"{start:%Y-%m-%d}" if surface.period in ("day", "week") else f"{start:%Y-%m-%d %H:%M}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
