"""The lift of each arm over time, and the gate that promotes or demotes a challenger by it.

Lift is measured with the items that were not shown as control, and against the hold-out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Float, case, cast, func, select

from taurank._types import Floats, Longs
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.sequences import (
    MIN_ACTIVE,
    MIN_VALUED,
    ConfidenceSequence,
    Means,
    difference,
    one_arm,
    ratio_evidence,
    running_means,
)
from taurank.serve.settlement import GRACE_SECONDS, settle
from taurank.serve.store import Store
from taurank.serve.surfaces import Surface, demote, note, promote

RATIO_ALPHA = 0.001
PATIENCE = 28  # settled periods after which an undecided challenger makes room for another
RECOMMENDED = ("incumbent", "challenger")  # the arms that get lists


def run_jobs(decider: Decider, grace: float = GRACE_SECONDS, patience: int = PATIENCE) -> dict[str, str]:
    """Settle the ended periods of every surface and judge its challenger; returns what was done."""
    done = {}
    for surface in decider.surfaces.all():
        now = decider.clock()
        periods = settle(decider, surface, now, grace)
        done[surface.name] = f"{periods} settled, {judge(decider.store, surface, now, patience)}"
    return done


def judge(store: Store, surface: Surface, now: float, patience: int = PATIENCE) -> str:
    """Promote or demote the challenger if the evidence suffices; returns what was done and why."""
    challenger = surface.challenger
    if challenger is None:
        return "no challenger"
    comparison = compare_challenger(store, surface)
    _, low, high = comparison.lift.last
    reason = f"{surface.unit} per visit, challenger − incumbent: between {low:.4g} and {high:.4g}"
    if comparison.mismatch:
        _alert(store, surface, f"{comparison.mismatch}; nothing is promoted", now)
        return "sample-ratio mismatch"
    if low > 0 and promote(store, surface.name, challenger, reason, now, expected=challenger):
        return "promoted"
    if high < 0 and demote(store, surface.name, reason, now, expected=challenger):
        return "demoted"
    if len(comparison.periods) >= patience:
        undecided = f"undecided after {len(comparison.periods)} periods; {reason}"
        demote(store, surface.name, undecided, now, expected=challenger)
        return "undecided"
    return reason


def _alert(store: Store, surface: Surface, text: str, now: float) -> None:
    """One alert per challenger."""
    table = tables.history
    same = (table.c.surface == surface.name) & (table.c.event == "alert") & (table.c.model == surface.challenger)
    since = surface.periods.start(surface.since or 0) - 2 * surface.periods.seconds
    with store.write() as connection:
        if connection.scalar(select(table.c.id).where(same & (table.c.time >= since))) is None:
            note(connection, surface.name, "alert", surface.challenger, text, now)


@dataclass(frozen=True)
class Comparison:
    """The challenger against the incumbent, since the challenger began."""

    periods: list[int]
    lift: ConfidenceSequence  # challenger − incumbent, caused purchases (or their value) per visit
    mismatch: str  # why the arms cannot be compared: they do not have their planned shares; empty if they can


def compare_challenger(store: Store, surface: Surface) -> Comparison:
    """How the challenger of a surface does."""
    valued = surface.outcome == "value"
    lift = value_lift(surface.max_value) if valued else tables.results.c.lift
    visits = read_visits(store, surface.name, surface.since, lift=lift)
    shares = surface.shares()
    users = {arm: visits.users_of(arm) for arm in shares}
    mismatch = ""
    if ratio_evidence(list(users.values()), list(shares.values())) > -math.log(RATIO_ALPHA):
        counts = ", ".join(f"{arm} {number:,}" for arm, number in users.items())
        mismatch = f"the arms do not have their planned shares of users ({counts})"
    compared = difference(
        visits.means("challenger", "lift", surface.challenger), visits.means("incumbent", "lift", surface.incumbent),
        min_active=MIN_VALUED if valued else MIN_ACTIVE,
    )  # fmt: skip
    return Comparison(visits.periods, compared, mismatch)


@dataclass(frozen=True)
class Visits:
    """The settled decisions of a surface, as columns."""

    periods: list[int]
    period: Longs  # positions in ``periods``
    user: Longs
    arm: npt.NDArray[np.str_]
    model: npt.NDArray[np.str_]
    purchases: Floats
    lift: Floats
    greedy: Floats
    explored: Floats  # NaN where it was not measured

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
    store: Store,
    surface: str,
    since: int | None = None,
    last: int | None = None,
    lift: ColumnElement[float] = tables.results.c.lift,
) -> Visits:
    """The results of a surface from a period on, of the ``last`` N periods."""
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


def arm_lift(visits: Visits, arm: str) -> ConfidenceSequence:
    """Purchases that an arm's lists caused, per visit."""
    return one_arm(visits.means(arm, "lift"))


def against_holdout(visits: Visits, arm: str) -> ConfidenceSequence:
    """All purchases per visit of an arm minus those of the hold-out."""
    return difference(visits.means(arm, "purchases"), visits.means("holdout", "purchases"))
