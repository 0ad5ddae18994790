"""Settling a period: what happened after each decision, and what the list caused.

Item i bought after a decision counts Y_i = 1. With Z_i = 1 if it was shown,

    lift = Σ_i [Z_i Y_i − (1 − Z_i) Y_i · π_i / (1 − π_i)]

has the expectation Σ_i π_i (μ^T_i − μ^C_i): the purchases that the list caused. Items that were *not* shown are
the control arm, and only bought items matter, so π is replayed only where something was bought. This assumes
that showing one item does not change the purchases of another; the hold-out, which does not assume it, is the
check.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from sqlalchemy import delete, insert, select

from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.recorder import Row
from taurank.serve.surfaces import Surface

GRACE_SECONDS = 300.0  # outcomes may arrive late by this much
SAMPLE = 200  # decisions per period whose exploration is measured


def settle(decider: Decider, surface: Surface, now: float, grace: float = GRACE_SECONDS) -> int:
    """Settle all periods of a surface that have ended; returns how many."""
    ended = surface.periods.number(now - grace)  # the first period that has not
    done = select(tables.settled.c.period).where(tables.settled.c.surface == surface.name)
    mine = (tables.decisions.c.surface == surface.name) & (tables.decisions.c.period < ended)
    query = select(tables.decisions.c.period).where(mine & tables.decisions.c.period.not_in(done)).distinct()
    numbers = sorted(row["period"] for row in decider.store.rows(query))
    for number in numbers:
        _settle_period(decider, surface, number, now)
    return len(numbers)


def settle_again(decider: Decider, name: str, time: float, now: float) -> str:
    """Settle the period of a time again, for outcomes that arrived late; returns the period's name."""
    surface = decider.surfaces.get(name)
    number = surface.periods.number(time)
    if surface.periods.end(number) > now:
        raise InputError(f"the period {surface.periods.name(number)} has not ended yet.")
    of_period = (tables.decisions.c.surface == name) & (tables.decisions.c.period == number)
    ids = select(tables.decisions.c.id).where(of_period)
    with decider.store.write() as connection:
        connection.execute(delete(tables.positives).where(tables.positives.c.decision.in_(ids)))
        connection.execute(delete(tables.results).where(tables.results.c.decision.in_(ids)))
        at = (tables.settled.c.surface == name) & (tables.settled.c.period == number)
        connection.execute(delete(tables.settled).where(at))
    _settle_period(decider, surface, number, now)
    return surface.periods.name(number)


def _settle_period(decider: Decider, surface: Surface, number: int, now: float) -> None:
    table, outcomes = tables.decisions, tables.outcomes
    mine = (table.c.surface == surface.name) & (table.c.period == number)
    decisions = decider.store.rows(select(table).where(mine).order_by(table.c.id))
    start, end = surface.periods.start(number), surface.periods.end(number)
    bought: dict[str, list[Row]] = defaultdict(list)
    for row in decider.store.rows(select(outcomes).where((outcomes.c.time >= start) & (outcomes.c.time < end))):
        bought[row["user_id"]].append(row)
    results, positives = [], []
    for place, decision in enumerate(decisions):  # ids are hashes: the first ones are a random sample
        items = _items_after(decision["time"], bought.get(decision["user_id"], ()))
        replay = _Replay.of(decider, decision) if items or place < SAMPLE else _NOTHING
        rows = _positives(decision, items, replay)
        results.append(_result(decision, len(items), rows, replay, place < SAMPLE))
        positives += rows
    with decider.store.write() as connection:
        at = (tables.settled.c.surface == surface.name) & (tables.settled.c.period == number)
        if connection.scalar(select(tables.settled.c.period).where(at)) is not None:
            return  # another process was faster
        connection.execute(insert(tables.settled), {"surface": surface.name, "period": number, "time": now})
        for target, rows in ((tables.results, results), (tables.positives, positives)):
            if rows:
                connection.execute(insert(target), rows)


@dataclass(frozen=True)
class _Replay:
    """π of all eligible items of a decision, and the π from which on an item is among the best."""

    propensity: dict[str, float]
    best_from: float
    explored: float  # expected share of the slots that are not given to the best items

    @classmethod
    def of(cls, decider: Decider, decision: Row) -> _Replay:
        items, pi = decider.propensities(decision)
        slots = len(json.loads(decision["shown"]))
        if slots == 0:
            return _NOTHING
        best = np.partition(pi, len(pi) - slots)[len(pi) - slots :]
        return cls(dict(zip(items, pi.tolist(), strict=True)), float(best[0]), 1.0 - float(best.sum()) / slots)


_NOTHING = _Replay({}, 1.0, 0.0)


def _items_after(time: float, events: Iterable[Row]) -> dict[str, float]:
    """What was bought after the decision, with its value; an item bought twice counts once."""
    items: dict[str, float] = defaultdict(float)
    for event in sorted(events, key=lambda row: (row["time"], row["item_id"], row["value"])):
        if event["time"] >= time:
            items[event["item_id"]] += event["value"]
    return items


def _positives(decision: Row, items: dict[str, float], replay: _Replay) -> list[Row]:
    """One row per bought item that was eligible, shown or not."""
    shown = set(json.loads(decision["shown"]))
    return [
        {"decision": decision["id"], "item_id": item, "treated": int(item in shown),
         "propensity": replay.propensity[item], "value": value}
        for item, value in items.items()
        if item in replay.propensity
    ]  # fmt: skip


def _result(decision: Row, purchases: int, rows: list[Row], replay: _Replay, sampled: bool) -> Row:
    lift = greedy = 0.0
    for row in rows:
        effect = 1 / row["propensity"] if row["treated"] else -1 / (1 - row["propensity"])  # unbiased for τ
        lift += row["propensity"] * effect
        greedy += effect if row["propensity"] >= replay.best_from else 0.0
    same = {name: decision[name] for name in ("surface", "period", "user_id", "arm", "model")}
    explored = replay.explored if sampled and replay.propensity else None
    figures = {"purchases": float(purchases), "lift": lift, "greedy": greedy, "explored": explored}
    return {"decision": decision["id"], **same, **figures}
