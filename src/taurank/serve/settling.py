"""Settling a period: what happened after each decision, and what the list caused.

Item i bought after a decision counts Y_i = 1. With Z_i = 1 if it was shown,

    lift = Σ_i [Z_i Y_i − (1 − Z_i) Y_i · π_i / (1 − π_i)]

has the expectation Σ_i π_i (μ^T_i − μ^C_i): the purchases that the list caused. Items that were *not* shown are
the control arm, and only bought items matter, so π is replayed for those alone. This assumes that showing one
item does not change the purchases of another; the hold-out, which does not assume it, is the check.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from taurank.serve import tables
from taurank.serve.deciding import Decider
from taurank.serve.recording import Row
from taurank.serve.surfaces import Surface

GRACE_SECONDS = 300.0  # outcomes may arrive late by this much

Bought = dict[str, list[tuple[float, str, float]]]  # user → (time, item, value)


def settle(decider: Decider, surface: Surface, now: float, grace: float = GRACE_SECONDS) -> int:
    """Settle all periods of a surface that have ended; returns how many."""
    ended = surface.period.number(now - grace)  # the first period that has not
    done = select(tables.settled.c.period).where(tables.settled.c.surface == surface.name)
    mine = (tables.decisions.c.surface == surface.name) & (tables.decisions.c.period < ended)
    query = select(tables.decisions.c.period).where(mine & tables.decisions.c.period.not_in(done)).distinct()
    numbers = sorted(row["period"] for row in decider.store.rows(query))
    for number in numbers:
        _settle_period(decider, surface, number, now)
    return len(numbers)


def settle_again(decider: Decider, surface: Surface, number: int, now: float) -> None:
    """Settle a period anew, for outcomes that arrived after its settlement."""
    of_period = (tables.decisions.c.surface == surface.name) & (tables.decisions.c.period == number)
    ids = select(tables.decisions.c.id).where(of_period)
    with decider.store.write() as connection:
        connection.execute(delete(tables.positives).where(tables.positives.c.decision.in_(ids)))
        connection.execute(delete(tables.results).where(tables.results.c.decision.in_(ids)))
        at = (tables.settled.c.surface == surface.name) & (tables.settled.c.period == number)
        connection.execute(delete(tables.settled).where(at))
    _settle_period(decider, surface, number, now)


def _settle_period(decider: Decider, surface: Surface, number: int, now: float) -> None:
    table = tables.decisions
    decisions = decider.store.rows(
        select(table).where((table.c.surface == surface.name) & (table.c.period == number))
    )
    bought = _bought(decider, surface.period.start(number), surface.period.end(number))
    results, positives = [], []
    for decision in decisions:
        items = _items_after(decision["time"], bought.get(decision["user_id"], ()))
        rows = _positives(decider, decision, items)
        results.append(_result(decision, len(items), rows))
        positives += rows
    with decider.store.write() as connection:
        if not _is_settled(connection, surface.name, number):  # another process may have been faster
            connection.execute(insert(tables.settled), {"surface": surface.name, "period": number, "time": now})
            for target, rows in ((tables.results, results), (tables.positives, positives)):
                if rows:
                    connection.execute(insert(target), rows)


def _is_settled(connection: Connection, surface: str, number: int) -> bool:
    at = (tables.settled.c.surface == surface) & (tables.settled.c.period == number)
    return connection.scalar(select(tables.settled.c.period).where(at)) is not None


def _bought(decider: Decider, start: float, end: float) -> Bought:
    table = tables.outcomes
    bought: Bought = defaultdict(list)
    for row in decider.store.rows(select(table).where((table.c.time >= start) & (table.c.time < end))):
        bought[row["user_id"]].append((row["time"], row["item_id"], row["value"]))
    return bought


def _items_after(time: float, events: Any) -> dict[str, float]:
    """What was bought after the decision, with its value; an item bought twice counts once."""
    items: dict[str, float] = defaultdict(float)
    for when, item, value in sorted(events):
        if when >= time:
            items[item] += value
    return items


def _positives(decider: Decider, decision: Row, items: dict[str, float]) -> list[Row]:
    """One row per bought item that was eligible, shown or not."""
    if not items:
        return []
    shown = dict(zip(json.loads(decision["shown"]), json.loads(decision["propensities"]), strict=True))
    known = dict(shown)
    if any(item not in shown for item in items):
        eligible, pi = decider.propensities(decision)
        known |= {item: float(p) for item, p in zip(eligible, pi, strict=True) if item in items and p > 0}
    return [
        {"decision": decision["id"], "item_id": item, "treated": int(item in shown), "propensity": known[item],
         "value": value}
        for item, value in items.items()
        if item in known
    ]  # fmt: skip


def _result(decision: Row, purchases: int, rows: list[Row]) -> Row:
    lift = sum(1.0 if row["treated"] else -row["propensity"] / (1.0 - row["propensity"]) for row in rows)
    same = {name: decision[name] for name in ("surface", "period", "user_id", "arm", "model")}
    return {"decision": decision["id"], **same, "purchases": float(purchases), "lift": float(lift)}
