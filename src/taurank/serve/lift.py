"""The lift of each arm over time: with the items that were not shown as control, and against the hold-out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Float, case, cast, func, select

from taurank.serve import tables
from taurank.serve.sequences import (
    MIN_ACTIVE,
    MIN_VALUED,
    Means,
    Sequence,
    difference,
    one_arm,
    ratio_evidence,
    running_means,
)
from taurank.serve.store import Store
from taurank.serve.surfaces import Surface

RATIO_ALPHA = 0.001

RECOMMENDED = ("incumbent", "challenger")

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Visits:
    """The settled decisions of a surface, as columns."""

    periods: list[int]
    period: Codes  # positions in ``periods``
    user: Codes
    arm: npt.NDArray[np.str_]
    model: npt.NDArray[np.str_]
    purchases: npt.NDArray[np.float64]
    lift: npt.NDArray[np.float64]
    greedy: npt.NDArray[np.float64]
    explored: npt.NDArray[np.float64]  # NaN where it was not measured

    def means(self, arm: str, column: str, model: str | None = None) -> Means:
        """Running means of "lift" or "purchases" per visit of an arm; "recommended" is all that get lists."""
        rows = np.isin(self.arm, RECOMMENDED) if arm == "recommended" else self.arm == arm
        if model is not None:
            rows &= self.model == model
        values = getattr(self, column)[rows]
        return running_means(self.user[rows], self.period[rows], values, len(self.periods))

    def users_of(self, arm: str) -> int:
        return len(np.unique(self.user[self.arm == arm]))


def read_visits(
    store: Store, surface: str, since: int | None = None, last: int | None = None, lift: Any = tables.results.c.lift
) -> Visits:
    """The settled visits of a surface, from period ``since`` on, of the ``last`` so many periods."""
    table = tables.results
    mine = table.c.surface == surface
    if since is not None:
        mine &= table.c.period >= since
    names = ("period", "user_id", "arm", "model", "purchases", "lift", "greedy", "explored")
    query = select(*(lift if name == "lift" else table.c[name] for name in names)).where(mine)
    if last is not None:
        kept = select(tables.settled.c.period).where(tables.settled.c.surface == surface)
        query = query.where(table.c.period.in_(kept.order_by(tables.settled.c.period.desc()).limit(last)))
    with store.read() as connection:
        rows = connection.execute(query.order_by(table.c.period, table.c.user_id)).all()
    columns = [np.array(column) for column in zip(*rows, strict=True)] if rows else [np.empty(0)] * len(names)
    periods, period = np.unique(columns[0].astype(np.int64), return_inverse=True)
    _, user = np.unique(columns[1].astype(np.str_), return_inverse=True)
    return Visits(
        periods.tolist(), period.astype(np.int64), user.astype(np.int64), columns[2].astype(np.str_),
        columns[3].astype(np.str_), *(column.astype(np.float64) for column in columns[4:]),
    )  # fmt: skip


def value_lift(most: float | None) -> ColumnElement[float]:
    """The value that a decision's list caused: its purchases weighted by their value, up to ``most`` each."""
    table = tables.positives
    worth = table.c.value if most is None else case((table.c.value > most, most), else_=table.c.value)
    weight = case((table.c.treated == 1, 1.0), else_=-table.c.propensity / (1.0 - table.c.propensity))
    total = select(func.sum(worth * weight)).where(table.c.decision == tables.results.c.decision)
    return func.coalesce(cast(total.scalar_subquery(), Float), 0.0)


def arm_lift(visits: Visits, arm: str) -> Sequence:
    """Purchases that an arm's lists caused, per visit."""
    return one_arm(visits.means(arm, "lift"))


def against_holdout(visits: Visits, arm: str) -> Sequence:
    """All purchases per visit of an arm minus those of the hold-out."""
    return difference(visits.means(arm, "purchases"), visits.means("holdout", "purchases"))


@dataclass(frozen=True)
class Comparison:
    """The challenger against the incumbent, since the challenger began."""

    periods: list[int]
    lift: Sequence  # challenger − incumbent, caused purchases (or their value) per visit
    users: dict[str, int]
    evidence: float  # log evidence of a sample-ratio mismatch

    @property
    def mismatch(self) -> bool:
        return self.evidence > -math.log(RATIO_ALPHA)

    @property
    def bounds(self) -> tuple[float, float]:
        if not self.periods:
            return -np.inf, np.inf
        return float(self.lift.low[-1]), float(self.lift.high[-1])


def compare_challenger(store: Store, surface: Surface) -> Comparison:
    """How the challenger of a surface does."""
    valued = surface.outcome == "value"
    lift = value_lift(surface.max_value) if valued else tables.results.c.lift
    visits = read_visits(store, surface.name, surface.since, lift=lift)
    shares = surface.shares()
    users = {arm: visits.users_of(arm) for arm in shares}
    arms = (
        visits.means("challenger", "lift", surface.challenger),
        visits.means("incumbent", "lift", surface.incumbent),
    )
    evidence = ratio_evidence(list(users.values()), list(shares.values()))
    compared = difference(*arms, fewest_active=MIN_VALUED if valued else MIN_ACTIVE)
    return Comparison(visits.periods, compared, users, evidence)
