"""What a log says about one metric of one ranking: estimates, and how well the log supports them.

Here each row's weight is known, because an interval needs its square and cube, a paired interval the difference of
two rankings in the same row, and a verdict what the rows are like. Lists are summed for the cells without a row: how
much weight there is, and how much of the control variate c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from taurank._types import Floats, Longs, Mask
from taurank.data.log import Log
from taurank.estimation.estimators import Caps, Estimator, almost_always, almost_never, lacks_overlap, outcomes_of
from taurank.evaluation.events import Events, EventSums, power_of_two
from taurank.evaluation.intervals import Estimate, Visits
from taurank.evaluation.metrics import Metric
from taurank.evaluation.weights import ListSums

IPS, SNIPS = Estimator("IPS"), Estimator("SNIPS", normalized=True)
CAPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class Figures(NamedTuple):
    """Sums over the rows that a metric weighs; s is w·Z/P, w the weight of the row."""

    shown: float  # Σ s
    squared: float  # Σ s²
    shown_bought: float  # Σ s·Y
    squared_bought: float  # Σ s²·Y
    treated: float  # rows
    treated_bought: float  # rows
    extreme: float  # Σ |w| over pairs without overlap
    pairs: float  # Σ |w| over all pairs
    always_bought: float  # Σ w·Y over treated rows with P almost 1
    always: float  # Σ w over rows with P almost 1
    represented: float  # Σ s without rows with P almost 0

    @classmethod
    def of(cls, log: Log, rows: Longs, weight: Floats, shown: Floats) -> Figures:
        """``shown`` is s of each row."""
        treated, outcome = log.treated[rows] == 1, log.outcome[rows].astype(np.float64)
        propensity = log.recorded_propensity("the check of propensities")[rows]
        extreme, always = lacks_overlap(propensity), almost_always(propensity)
        with np.errstate(over="ignore"):
            squares = shown**2
        sold = outcome > 0
        return cls(
            float(shown.sum()), float(squares.sum()), float(np.sum(shown * outcome)),
            float(np.sum(squares[sold] * outcome[sold])), float(np.count_nonzero(treated)),
            float(np.count_nonzero(treated & (outcome != 0))), *pair_weights(log, rows, weight, extreme),
            float(np.sum((weight * outcome)[always & treated])), float(np.sum(weight[always])),
            float(np.sum(shown[~almost_never(propensity)])),
        )  # fmt: skip


def pair_weights(log: Log, rows: Longs, weight: Floats, extreme: Mask) -> tuple[float, float]:
    """Σ |w| over pairs with an extreme propensity at any time, and over all pairs (1 if none is extreme)."""
    if not extreme.any():
        return 0.0, 1.0
    pair = log.user[rows].astype(np.int64) * log.n_items + log.item[rows]
    pairs, first, number = np.unique(pair, return_index=True, return_inverse=True)
    without, weights = np.bincount(number, extreme, len(pairs)) > 0, np.abs(weight[first])
    return float(weights[without].sum()), float(weights.sum())


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a verdict is about: the estimate, other estimators, and how well the log supports them."""

    own: Estimate
    ips: Estimate
    snips: Estimate
    inside: Estimate  # by IPS, of the rows with overlap
    figures: Figures
    shown: Floats  # Σ s per user
    listed: Floats  # the weight of a user's lists
    n_users: int  # with a visit
    visits: int
    bought: float  # in the log

    @property
    def purchases(self) -> float:
        """The effective number of treated purchases: Kish's effective number of treated rows, times their rate."""
        figures = self.figures
        if figures.squared == 0.0 or not np.isfinite(figures.squared):  # nothing, or one row of an absurd weight
            return 0.0
        return figures.shown / figures.squared * figures.shown * (figures.treated_bought / figures.treated)

    @cached_property
    def exposure(self) -> tuple[float, float, float]:
        """How often the list was shown over how often the propensities say, and a 99.9% interval over users."""
        total, n = float(self.listed.sum()), self.n_users
        if total == 0.0 or n < 2:
            return np.nan, -np.inf, np.inf
        ratio = float(self.shown.sum()) / total
        deviation = self.shown - ratio * self.listed
        size = power_of_two(deviation)
        error = size * float(np.sqrt(n / (n - 1.0) * np.sum((deviation / size) ** 2))) / total
        width = float(stdtrit(n - 1, 0.9995)) * error
        return ratio, ratio - width, ratio + width

    @property
    def overlap_share(self) -> float:
        """The share of the weight on logged pairs that falls on pairs with a propensity within 0.001 of 0 or 1."""
        return self.figures.extreme / self.figures.pairs if self.figures.extreme > 0 else 0.0

    @property
    def own_purchases(self) -> float:
        """What all purchases of the log would count if the metric gave each its largest weight, per user and time."""
        return self.own.unit * self.bought

    def worst_case(self, level: float = 0.95) -> tuple[float, float]:
        """The interval of IPS where there is overlap, and the worst possible elsewhere, per user and time.

        Where a recommendation is never withheld, Y^C is unknown and τ lies in [Y^T − 1, Y^T]. Where it is never
        made, τ ≤ 1; how much of the list that is follows from what the treated rows with overlap represent, Σ w·Z/P.
        """
        most, n = self.own.limits[1], max(self.visits, 1)
        if not np.isfinite(most):
            return -np.inf, np.inf
        low, high = self.inside.interval(level)
        bought, shown = self.figures.always_bought / n, self.figures.always / n
        never = max(most - self.figures.represented / n, 0.0)
        return max(low + bought - shown, -most), min(high + bought + never, most)


@dataclass(frozen=True, eq=False)
class WeighedRows:
    """One metric of one ranking on a log: the rows with a weight, and its sums over lists.

    ``listed`` is the weight of a user's list, ``variate`` that sum weighted by c; None if the estimator has no c.
    ``largest`` is the largest weight of any rank. ``users`` limits what is estimated to some users.
    """

    metric: Metric
    log: Log
    rows: Longs
    weight: Floats
    listed: ListSums
    variate: ListSums | None
    largest: float
    users: Mask | None = None

    def of_users(self, users: Mask) -> WeighedRows:
        here = users[self.log.user[self.rows]]
        return replace(self, rows=self.rows[here], weight=self.weight[here], users=users)

    @cached_property
    def visits(self) -> Visits:
        return Visits.of(self.log.eligibility, self.users)

    @cached_property
    def _per(self) -> int:
        return max(self.visits.total, 1)

    @cached_property
    def listed_sums(self) -> tuple[Floats, Floats]:
        return self.listed.sums(self.users)

    @cached_property
    def shown(self) -> Floats:
        """w·Z/P of each row."""
        treated = self.log.treated[self.rows] == 1
        return np.where(treated, self.weight * IPS.weights(self.log, self.rows), 0.0)

    def evidence(self, own: Estimator) -> Evidence:
        """The estimate by ``own`` and all that a verdict asks for."""
        log, rows = self.log, self.rows
        ips = self.estimate(IPS)
        extreme = lacks_overlap(log.recorded_propensity("overlap")[rows])
        inside = ips
        if extreme.any():
            inside = replace(self, rows=rows[~extreme], weight=self.weight[~extreme]).estimate(IPS)
        shown: Floats = np.bincount(log.user[rows], self.shown, minlength=log.n_users).astype(np.float64)
        outcome, own_rows = outcomes_of(log), slice(None) if self.users is None else self.users[log.user]
        seen = slice(None) if self.users is None else self.users
        return Evidence(
            self.estimate(own), ips, self.estimate(SNIPS), inside, Figures.of(log, rows, self.weight, self.shown),
            shown[seen], self.listed_sums[0][seen], self.visits.n_users, self.visits.total,
            float(outcome[own_rows].sum()),
        )  # fmt: skip

    def means(self, estimator: Estimator) -> tuple[Floats, Floats]:
        """The estimate of each user and of each time."""
        return self._means(*self._events(estimator))

    def estimate(self, estimator: Estimator) -> Estimate:
        """The estimate of the metric."""
        events, dense = self._events(estimator)
        (per_user, per_time), visits = self._means(events, dense), self.visits
        if self.users is not None:
            per_user, visits = per_user[self.users], replace(visits, by_user=visits.by_user[self.users])
        sums = EventSums.of(events) if estimator.caps != IPS.caps else self._sums.with_values(events.value)
        return Estimate(per_user, per_time, sums, self.largest / self._per, self.limits, visits)

    def _means(self, events: Events, dense: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        log, rows, value = self.log, self.rows, events.value * self._per
        per_user = np.bincount(log.user[rows], value, minlength=log.n_users) + dense[0]
        per_time = np.bincount(log.time[rows], value, minlength=log.n_times) + dense[1]
        return self.visits.per_user(per_user), self.visits.per_time(per_time)

    @cached_property
    def _sums(self) -> EventSums:
        """Those of the estimators without caps, which differ in their values only."""
        return EventSums.of(self._events(IPS)[0])

    def _events(self, estimator: Estimator) -> tuple[Events, tuple[Floats, Floats]]:
        """The rows of an estimate, and what the cells without a row add per user and per time.

        SNIPS divides the treated arm by its own weights, Σ w·Z·Y/P · Σw / Σ(w·Z/P), and is c = Σ w·Z·Y/P / Σ w·Z/P
        everywhere: then it has the form of the doubly robust estimate, and the spread between users is that of a
        ratio.
        """
        log, rows, n = self.log, self.rows, self._per
        counts, outcome = self.weight * estimator.weights(log, rows), outcomes_of(log, rows)
        value = self.weight * estimator.values(log, rows)
        dense = np.zeros(log.n_users), np.zeros(log.n_times)
        if estimator.normalized:
            total = float(self.shown.sum())
            mean = float(np.sum(self.shown * outcome)) / total if total > 0 else 0.0
            value, dense = value - mean * self.shown, (mean * self.listed_sums[0], mean * self.listed_sums[1])
        elif estimator.variate is not None and self.variate is not None:
            dense = self.variate.sums(self.users)
        propensity = log.recorded_propensity(estimator.name)[rows]
        return Events(rows, counts / n, outcome, log.treated[rows] == 1, propensity, value / n), dense

    @cached_property
    def limits(self) -> tuple[float, float]:
        """No list has more effect than its weight, if an outcome is 0 or 1."""
        most = float(self.listed_sums[0].sum()) / self._per
        return list_limits(self.metric, self.log.n_items, np.inf if self.log.value is not None else most)

    def minus(self, other: WeighedRows, estimator: Estimator, own: Estimate, others: Estimate) -> Estimate:
        """The paired difference of two estimates by ``estimator``."""
        return own.minus(others, EventSums.of(self._events(estimator)[0].minus(other._events(estimator)[0])))

    def by_caps(self, own: Estimator) -> Iterator[tuple[Estimator, Estimate]]:
        """The estimate with each cap that changes anything."""
        propensity = self.log.recorded_propensity("estimate")
        smallest = float(np.minimum(propensity, 1.0 - propensity).min(initial=1.0))
        for cap in CAPS:
            if cap > smallest:
                capped = Estimator(f"{own.name}, cap {cap:g}", Caps(cap, cap), own.variate)
                yield capped, self.estimate(capped)


def list_limits(metric: Metric, n_items: int, most: float) -> tuple[float, float]:
    """What no effect can exceed, if a list has the weight ``most``."""
    return (-np.inf, np.inf) if (metric.unscaled(n_items) < 0).any() else (-most, most)


def slope(estimates: list[Estimate], level: float) -> int:
    """SLOPE (Su, Srinath and Krishnamurthy, 2020): the largest cap that agrees with all smaller ones.

    Estimates are in order of falling variance and growing bias. The choice is the last one such that every one up to
    it is within cnf_i + (√6 − 1)·cnf_j of all j before, cnf being half the width of an interval.
    """
    halves = [(high - low) / 2.0 for low, high in (one.interval(level) for one in estimates)]
    chosen = 0
    for i in range(1, len(estimates)):
        gaps = [abs(estimates[i].mean - estimates[j].mean) for j in range(i)]
        if any(gap > halves[i] + (np.sqrt(6.0) - 1.0) * halves[j] for j, gap in enumerate(gaps)):
            break
        chosen = i
    return chosen
