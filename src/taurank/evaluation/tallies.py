"""Estimates and their evidence from sums over groups of users, where no process holds the rows of all of them.

``Tally`` is what one group adds, ``TalliedEvidence`` what ``Evidence`` is on one machine. Groups are added up in
their order, so that the numbers depend on the groups, never on who counted them; they agree with those of one machine
but for the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.data.eligibility import Eligibility
from taurank.data.ids import Catalog, Codes
from taurank.data.log import Log
from taurank.estimation.estimators import Estimator, almost_always, almost_never, lacks_overlap
from taurank.evaluation.events import Events, EventSums
from taurank.evaluation.evidence import effective_purchases, exposure_of, list_limits, worst_limits
from taurank.evaluation.metrics import Metric
from taurank.evaluation.uncertainty import Uncertainty
from taurank.evaluation.visits import Visits

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

IPS, SNIPS = Estimator("IPS"), Estimator("SNIPS", normalized=True)


class Sums(NamedTuple):
    """Sums per user and per time, and over the events of an estimate."""

    per_user: Floats
    per_time: Floats
    events: EventSums


class Figures(NamedTuple):
    """Sums over the rows within a metric's reach; s is w·Z/P, w the weight of the row."""

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
    stood_for: float  # Σ s without rows with P almost 0


class Tally(NamedTuple):
    """What the rows of some users say about one metric of one ranking."""

    own: Sums  # by the estimator of the gains
    plain: Sums  # by IPS
    inside: Sums | None  # by IPS, of the rows with overlap; None if all have it
    shown: tuple[Floats, Floats]  # Σ s per user and per time
    figures: Figures


def tally(log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int) -> Tally:
    """Count a group's rows within the reach of a metric; ``n`` is the number of users and times of the whole log."""
    treated, outcome = log.treated[rows] == 1, log.outcome[rows].astype(np.float64)
    propensity = log.recorded_propensity("the check of propensities")[rows]
    shown = np.where(treated, weight * IPS.weights(log, rows), 0.0)
    extreme, always = lacks_overlap(propensity), almost_always(propensity)
    without, pairs = _pair_weights(log, rows, weight, extreme)
    figures = Figures(
        shown=float(np.sum(shown)),
        squared=float(np.sum(shown**2)),
        shown_bought=float(np.sum(shown * outcome)),
        squared_bought=float(np.sum(shown**2 * outcome)),
        treated=float(np.count_nonzero(treated)),
        treated_bought=float(np.count_nonzero(treated & (outcome != 0))),
        extreme=without,
        pairs=pairs,
        always_bought=float(np.sum((weight * outcome)[always & treated])),
        always=float(np.sum(weight[always])),
        stood_for=float(np.sum((weight / propensity)[treated & ~almost_never(propensity)])),
    )
    inside = _sums(log, rows[~extreme], weight[~extreme], IPS, n) if extreme.any() else None
    own, plain = (_sums(log, rows, weight, one, n) for one in (estimator, IPS))
    return Tally(own, plain, inside, _by_user_and_time(log, rows, shown), figures)


def events_of(log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int) -> Events:
    """The events of an estimate without a control variate."""
    counts, outcome = weight * estimator.weights(log, rows), log.outcome[rows].astype(np.float64)
    propensity = log.recorded_propensity(estimator.name)[rows]
    return Events(rows, counts / n, outcome, log.treated[rows] == 1, propensity, counts * outcome / n)


def _sums(log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int) -> Sums:
    events = events_of(log, rows, weight, estimator, n)
    return Sums(*_by_user_and_time(log, rows, events.value * n), EventSums.of(events))


def _by_user_and_time(log: Log, rows: Longs, value: Floats) -> tuple[Floats, Floats]:
    per_user: Any = np.bincount(log.user[rows], value, log.n_users)
    per_time: Any = np.bincount(log.time[rows], value, log.n_times)
    return per_user, per_time


def _pair_weights(log: Log, rows: Longs, weight: Floats, extreme: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Σ |w| over pairs with an extreme propensity at any time, and over all pairs."""
    pair = log.user[rows].astype(np.int64) * log.n_items + log.item[rows]
    pairs, first, number = np.unique(pair, return_index=True, return_inverse=True)
    without = np.zeros(len(pairs), bool)
    np.logical_or.at(without, number, extreme)
    weights = np.abs(weight[first])
    return float(weights[without].sum()), float(weights.sum())


def added(parts: Sequence[tuple[Codes, Tally]], catalog: Catalog) -> Tally:
    """The tally of all users from those of groups, each with the positions of its users."""
    users, tallies = [codes for codes, _ in parts], [one for _, one in parts]
    whole = catalog.n_users
    inside = None
    if any(one.inside is not None for one in tallies):
        inside = _added(users, [one.inside or one.plain for one in tallies], whole)
    shown = _spread(users, [one.shown[0] for one in tallies], whole), _total([one.shown[1] for one in tallies])
    figures = Figures(*(float(np.sum(column)) for column in zip(*(one.figures for one in tallies), strict=True)))
    own, plain = (_added(users, [getattr(one, name) for one in tallies], whole) for name in ("own", "plain"))
    return Tally(own, plain, inside, shown, figures)


def _added(users: list[Codes], parts: list[Sums], n_users: int) -> Sums:
    per_user = _spread(users, [one.per_user for one in parts], n_users)
    return Sums(per_user, _total([one.per_time for one in parts]), EventSums.added([one.events for one in parts]))


def _spread(users: list[Codes], parts: list[Floats], n_users: int) -> Floats:
    whole = np.zeros(n_users)
    for codes, part in zip(users, parts, strict=True):
        whole[codes] = part
    return whole


def _total(parts: list[Floats]) -> Floats:
    return np.asarray(np.sum(parts, axis=0))


@dataclass(frozen=True, eq=False)
class TalliedEvidence:
    """``Evidence`` and estimates of one metric of one ranking; every user counts at every time."""

    tally: Tally
    formula: Metric
    catalog: Catalog
    bought: float  # purchases in the log

    @property
    def n_users(self) -> int:
        return self.catalog.n_users

    @cached_property
    def n(self) -> int:
        return max(self.catalog.n_users * self.catalog.n_times, 1)

    @cached_property
    def listed(self) -> float:
        """The weight of a list: that of all ranks, whatever the ranking is."""
        return float(self._weights.sum())

    @cached_property
    def _weights(self) -> Floats:
        n_items = self.catalog.n_items
        return np.asarray(self.formula.unscaled(n_items) * self.formula.factor(n_items))

    @property
    def limits(self) -> tuple[float, float]:
        return list_limits(self.formula, self.catalog.n_items, self.listed)

    def answer(self, estimator: Estimator | None = None) -> Uncertainty:
        """The estimate by the estimator of the gains, or by IPS or SNIPS."""
        if estimator is None:
            return self._of(self.tally.own)
        return self._of(self._normalized() if estimator.normalized else self.tally.plain)

    def _normalized(self) -> Sums:
        """SNIPS: c is the weighted mean outcome of the treated rows, everywhere; see ``evidence``."""
        sums, figures, (by_user, by_time) = self.tally.plain, self.tally.figures, self.tally.shown
        mean = figures.shown_bought / figures.shown if figures.shown > 0 else 0.0
        size = self.n * sums.events.size
        squares = sums.events.squares + (mean**2 * figures.squared - 2.0 * mean * figures.squared_bought) / size**2
        per_user = sums.per_user + mean * (self.listed * self.catalog.n_times - by_user)
        per_time = sums.per_time + mean * (self.listed * self.catalog.n_users - by_time)
        return Sums(per_user, per_time, sums.events._replace(squares=max(squares, 0.0)))

    def _of(self, sums: Sums) -> Uncertainty:
        visits = Visits.of(self.catalog, Eligibility.everything(self.catalog))
        means = visits.per_user(sums.per_user), visits.per_time(sums.per_time)
        unit = float(np.abs(self._weights).max()) / self.n
        return Uncertainty(*means, sums.events, unit, self.limits, visits)

    @property
    def purchases(self) -> float:
        figures = self.tally.figures
        return effective_purchases(figures.shown, figures.squared, figures.treated_bought, figures.treated)

    @cached_property
    def exposure(self) -> tuple[float, float, float]:
        listed = np.full(self.n_users, self.listed * self.catalog.n_times)
        return exposure_of(self.tally.shown[0], listed, self.n_users)

    @property
    def overlap_share(self) -> float:
        figures = self.tally.figures
        return figures.extreme / figures.pairs if figures.extreme > 0 else 0.0

    @property
    def own_purchases(self) -> float:
        return float(np.abs(self._weights).max()) * self.bought / self.n

    def worst_case(self, level: float = 0.95) -> tuple[float, float]:
        figures, most = self.tally.figures, self.limits[1]
        if not np.isfinite(most):
            return -np.inf, np.inf
        inside = self._of(self.tally.inside or self.tally.plain).interval(level)
        per = (figures.always_bought / self.n, figures.always / self.n, figures.stood_for / self.n)
        return worst_limits(inside, most, *per)
