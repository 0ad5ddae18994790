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
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import delete, func, insert, select

from taurank.data.log import Log
from taurank.data.tables import write_batches
from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.recorder import Row
from taurank.serve.store import Conflict
from taurank.serve.surfaces import Surface

GRACE_SECONDS = 300.0  # outcomes may arrive late by this much
SAMPLE = 200  # decisions per period whose exploration is measured

_CELLS = pa.schema({
    "user_id": pa.string(), "item_id": pa.string(), "time": pa.string(), "treated": pa.int8(), "outcome": pa.int8(),
    "propensity": pa.float64(), "value": pa.float64(),
})  # fmt: skip


def settle(decider: Decider, surface: Surface, now: float, grace: float = GRACE_SECONDS) -> int:
    """Settle all periods of a surface that have ended; returns how many."""
    table = tables.decisions
    ended = surface.periods.number(now - grace)  # the first period that has not
    done = select(tables.settled.c.period).where(tables.settled.c.surface == surface.name)
    mine = (table.c.surface == surface.name) & (table.c.period < ended) & table.c.period.not_in(done)
    numbers = sorted(row["period"] for row in decider.store.rows(select(table.c.period).where(mine).distinct()))
    for number in numbers:
        _settle_period(decider, surface, number, now)
    return len(numbers)


def settle_again(decider: Decider, name: str, time: float, now: float) -> str:
    """Settle the period of a time again, for outcomes that arrived late; returns the period's name."""
    surface = decider.surfaces.get(name)
    number = surface.periods.number(time)
    if surface.periods.end(number) > now:
        raise InputError(f"the period {surface.periods.name(number)} has not ended yet.")
    table = tables.decisions
    ids = select(table.c.id).where((table.c.surface == name) & (table.c.period == number))
    with decider.store.write() as connection:
        for results in (tables.positives, tables.results):
            connection.execute(delete(results).where(results.c.decision.in_(ids)))
        connection.execute(delete(tables.settled).where(_is_settled(name, number)))
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
        result, rows = _result(decider, decision, items, place < SAMPLE)
        results.append(result)
        positives += rows
    with decider.store.write() as connection:
        if connection.scalar(select(tables.settled.c.period).where(_is_settled(surface.name, number))) is not None:
            return  # another process was faster
        if connection.scalar(select(func.count()).where(mine)) != len(decisions):
            return  # one more was recorded meanwhile; the next round has it
        connection.execute(insert(tables.settled), {"surface": surface.name, "period": number, "time": now})
        for target, rows in ((tables.results, results), (tables.positives, positives)):
            if rows:
                connection.execute(insert(target), rows)


def _is_settled(surface: str, number: int) -> Any:
    return (tables.settled.c.surface == surface) & (tables.settled.c.period == number)


def _items_after(time: float, events: Iterable[Row]) -> dict[str, float]:
    """What was bought after the decision, with its value; an item bought twice counts once."""
    items: dict[str, float] = defaultdict(float)
    for event in sorted(events, key=lambda row: (row["time"], row["item_id"], row["value"])):
        if event["time"] >= time:
            items[event["item_id"]] += event["value"]
    return items


def _result(decider: Decider, decision: Row, items: dict[str, float], sampled: bool) -> tuple[Row, list[Row]]:
    """What a decision's list caused, and one row per bought item that was eligible, shown or not."""
    same = {name: decision[name] for name in ("surface", "period", "user_id", "arm", "model")}
    result = {"decision": decision["id"], **same, "purchases": float(len(items)), "lift": 0.0, "greedy": 0.0}
    shown = set(json.loads(decision["shown"]))
    if not shown or not (items or sampled):
        return {**result, "explored": None}, []
    eligible, pi = decider.propensities(decision)
    best = np.partition(pi, -len(shown))[-len(shown) :]
    propensity = dict(zip(eligible, pi.tolist(), strict=True))
    positives = [
        {"decision": decision["id"], "item_id": item, "treated": int(item in shown), "propensity": propensity[item],
         "value": value}
        for item, value in items.items()
        if item in propensity
    ]  # fmt: skip
    for row in positives:
        result["lift"] += row["propensity"] * effect(row)
        result["greedy"] += effect(row) if row["propensity"] >= best[0] else 0.0
    return {**result, "explored": 1.0 - float(best.sum()) / len(shown) if sampled else None}, positives


def effect(positive: Row) -> float:
    """Unbiased for τ of the bought item, over shown and not shown."""
    propensity: float = positive["propensity"]
    return 1 / propensity if positive["treated"] else -1 / (1 - propensity)


@dataclass(frozen=True)
class Export:
    """A log, ready for ``fit``, and who visited when."""

    log: Log
    visits: pa.Table

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
        """``log.parquet`` and ``visits.parquet`` in the folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        log, visits = Path(folder) / "log.parquet", Path(folder) / "visits.parquet"
        self.log.write(log)
        write_batches(visits, self.visits.schema, self.visits.to_batches())
        return log, visits


def export(decider: Decider, surface: Surface, last: int | None = None) -> Export:
    """All settled periods of a surface, or the ``last`` so many."""
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
    visited = pa.table(_columns(visits, ["user_id", "time"]))
    log = Log.from_frame(
        table, users=sorted({user for user, _ in visits}), items=sorted(known | {cell[1] for cell in cells}),
        times=[surface.periods.name(number) for number in periods], visits=visited,
    )  # fmt: skip
    return Export(log, visited)


def _columns(rows: list[Any], names: list[str]) -> dict[str, Any]:
    return dict(zip(names, zip(*rows, strict=True) if rows else [[]] * len(names), strict=True))


def settled_periods(decider: Decider, surface: Surface, last: int | None = None) -> list[int]:
    table = tables.settled
    query = select(table.c.period).where(table.c.surface == surface.name).order_by(table.c.period.desc())
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
