"""Settled periods: what happened after each decision, what the lists caused, and all of it as a log.

Item i bought after a decision counts Y_i = 1. With Z_i = 1 if it was shown,

    lift = Σ_i [Z_i Y_i − (1 − Z_i) Y_i · π_i / (1 − π_i)]

has the expectation Σ_i π_i (μ^T_i − μ^C_i): the purchases that the list caused. Items that were *not* shown are
the control arm, and only bought items matter, so π is replayed only where something was bought. This assumes
that showing one item does not change the purchases of another; the hold-out, which does not assume it, is the
check.

The log has one row per item that was shown, or bought without being shown, with the recorded or replayed π. A user
who did not visit in a period has no decision and so no rows there; the visits, beside the log, say who did.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, delete, func, insert, select

from taurank._types import Floats
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.lift import COLUMNS, RECOMMENDED, Interval, Measure, chance_moments
from taurank.serve.recorder import Row
from taurank.serve.store import Conflict, upsert
from taurank.serve.surfaces import Surface

GRACE_SECONDS = 300.0  # outcomes may arrive late by this much, or by a period if that is shorter
ITEM_COLUMNS = ("purchases", "shown", "unshown", "square", "chance")

_CELLS = pa.schema({
    "user_id": pa.string(), "item_id": pa.string(), "time": pa.string(), "treated": pa.int8(), "outcome": pa.int8(),
    "propensity": pa.float64(), "value": pa.float64(),
})  # fmt: skip


def settle(decider: Decider, surface: Surface, now: float, grace: float = GRACE_SECONDS) -> int:
    """Settle all periods of a surface that have ended, one after the other; returns how many."""
    table, settled = tables.decisions, tables.settled
    ended = surface.periods.number(now - min(grace, surface.periods.seconds))  # the first period that has not
    done = select(func.coalesce(func.max(settled.c.period), -1)).where(settled.c.surface == surface.name)
    after = (table.c.surface == surface.name) & (table.c.period > done.scalar_subquery()) & (table.c.period < ended)
    count = 0
    while (
        number := decider.store.rows(select(func.min(table.c.period).label("first")).where(after))[0]["first"]
    ) is not None:
        if not _settle_period(decider, surface, number, now):
            break
        count += 1
    return count


def settle_again(decider: Decider, name: str, time: float, now: float) -> str:
    """Settle the period of a time again, for outcomes that arrived late; returns the period's name."""
    surface = decider.surfaces.get(name)
    number = surface.periods.number(time)
    if surface.periods.end(number) > now:
        raise InputError(f"the period {surface.periods.name(number)} has not ended yet.")
    _settle_period(decider, surface, number, now, again=True)
    return surface.periods.name(number)


def _settle_period(decider: Decider, surface: Surface, number: int, now: float, again: bool = False) -> bool:
    table, outcomes = tables.decisions, tables.outcomes
    mine = (table.c.surface == surface.name) & (table.c.period == number)
    decisions = decider.store.rows(select(table).where(mine).order_by(table.c.time, table.c.id))
    start, end = surface.periods.start(number), surface.periods.end(number)
    bought: dict[str, list[Row]] = defaultdict(list)
    for row in decider.store.rows(select(outcomes).where((outcomes.c.time >= start) & (outcomes.c.time < end))):
        bought[row["user_id"]].append(row)
    new = Settled()
    for decision in decisions:
        items = _items_after(decision["time"], bought.get(decision["user_id"], ()))
        new.add(surface, decision, items, decider.propensities_for(decision, items) if items else {})
    if again and not decisions:
        raise Conflict(f"no decision of the period {surface.periods.name(number)} is stored.")
    with decider.store.write() as connection:
        this = (tables.settled.c.surface == surface.name) & (tables.settled.c.period == number)
        settled = connection.scalar(select(tables.settled.c.period).where(this)) is not None
        if settled and not again:
            return False  # another process was faster
        if connection.scalar(select(func.count()).where(mine)) != len(decisions):
            return False  # one more was recorded meanwhile; the next round has it
        changes = [(1.0, new)]
        if settled:
            changes.append((-1.0, _take_back(connection, mine)))
            connection.execute(delete(tables.settled).where(this))
        for target, rows in ((tables.results, new.results), (tables.positives, new.positives)):
            if rows:
                connection.execute(insert(target), rows)
        figures = {
            "arms": new.by_arm(), "intervals": _measure(connection, surface, mine, number, changes, not settled),
            "lists": sum(row["shown"] != "[]" for row in decisions), "outcomes": sum(map(len, bought.values())),
            "overlap": new.overlap(), "challenger": surface.challenger,
        }  # fmt: skip
        row = {"surface": surface.name, "period": number, "time": now, "figures": json.dumps(figures)}
        connection.execute(insert(tables.settled), row)
    return True


def _items_after(time: float, events: Iterable[Row]) -> dict[str, float]:
    """What was bought after the decision, with its value; an item bought twice counts once."""
    items: dict[str, float] = defaultdict(float)
    for event in sorted(events, key=lambda row: (row["time"], row["item_id"], row["value"])):
        if event["time"] >= time:
            items[event["item_id"]] += event["value"]
    return items


def _take_back(connection: Connection, mine: Any) -> Settled:
    """What an earlier settlement wrote about these decisions, deleted."""
    ids, taken = select(tables.decisions.c.id).where(mine), []
    for table in (tables.results, tables.positives):
        own = table.c.decision.in_(ids)
        taken.append([dict(row) for row in connection.execute(select(table).where(own)).mappings()])
        connection.execute(delete(table).where(own))
    return Settled(*taken)


@dataclass
class Settled:
    """What became of the decisions of a period: one result each, and a row per bought item that was eligible."""

    results: list[Row] = field(default_factory=list)
    positives: list[Row] = field(default_factory=list)

    def add(self, surface: Surface, decision: Row, items: dict[str, float], propensity: dict[str, float]) -> None:
        """A decision after which these items were bought."""
        result = {name: decision[name] for name in ("surface", "period", "user_id", "arm", "model")}
        result |= {"decision": decision["id"], "purchases": float(len(items)), "lift": 0.0, "value": 0.0}
        shown = set(json.loads(decision["shown"])) if items else ()
        for item, value in items.items():
            if item in propensity:
                positive: Row = {"item_id": item, "treated": int(item in shown), "propensity": propensity[item]}
                self.positives.append({"decision": decision["id"], **positive, "value": value})
                caused = positive["propensity"] * effect(positive)
                result["lift"] += caused
                result["value"] += caused * surface.capped(value)
        self.results.append(result)

    def by_arm(self) -> dict[str, dict[str, float]]:
        """Visits, purchases, lift and value of each arm."""
        arms: dict[str, dict[str, float]] = {}
        for row in self.results:
            sums = arms.setdefault(row["arm"], dict.fromkeys(COLUMNS, 0.0))
            sums["visits"] += 1
            for column in COLUMNS[1:]:
                sums[column] += row[column]
        return arms

    def overlap(self) -> dict[str, dict[str, float]]:
        """Purchases of shown and of other items: how many, the sum of their weights, and that of the squares."""
        arms = {}
        for arm, treated in (("shown", 1), ("not shown", 0)):
            pi = np.array([row["propensity"] for row in self.positives if row["treated"] == treated])
            weight = 1 / (pi if treated else 1 - pi)
            sums = {"purchases": len(pi), "sum": weight.sum(), "square": (weight**2).sum()}
            arms[arm] = {name: float(value) for name, value in sums.items()}
        return arms


def effect(positive: Row) -> float:
    """Unbiased for τ of the bought item, over shown and not shown."""
    propensity: float = positive["propensity"]
    return 1 / propensity if positive["treated"] else -1 / (1 - propensity)


def read_measures(connection: Connection, surface: str) -> dict[str, Measure]:
    """The measures of a surface by name: "life", and "trial" while a challenger runs."""
    rows = connection.execute(select(tables.measures).where(tables.measures.c.surface == surface)).mappings()
    return {row["name"]: Measure.load(row["since"], row["body"]) for row in rows}


def _measure(
    connection: Connection, surface: Surface, mine: Any, number: int, changes: list[Change], look: bool
) -> dict[str, Interval]:
    """Add what is new of a period to the running sums; returns the intervals at its end."""
    intervals: dict[str, Interval] = {}
    for name, measure in read_measures(connection, surface.name).items():
        if number < measure.since:
            continue
        _add_users(connection, surface, name, measure, select(tables.decisions.c.user_id).where(mine), changes)
        if name == "life":
            _add_items(connection, surface.name, changes)
        if look:  # late outcomes count from the next look on: this one has been seen
            measure.periods += 1
            measure.look(surface.alpha)
        row = {"surface": surface.name, "name": name, "since": measure.since, "body": measure.dump()}
        upsert(connection, tables.measures, [row])
        intervals |= {f"{name} {key}": ends for key, ends in measure.last.items()}
    return intervals


def _add_users(
    connection: Connection, surface: Surface, name: str, measure: Measure, visitors: Any, changes: list[Change]
) -> None:
    """Change the sums of users, and with them those of their arms."""
    arms = {arm: arm if name == "trial" else "recommended" for arm in RECOMMENDED} | {"holdout": "holdout"}
    place: dict[tuple[str, str], int] = {}  # by arm and user
    for _, part in changes:
        for row in part.results:
            if row["arm"] in arms:
                place.setdefault((arms[row["arm"]], row["user_id"]), len(place))
    before, delta = np.zeros((len(place), len(COLUMNS))), np.zeros((len(place), len(COLUMNS)))
    for sign, part in changes:
        rows = [row for row in part.results if row["arm"] in arms]
        if rows:
            places = [place[arms[row["arm"]], row["user_id"]] for row in rows]
            np.add.at(delta, places, sign * np.array([[1.0, *(row[name] for name in COLUMNS[1:])] for row in rows]))
        arm_of = {row["decision"]: arms[row["arm"]] for row in rows}
        bought: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in part.positives:
            bought[arm_of[row["decision"]]].append((row["propensity"], surface.capped(row["value"])))
        for arm, pairs in bought.items():
            measure.arm(arm).chance += sign * chance_moments(*np.array(pairs).T)
    table = tables.user_sums
    here = (table.c.surface == surface.name) & (table.c.measure == name) & table.c.user_id.in_(visitors)
    query = select(table.c.arm, table.c.user_id, *(table.c[column] for column in COLUMNS)).where(here)
    for arm, user, *sums in connection.execute(query):
        if (arm, user) in place:
            before[place[arm, user]] = sums
    after, arm_names = before + delta, np.array([arm for arm, _ in place])
    for arm in sorted(set(arm_names.tolist())):
        measure.arm(arm).change(before[arm_names == arm], after[arm_names == arm])
    same = {"surface": surface.name, "measure": name}
    upsert(connection, table, [
        {**same, "arm": arm, "user_id": user, **dict(zip(COLUMNS, sums, strict=True))}
        for (arm, user), sums in zip(place, after.tolist(), strict=True)
    ])  # fmt: skip


def _add_items(connection: Connection, surface: str, changes: list[Change]) -> None:
    """Change the sums of the items that were bought after lists."""
    sums: dict[str, Floats] = defaultdict(lambda: np.zeros(len(ITEM_COLUMNS)))
    for sign, part in changes:
        listed = {row["decision"] for row in part.results if row["arm"] in RECOMMENDED}
        for row in part.positives:
            if row["decision"] in listed:
                pi, shown = row["propensity"], effect(row) > 0
                up, down = (1 / pi, 0.0) if shown else (0.0, 1 / (1 - pi))
                square, chance = up**2 + down**2, 1 / pi + 1 / (1 - pi)
                sums[row["item_id"]] += sign * np.array([1.0, up, down, square, chance])
    rows = [{"surface": surface, "item_id": item, **dict(zip(ITEM_COLUMNS, each.tolist(), strict=True))}
            for item, each in sums.items()]  # fmt: skip
    upsert(connection, tables.item_sums, rows, add=True)


Change = tuple[float, Settled]  # a sign, and what is added or taken back


def export(
    decider: Decider,
    surface: Surface,
    last: int | None = None,
    *,
    users: Iterable[str] = (),
    items: Iterable[str] = (),
) -> Log:
    """All settled periods of a surface, or the ``last`` so many, and who visited when.

    ``users`` and ``items`` are part of the catalog also without a visit or a purchase.
    """
    periods = settled_periods(decider, surface, last)
    if not periods:
        raise Conflict(f"surface '{surface.name}' has no settled period yet; wait until one has ended.")
    cells, visits, models = [], [], set()
    for decision, positives in drawn_decisions(decider, surface, periods):
        visit = decision["user_id"], surface.periods.name(decision["period"])
        visits.append(visit)
        models.add(decision["model"])
        cells += [(visit[0], item, visit[1], *rest) for item, *rest in _cells(decision, positives)]
    known = {item for version in models - {None} for item in decider.models.get(version).items}
    table = pa.table(_columns(cells, _CELLS.names), schema=_CELLS)
    if surface.outcome != "value":  # a learner would weigh purchases by a column of values
        table = table.drop_columns(["value"])
    return Log.from_frame(
        table, users=sorted({user for user, _ in visits}.union(users)),
        items=sorted(known.union((cell[1] for cell in cells), items)),
        times=[surface.periods.name(number) for number in periods],
        visits=pa.table(_columns(visits, ["user_id", "time"])),
    )  # fmt: skip


def _columns(rows: list[Any], names: list[str]) -> dict[str, Any]:
    return dict(zip(names, zip(*rows, strict=True) if rows else [[]] * len(names), strict=True))


def settled_periods(decider: Decider, surface: Surface, last: int | None = None) -> list[int]:
    """The settled periods whose decisions are stored, or the ``last`` so many."""
    table, decisions = tables.settled, tables.decisions.c
    oldest = select(func.min(decisions.period)).where(decisions.surface == surface.name).scalar_subquery()
    kept = (table.c.surface == surface.name) & (table.c.period >= oldest)
    query = select(table.c.period).where(kept).order_by(table.c.period.desc())
    return sorted(row["period"] for row in decider.store.rows(query.limit(last)))


def drawn_decisions(decider: Decider, surface: Surface, periods: list[int]) -> Iterator[tuple[Row, list[Row]]]:
    """Decisions with a list, each with its positives, period by period."""
    table, positives = tables.decisions, tables.positives
    for number in periods:
        at = (table.c.surface == surface.name) & (table.c.period == number) & (table.c.shown != "[]")
        bought: dict[str, list[Row]] = defaultdict(list)
        for row in decider.store.rows(select(positives).join(table, table.c.id == positives.c.decision).where(at)):
            bought[row["decision"]].append(row)
        for decision in decider.store.rows(select(table).where(at).order_by(table.c.user_id)):
            yield decision, bought[decision["id"]]


def _cells(decision: Row, positives: list[Row]) -> Iterator[tuple[str, int, int, float, float]]:
    """Item, treated, outcome, propensity and value; a log has no negative values (refunds), so they are 0 there."""
    bought = {row["item_id"]: max(0.0, row["value"]) for row in positives}
    for item, pi in zip(json.loads(decision["shown"]), json.loads(decision["propensities"]), strict=True):
        yield item, 1, int(item in bought), pi, bought.get(item, 0.0)
    for row in sorted(positives, key=lambda row: str(row["item_id"])):
        if not row["treated"]:
            yield row["item_id"], 0, 1, row["propensity"], bought[row["item_id"]]
