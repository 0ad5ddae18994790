"""What the lists of each arm have caused so far, and the gate that promotes or demotes a challenger by it.

Lift is measured with the items that were not shown as control, and against the hold-out. A fixed-time interval is
wrong for somebody who looks every day and stops when it pleases. Here it is valid at any time:

    m_t ± √((I + λ) · log((I + λ) / (λ α²))) / I,    I = 1 / Var(m_t),

Robbins' normal mixture in information time. The errors of means over growing data have independent increments
in I, also if the same users come back in every period (their variance is then clustered by user), so the errors
behave like a Brownian motion W(I)/I, and |W(v)| stays below √((v + λ) log((v + λ)/(λ α²))) at all v with
probability at least 1 − α. The statement is asymptotic: it needs enough users at the first look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln
from sqlalchemy import ColumnElement, Float, case, cast, func, select

from taurank._types import Floats, Longs
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.settlement import GRACE_SECONDS, settle
from taurank.serve.store import Store
from taurank.serve.surfaces import Surface, demote, note, promote

RECOMMENDED = ("incumbent", "challenger")  # the arms that get lists
RATIO_ALPHA = 0.001
PATIENCE = 28  # settled periods after which an undecided challenger makes room for another
ALPHA = 0.05
# λ in units of the first look's information: tightest at about thirty times that, and wide at the first looks,
# where the normal approximation of skewed outcomes is at its worst; chosen with the two numbers below by simulation
MIXTURE = 4.0
MIN_USERS = 100  # per arm, at the first look
MIN_ACTIVE = 30  # of them with an outcome that is not 0
MIN_VALUED = 100  # the same for values, whose tails are longer; by simulation with log-normal ones up to σ = 2


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
    lift = _value_lift(surface.max_value) if valued else tables.results.c.lift
    visits = read_visits(store, surface.name, surface.since, lift=lift)
    shares = surface.shares()
    users = {arm: visits.users_of(arm) for arm in shares}
    mismatch = ""
    if ratio_evidence(list(users.values()), list(shares.values())) > -math.log(RATIO_ALPHA):
        counts = ", ".join(f"{arm} {number:,}" for arm, number in users.items())
        mismatch = f"the arms do not have their planned shares of users ({counts})"
    challenger = visits.means("challenger", "lift", surface.challenger)
    incumbent = visits.means("incumbent", "lift", surface.incumbent)
    compared = confidence(challenger - incumbent, MIN_VALUED if valued else MIN_ACTIVE)
    return Comparison(visits.periods, compared, mismatch)


@dataclass(frozen=True)
class Means:
    """Means per visit up to the end of each period, with variances clustered by user."""

    mean: Floats
    variance: Floats
    users: Longs
    active: Longs  # users with any outcome so far

    def __sub__(self, other: Means) -> Means:
        """The difference of two arms, which have no user in common; of users it has as many as the smaller one."""
        known = (self.variance > 0) & (other.variance > 0)
        return Means(
            self.mean - other.mean, np.where(known, self.variance + other.variance, 0.0),
            np.minimum(self.users, other.users), np.minimum(self.active, other.active),
        )  # fmt: skip


@dataclass(frozen=True)
class ConfidenceSequence:
    """One interval per period; infinite bounds before the first look."""

    estimate: Floats
    low: Floats
    high: Floats

    @property
    def last(self) -> tuple[float, float, float]:
        """Estimate, low and high at the end of the last period."""
        if not len(self.estimate):
            return math.nan, -math.inf, math.inf
        return float(self.estimate[-1]), float(self.low[-1]), float(self.high[-1])


def confidence(means: Means, min_active: int = MIN_ACTIVE) -> ConfidenceSequence:
    """The confidence sequence of means; it starts as soon as there are enough users."""
    variance, width = means.variance, np.full(len(means.mean), np.inf)
    looks = np.flatnonzero((means.users >= MIN_USERS) & (means.active >= min_active) & (variance > 0))
    if len(looks):
        later = looks[0] + np.flatnonzero((variance[looks[0] :] > 0) & np.isfinite(variance[looks[0] :]))
        information, mixture = 1.0 / variance[later], MIXTURE / variance[looks[0]]
        both = information + mixture
        width[later] = np.sqrt(both * np.log(both / (mixture * ALPHA**2))) / information
    return ConfidenceSequence(means.mean, means.mean - width, means.mean + width)


def running_means(user: Longs, period: Longs, value: Floats, n_periods: int) -> Means:
    """Σ value / visits up to each period 0 … n_periods − 1, for rows with codes of users and periods.

    The variance of the ratio is Σ_u (S_u − m·n_u)² / N² · G/(G − 1), with user u's sum S_u and visits n_u.
    """
    n_users = int(user.max(initial=-1)) + 1
    total, visits, any_outcome = np.zeros(n_users), np.zeros(n_users), np.zeros(n_users, np.bool_)
    order = np.argsort(period, kind="stable")
    edges = np.searchsorted(period[order], np.arange(n_periods + 1))
    mean, variance = np.full(n_periods, math.nan), np.full(n_periods, math.inf)
    users, active = np.zeros(n_periods, np.int64), np.zeros(n_periods, np.int64)
    for number in range(n_periods):
        rows = order[edges[number] : edges[number + 1]]
        np.add.at(total, user[rows], value[rows])
        np.add.at(visits, user[rows], 1.0)
        any_outcome[user[rows][value[rows] != 0]] = True
        users[number], active[number] = np.count_nonzero(visits), np.count_nonzero(any_outcome)
        if users[number] >= 2:
            n, clusters = visits.sum(), int(users[number])
            mean[number] = total.sum() / n
            spread = ((total - mean[number] * visits) ** 2).sum()
            variance[number] = spread / n**2 * clusters / (clusters - 1)
    return Means(mean, variance, users, active)


def ratio_evidence(counts: npt.ArrayLike, shares: npt.ArrayLike) -> float:
    """log of the evidence that counts do not follow the planned shares; alarm above log(1/α), at any time.

    The ratio of the Dirichlet-multinomial likelihood (prior mean: the shares) to the planned multinomial one
    is a martingale with mean 1 if the shares are right, so it exceeds 1/α with probability at most α, ever.
    """
    n, p = np.asarray(counts, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    prior = p * 100.0
    mixed = gammaln(prior.sum()) - gammaln((prior + n).sum()) + (gammaln(prior + n) - gammaln(prior)).sum()
    return float(mixed - (n * np.log(p)).sum())


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
    missed: Floats  # what a list of the best items, without exploration, would have caused beyond this one
    explored: Floats  # NaN where it was not measured

    def rows(self, arm: str) -> npt.NDArray[np.bool_]:
        """The visits of an arm; "recommended" is all that get lists."""
        return np.isin(self.arm, RECOMMENDED if arm == "recommended" else [arm])

    def means(self, arm: str, column: str, model: str | None = None) -> Means:
        """Running means of a column per visit of an arm."""
        rows = self.rows(arm)
        if model is not None:
            rows &= self.model == model
        return running_means(self.user[rows], self.period[rows], getattr(self, column)[rows], len(self.periods))

    def users_of(self, arm: str) -> int:
        return len(np.unique(self.user[self.rows(arm)]))


def read_visits(
    store: Store,
    surface: str,
    since: int | None = None,
    last: int | None = None,
    lift: ColumnElement[float] = tables.results.c.lift,
) -> Visits:
    """The results of a surface from a period on, of the ``last`` N periods."""
    c = tables.results.c
    columns: list[Any] = [c.period, c.user_id, c.arm, c.model, c.purchases, lift, c.greedy - c.lift, c.explored]
    query = select(*columns).where(c.surface == surface)
    if since is not None:
        query = query.where(c.period >= since)
    if last is not None:
        kept = select(tables.settled.c.period).where(tables.settled.c.surface == surface)
        query = query.where(c.period.in_(kept.order_by(tables.settled.c.period.desc()).limit(last)))
    with store.read() as connection:
        rows = connection.execute(query.order_by(c.period, c.user_id)).all()
    arrays = map(np.array, zip(*rows, strict=True)) if rows else [np.empty(0)] * len(columns)
    period, user, arm, model, *figures = arrays
    periods, period = np.unique(period.astype(np.int64), return_inverse=True)
    _, user = np.unique(user.astype(np.str_), return_inverse=True)
    return Visits(
        periods.tolist(), period.astype(np.int64), user.astype(np.int64), arm.astype(np.str_), model.astype(np.str_),
        *(column.astype(np.float64) for column in figures),
    )  # fmt: skip


def _value_lift(most: float | None) -> ColumnElement[float]:
    """The value that a decision's list caused: its purchases weighted by their value, up to ``most`` each."""
    table = tables.positives
    worth = table.c.value if most is None else case((table.c.value > most, most), else_=table.c.value)
    weight = case((table.c.treated == 1, 1.0), else_=-table.c.propensity / (1.0 - table.c.propensity))
    total = select(func.sum(worth * weight)).where(table.c.decision == tables.results.c.decision)
    return func.coalesce(cast(total.scalar_subquery(), Float), 0.0)


def arm_lift(visits: Visits, arm: str) -> ConfidenceSequence:
    """Purchases that an arm's lists caused, per visit."""
    return confidence(visits.means(arm, "lift"))


def against_holdout(visits: Visits, arm: str) -> ConfidenceSequence:
    """All purchases per visit of an arm minus those of the hold-out."""
    return confidence(visits.means(arm, "purchases") - visits.means("holdout", "purchases"))
