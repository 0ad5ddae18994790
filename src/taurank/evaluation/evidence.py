"""What a log has to say about one metric of one ranking: estimates with intervals, and how well they are founded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from taurank.estimation.estimators import Caps, Estimator, almost_always, almost_never, lacks_overlap
from taurank.estimation.variate import outcomes_of
from taurank.evaluation.events import Events
from taurank.evaluation.metrics import Metric
from taurank.evaluation.reach import Reach
from taurank.evaluation.uncertainty import Uncertainty
from taurank.evaluation.visits import Visits

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def apply(estimator: Estimator, reach: Reach, users: Mask | None = None) -> Uncertainty:
    """The estimate of a metric, for all users or some of them."""
    log, (rows, weight) = reach.log, _within(reach, users)
    visits = Visits.of(log.catalog, log.eligibility, users)
    n = max(visits.total, 1)
    counts = weight * estimator.weights(log, rows)
    value, treated = weight * estimator.values(log, rows), log.treated[rows] == 1
    outcome = outcomes_of(log, rows)
    dense = np.zeros(log.n_users), np.zeros(log.n_times)
    if estimator.normalized:
        value, dense = _normalized(value, counts, outcome, treated, reach.listed.sums(users))
    elif estimator.variate is not None and reach.variate is not None:
        dense = reach.variate.sums(users)
    per_user = visits.per_user(np.bincount(log.user[rows], value, minlength=log.n_users) + dense[0])
    per_time = visits.per_time(np.bincount(log.time[rows], value, minlength=log.n_times) + dense[1])
    events = Events(rows, counts / n, outcome, treated, log.recorded_propensity(estimator.name)[rows], value / n)
    if users is not None:
        per_user, visits = per_user[users], replace(visits, by_user=visits.by_user[users])
    return Uncertainty(per_user, per_time, events, reach.largest / n, _limits(reach, users, n), visits)


def _within(reach: Reach, users: Mask | None) -> tuple[npt.NDArray[np.int64], Floats]:
    if users is None:
        return reach.rows, reach.weight
    here = users[reach.log.user[reach.rows]]
    return reach.rows[here], reach.weight[here]


def _normalized(
    value: Floats, counts: Floats, outcome: Floats, treated: Mask, listed: tuple[Floats, Floats]
) -> tuple[Floats, tuple[Floats, Floats]]:
    """SNIPS as a control variate: c is the weighted mean outcome of the treated rows, everywhere.

    Σ w·Z·(Y − c)/P vanishes for this c, so the treated arm is c · (Σ w of the list), its weighted mean scaled up. As
    rows it has the same form as the doubly robust estimate, so that the spread between users is that of a ratio.
    """
    shown = np.where(treated, counts, 0.0)
    total = float(shown.sum())
    mean = float(np.sum(shown * outcome)) / total if total > 0 else 0.0
    return value - mean * shown, (mean * listed[0], mean * listed[1])


def _limits(reach: Reach, users: Mask | None, n: int) -> tuple[float, float]:
    if reach.log.value is not None:
        return -np.inf, np.inf
    return list_limits(reach.formula, reach.log.n_items, float(reach.listed.sums(users)[0].sum()) / n)


def list_limits(formula: Metric, n_items: int, most: float) -> tuple[float, float]:
    """No list has more effect than its weight (``most``), if an outcome is 0 or 1."""
    return (-np.inf, np.inf) if (formula.unscaled(n_items) < 0).any() else (-most, most)


@dataclass(frozen=True, eq=False)
class Evidence:
    """How well the log founds estimates of one metric of one ranking, for all users or some of them."""

    reach: Reach
    users: Mask | None = None

    @cached_property
    def _visits(self) -> Visits:
        return Visits.of(self.reach.log.catalog, self.reach.log.eligibility, self.users)

    @property
    def n_users(self) -> int:
        return self._visits.n_users

    @cached_property
    def _rows(self) -> tuple[npt.NDArray[np.int64], Floats]:
        return _within(self.reach, self.users)

    @cached_property
    def _treated(self) -> tuple[npt.NDArray[np.int64], Floats]:
        """The treated rows and their weights divided by P."""
        rows, weight = self._rows
        shown = self.reach.log.treated[rows] == 1
        rows, weight = rows[shown], weight[shown]
        return rows, weight * Estimator("the check of propensities").weights(self.reach.log, rows)

    @cached_property
    def purchases(self) -> float:
        """The effective number of treated purchases: Kish's effective number of treated rows, times their rate."""
        rows, weight = self._treated
        bought = float(np.count_nonzero(self.reach.log.outcome[rows]))
        return effective_purchases(float(weight.sum()), float(np.sum(weight**2)), bought, len(rows))

    @cached_property
    def exposure(self) -> tuple[float, float, float]:
        """Σ w·Z/P over Σ w, 1 on average if the propensities are right, and its 99.9 % interval over users."""
        rows, weight = self._treated
        log = self.reach.log
        listed = self.reach.listed.sums(self.users)[0]
        shown = np.asarray(np.bincount(log.user[rows], weight, minlength=log.n_users), np.float64)
        if self.users is not None:
            shown, listed = shown[self.users], listed[self.users]
        return exposure_of(shown, listed, self.n_users)

    @cached_property
    def overlap_share(self) -> float:
        """The share of the weight on logged pairs that falls on pairs with a propensity within 0.001 of 0 or 1."""
        rows, weight = self._rows
        log = self.reach.log
        extreme = lacks_overlap(log.recorded_propensity("overlap")[rows])
        if not extreme.any():
            return 0.0
        pair = log.user[rows].astype(np.int64) * log.n_items + log.item[rows]
        pairs, first, number = np.unique(pair, return_index=True, return_inverse=True)
        without = np.zeros(len(pairs), bool)
        np.logical_or.at(without, number, extreme)
        weights = np.abs(weight[first])
        return float(weights[without].sum() / weights.sum())

    @cached_property
    def own_purchases(self) -> float:
        """What all purchases of the log would count if the metric gave each its largest weight, per user and time."""
        log = self.reach.log
        outcome = outcomes_of(log)
        total = float(outcome.sum()) if self.users is None else float(outcome[self.users[log.user]].sum())
        return self.reach.largest * total / max(self._visits.total, 1)

    def worst_case(self, level: float = 0.95) -> tuple[float, float]:
        """All that is certain where overlap fails; see ``worst_limits``."""
        log, (rows, weight) = self.reach.log, self._rows
        n = max(self._visits.total, 1)
        most = _limits(self.reach, self.users, n)[1]
        if not np.isfinite(most):
            return -np.inf, np.inf
        propensity, treated = log.recorded_propensity("worst-case bounds")[rows], log.treated[rows] == 1
        always, seen = almost_always(propensity), ~lacks_overlap(propensity)
        inside = replace(self.reach, rows=rows[seen], weight=weight[seen])
        low, high = apply(Estimator("IPS"), inside, self.users).interval(level)
        bought, shown = float(np.sum((weight * log.outcome[rows])[always & treated])), float(weight[always].sum())
        stood_for = float(np.sum((weight / propensity)[treated & ~almost_never(propensity)]))
        return worst_limits((low, high), most, bought / n, shown / n, stood_for / n)


def effective_purchases(total: float, squares: float, bought: float, rows: float) -> float:
    """Kish's effective number of treated rows, (Σw)² / Σw², times their rate of purchases."""
    return 0.0 if squares == 0.0 else total**2 / squares * (bought / rows)


def exposure_of(shown: Floats, listed: Floats, n_users: int) -> tuple[float, float, float]:
    """Σ shown / Σ listed, and its 99.9 % interval over users."""
    total = float(listed.sum())
    if total == 0.0 or n_users < 2:
        return np.nan, -np.inf, np.inf
    ratio = float(shown.sum()) / total
    deviation = shown - ratio * listed
    error = np.sqrt(n_users / (n_users - 1.0) * float(np.sum(deviation**2))) / total
    width = float(stdtrit(n_users - 1, 0.9995)) * float(error)
    return ratio, ratio - width, ratio + width


def worst_limits(
    inside: tuple[float, float], most: float, bought: float, shown: float, stood_for: float
) -> tuple[float, float]:
    """The interval of IPS where there is overlap (``inside``), and the worst possible elsewhere, per user and time.

    Where a recommendation is never withheld, Y^C is unknown and τ lies in [Y^T − 1, Y^T]. Where it is never made,
    τ ≤ 1; how much of the list that is follows from what the treated rows with overlap stand for, Σ w·Z/P.
    """
    low, high = inside
    return max(low + bought - shown, -most), min(high + bought + max(most - stood_for, 0.0), most)


CAPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def opinions(recommended: Estimator, smallest: float) -> list[Estimator]:
    """The estimators beside the recommended one: those without its c, and those with a cap that changes anything."""
    capped = [
        Estimator(f"{recommended.name}, cap {cap:g}", Caps(cap, cap), recommended.variate)
        for cap in CAPS
        if cap > smallest
    ]
    return [Estimator("SNIPS", normalized=True), Estimator("IPS"), *capped]


def slope(estimates: list[Uncertainty], level: float) -> int:
    """SLOPE (Su, Srinath and Krishnamurthy, 2020): the largest cap that agrees with all smaller ones.

    Estimates are in order of falling variance and growing bias. The choice is the last one such that every one up to
    it is within cnf_i + (√6 − 1)·cnf_j of all j before, cnf being half the width of an interval.
    """
    halves = [(high - low) / 2.0 for low, high in (one.interval(level) for one in estimates)]
    chosen = 0
    for i in range(1, len(estimates)):
        gaps = [abs(estimates[i].estimate - estimates[j].estimate) for j in range(i)]
        if any(gap > halves[i] + (np.sqrt(6.0) - 1.0) * halves[j] for j, gap in enumerate(gaps)):
            break
        chosen = i
    return chosen
