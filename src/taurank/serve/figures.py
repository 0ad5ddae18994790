"""The figures of the dashboard, from settled periods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Float, case, cast, func, select

from taurank.serve import tables
from taurank.serve.lift import (
    RECOMMENDED,
    Comparison,
    Visits,
    against_holdout,
    arm_lift,
    compare_challenger,
    read_visits,
)
from taurank.serve.models import list_models
from taurank.serve.recording import Row
from taurank.serve.sequences import Sequence, one_arm, running_means
from taurank.serve.store import Store
from taurank.serve.surfaces import Surface, read_history

PERIODS = 90  # that the dashboard looks back
FEWEST = 30  # purchases of an item before it is listed
EDGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Figures:
    """Everything the page shows about a surface."""

    surface: Surface
    labels: list[str]
    visits: int
    lift: Sequence
    holdout: Sequence
    comparison: Comparison | None
    comparison_labels: list[str]
    explored: float
    cost: Sequence
    arms: list[Row]
    arm_lifts: dict[str, Sequence]  # of the arms that get lists
    overlap: list[tuple[str, int, float, list[int]]]
    working: list[Row]
    anyway: list[Row]
    models: list[Row]
    history: list[Row]
    alerts: list[str]

    @property
    def extra(self) -> tuple[float, float, float]:
        """Purchases caused so far: estimate, low, high."""
        if not self.labels:
            return math.nan, -math.inf, math.inf
        ends = (self.lift.estimate[-1], self.lift.low[-1], self.lift.high[-1])
        return tuple(float(end) * self.visits for end in ends)  # type: ignore[return-value]


def gather(store: Store, surface: Surface) -> Figures:
    visits = read_visits(store, surface.name, last=PERIODS)
    drawn = np.isin(visits.arm, RECOMMENDED)
    comparison = None if surface.challenger is None else compare_challenger(store, surface)
    lift, holdout = arm_lift(visits, "recommended"), against_holdout(visits, "recommended")
    items = _items(store, visits, surface)
    return Figures(
        surface=surface,
        labels=_labels(surface, visits.periods),
        visits=int(np.count_nonzero(drawn)),
        lift=lift,
        holdout=holdout,
        comparison=comparison,
        comparison_labels=_labels(surface, comparison.periods if comparison else []),
        explored=_mean(visits.explored[drawn]),
        cost=_cost(visits, drawn),
        arms=_arms(visits),
        arm_lifts={arm: arm_lift(visits, arm) for arm in RECOMMENDED if (visits.arm == arm).any()},
        overlap=_overlap(store, surface, visits),
        working=sorted(items, key=lambda row: -row["low"])[:8],
        anyway=sorted((row for row in items if row["low"] <= 0), key=lambda row: -row["control"])[:8],
        models=list_models(store, 12),
        history=read_history(store, 25, surface.name),
        alerts=_alerts(surface, visits, lift, comparison),
    )


def _labels(surface: Surface, periods: list[int]) -> list[str]:
    short = slice(5, 10) if surface.period.seconds >= 86400 else slice(11, 16)
    return [surface.period.name(number)[short] for number in periods]


def _mean(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _cost(visits: Visits, drawn: Any) -> Sequence:
    """Caused purchases per visit that a list of the best items would add: what exploration costs."""
    missed = (visits.greedy - visits.lift)[drawn]
    return one_arm(running_means(visits.user[drawn], visits.period[drawn], missed, len(visits.periods)))


def _arms(visits: Visits) -> list[Row]:
    rows = []
    for arm in ("holdout", "incumbent", "challenger"):
        mine = visits.arm == arm
        if mine.any():
            lift = arm_lift(visits, arm)
            rows.append({
                "arm": arm, "users": visits.users_of(arm), "visits": int(mine.sum()),
                "purchases": float(visits.purchases[mine].mean()), "lift": float(lift.estimate[-1]),
                "low": float(lift.low[-1]), "high": float(lift.high[-1]),
            })  # fmt: skip
    return rows


def _items(store: Store, visits: Visits, surface: Surface) -> list[Row]:
    """Each item's effect of being shown, per visit, and what it sells without."""
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
    query = select(*columns).select_from(joined).where(mine).group_by(table.c.item_id).having(func.count() >= FEWEST)
    return [_item(row, n) for row in store.rows(query)]


def _item(row: Row, n: int) -> Row:
    effect = row["effect"] / n
    error = math.sqrt(max(0.0, row["square"] / n - effect**2) / n)
    interval = {"low": effect - 1.96 * error, "high": effect + 1.96 * error}
    return {
        "item": row["item_id"],
        "purchases": row["purchases"],
        "effect": effect,
        "control": row["control"] / n,
        **interval,
    }


def _overlap(store: Store, surface: Surface, visits: Visits) -> list[tuple[str, int, float, list[int]]]:
    """Purchases of shown and of other items: how many, how many after weighting (Kish), and their π."""
    table = tables.positives
    weight = case((table.c.treated == 1, 1.0 / table.c.propensity), else_=1.0 / (1.0 - table.c.propensity))
    place = case(*((table.c.propensity < edge, n) for n, edge in enumerate(EDGES[1:])), else_=len(EDGES) - 2)
    sums = (func.count().label("count"), func.sum(weight).label("sum"), func.sum(weight * weight).label("square"))
    joined = table.join(tables.results, tables.results.c.decision == table.c.decision)
    mine = (tables.results.c.surface == surface.name) & tables.results.c.period.in_(visits.periods[-14:])
    query = select(table.c.treated, place.label("place"), *sums).select_from(joined).where(mine)
    rows = store.rows(query.group_by(table.c.treated, place))
    arms = (("shown", 1), ("not shown", 0))
    return [_overlap_of(name, [row for row in rows if row["treated"] == arm]) for name, arm in arms]


def _overlap_of(name: str, rows: list[Row]) -> tuple[str, int, float, list[int]]:
    counts = [0] * (len(EDGES) - 1)
    for row in rows:
        counts[row["place"]] = row["count"]
    total, square = sum(row["sum"] for row in rows), sum(row["square"] for row in rows)
    return name, sum(counts), total**2 / square if rows else 0.0, counts


def _alerts(surface: Surface, visits: Visits, lift: Sequence, comparison: Comparison | None) -> list[str]:
    alerts = []
    if not surface.enabled:
        alerts.append("Recommendations are switched off.")
    if surface.incumbent is None:
        alerts.append("There is no model yet.")
    if comparison is not None and comparison.mismatch:
        counts = ", ".join(f"{arm} {users:,}" for arm, users in comparison.users.items())
        alerts.append(f"The arms do not have their planned shares of users ({counts}): the gate promotes nothing.")
    if visits.periods and lift.high[-1] < 0:
        alerts.append("The lists cause fewer purchases, not more.")
    if not visits.periods:
        alerts.append("No period has been settled yet: figures appear after the first one has ended.")
    return alerts
