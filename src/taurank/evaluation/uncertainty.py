"""The interval of an estimate from a log: clusters, and the few heavy purchases that decide.

An estimate is a sum of rare events with unequal weights: purchases, divided by propensities. Where an item was shown
with P = 0.005 a single purchase counts 200 times, and most logs have none. The variance of what *was* bought, which
a bootstrap resamples, is then far too small. But all recommendations are in the log, bought or not, so that the
variance to expect is known: the sum of the squared weights of the treated rows times their purchase rate. The upper
limit uses it for the treated arm, and the lower one for the control arm where P is near 1.

Limits are quantiles of a gamma distribution with the estimate's mean, variance and skewness, as Hall corrects for it:
with the third moment μ₃ and the covariance γ of the estimate with its variance, the center moves by γ / 2σ² and the
third moment is 3γ − μ₃. A variance that was seen has γ = μ₃, which is Jeffreys' interval for a single Poisson count.
An expected one follows the purchases of all rows, not the few heavy ones, and has less (docs/estimates.md).

Users are clusters, and so are times: what is common to all users at a time (a holiday, a sale) does not average out
over users. Where times vary more than single rows do, that variance is added, and because a few times say little
about it, the limits use Student's quantile with Satterthwaite's degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, gammaincinv, ndtri, stdtrit

from taurank.evaluation.bootstrap import check_fraction
from taurank.evaluation.visits import Visits, contributions, mean_of

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

_PRIOR = 10.0  # events' worth of trust in the expected variance, beside the one seen between users
# Times are clusters of their own where chance alone would make them differ as much in fewer logs than this share. At
# 0.4 a 95 % interval covers 93 to 97 % whatever a time has in common, from three times on (docs/estimates.md); at a
# usual level such as 0.05 it would cover as little as 85 %.
TIMES_DIFFER = 0.4
_TILT = 0.5  # how much log rates may change with log weights: the spread of the prior
_BINS = 16  # of weights, for a factor of e
_MANY = 0.5  # propensities above it: the control arm is the rare one


class Events(NamedTuple):
    """The rows behind an estimate: what an outcome would count in them, and what there was.

    ``weight`` is the metric's weight over the denominator, per user and time, positive for treated rows and negative
    for control rows if the metric's weight is positive. Rows are those of the log, in order.
    """

    row: Longs
    weight: Floats
    outcome: Floats
    treated: npt.NDArray[np.bool_]
    propensity: Floats
    value: Floats  # what the row adds to the estimate, control variate included

    def minus(self, other: Events) -> Events:
        """The events of a difference: the same rows, weights subtracted."""
        row = np.union1d(self.row, other.row)
        columns = [np.zeros((len(row), 5)) for _ in range(2)]
        for events, column in zip((self, other), columns, strict=True):
            column[np.searchsorted(row, events.row)] = np.stack([*events[1:]], axis=1)
        first, second = columns
        same = np.where(np.isin(row, self.row)[:, None], first, second)
        weight, value = first[:, 0] - second[:, 0], first[:, 4] - second[:, 4]
        kept = (weight != 0) | (value != 0)
        events = Events(row, weight, same[:, 1], same[:, 2] == 1, same[:, 3], value)
        return Events(*(column[kept] for column in events))


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Of the mean of ``per_user`` over ``visits`` (None: each user counts alike): ``interval(level)``.

    ``per_time`` are the means at each time, ``unit`` is what one outcome counts at most without a propensity, per
    user and time, ``limits`` are what no effect can exceed.
    """

    per_user: Floats
    per_time: Floats
    events: Events
    unit: float
    limits: tuple[float, float] = (-np.inf, np.inf)
    visits: Visits | None = None

    @property
    def estimate(self) -> float:
        return mean_of(self.per_time, None if self.visits is None else self.visits.by_time)

    @cached_property
    def _user_parts(self) -> Floats:
        return contributions(self.per_user, None if self.visits is None else self.visits.by_user, self.estimate)

    @cached_property
    def _time_parts(self) -> Floats:
        return contributions(self.per_time, None if self.visits is None else self.visits.by_time, self.estimate)

    def minus(self, other: Uncertainty) -> Uncertainty:
        """Of the paired difference."""
        per_user, events = self.per_user - other.per_user, self.events.minus(other.events)
        same = not len(events.row) and not np.nan_to_num(per_user).any()  # the same lists
        width = 0.0 if same else 2.0 * max(self.limits[1], other.limits[1])
        unit = max(self.unit, other.unit)
        per_time = self.per_time - other.per_time
        return Uncertainty(per_user, per_time, events, unit, (-width, width), self.visits)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Lower and upper limit; the limits of what is possible where one arm was never seen or one user is alone."""
        check_fraction("level", level)
        if len(self._user_parts) < 2:
            return self.limits
        size = _size(self.events.weight, self._user_parts)
        scaled = self._divided(size)  # so that no power overflows
        low, high = (size * scaled._limit(level, side) for side in (-1.0, 1.0))
        if not self.events.treated.any():  # nothing on the list was ever shown
            low, high = low if (self.events.weight <= 0.0).all() else -np.inf, np.inf
        return max(low, self.limits[0]), min(high, self.limits[1])

    def _divided(self, size: float) -> Uncertainty:
        events = self.events._replace(weight=self.events.weight / size, value=self.events.value / size)
        means = self.per_user / size, self.per_time / size
        return Uncertainty(*means, events, self.unit / size, visits=self.visits)

    def _limit(self, level: float, side: float) -> float:
        """Below (side −1) or above (side 1) the estimate."""
        second, third, fourth, common = self._expected(side)
        seen, freedom = self._clustered
        if second <= 0.0 and seen <= 0.0:
            return self.estimate
        trust = second**2 / fourth if fourth > 0 else 0.0  # the effective number of events behind the variance
        variance = (trust * seen + _PRIOR * max(seen, second)) / (trust + _PRIOR)
        common = (trust * third + _PRIOR * common) / (trust + _PRIOR)  # that of the variance seen is the third moment
        scale = (variance / second) ** 1.5 if second > 0 else 0.0
        third, common = scale * third, scale * common
        center = self.estimate + side * max(side * common / (2.0 * variance), 0.0)
        return _quantile(center, variance, 3.0 * common - third, level, side, freedom)

    @cached_property
    def _clustered(self) -> tuple[float, float]:
        """The variance of the mean with users and times as clusters, and its degrees of freedom."""
        n, times = len(self._user_parts), len(self._time_parts)
        users = float(self._user_parts.var(ddof=1)) / n
        rows = float(np.sum(self.events.value**2))
        if times < 2 or rows <= 0.0:
            return users, n - 1.0
        return clustered_variance(users, n, float(self._time_parts.var(ddof=1)) / times, times, rows)

    def _expected(self, side: float) -> tuple[float, float, float, float]:
        """Second, third and fourth moment of the sum of events, and the covariance of the sum with the second.

        Rows whose outcome would move the estimate to this side count by their chance of one; rows that move it to
        the other side count by what was seen.
        """
        events = self.events
        treated, outward = events.treated, events.weight * side > 0
        chance = treated & outward
        moments = _moments(events.weight[~chance] * events.outcome[~chance])
        expected, common = expected_moments(events.weight[chance], events.outcome[chance])
        hidden, counted = _rare_controls(events, side)
        moments += hidden - counted
        if side < 0:  # half a purchase more in the control arm, which has no rows where nothing was bought
            moments += 0.5 * _moments(np.array([-self.unit * max(1.0, float(events.outcome.max(initial=0.0)))]))
        common += float(moments[1])
        moments += expected
        return float(moments[0]), float(moments[1]), float(moments[2]), common


def clustered_variance(
    users: float, n_users: int, between: float, n_times: int, rows: float, level: float = TIMES_DIFFER
) -> tuple[float, float]:
    """The variance of a mean and its degrees of freedom, from the variances that users, times and rows give it.

    Users and times cross, and each row is in one of both, so the variance is users + times − rows (Cameron, Gelbach
    and Miller, 2011). If a time has nothing in common, (T−1)·between / rows is χ² with T−1 degrees of freedom, and
    times are left out unless it is larger than chance alone makes it in a share of ``level`` of all logs. Degrees of
    freedom are Satterthwaite's.
    """
    if between / rows * (n_times - 1) <= chdtri(n_times - 1, level):
        return users, n_users - 1.0
    variance = users + max(between - rows, 0.0)
    freedom = variance**2 / (users**2 / (n_users - 1.0) + between**2 / (n_times - 1.0))
    return variance, max(freedom, min(n_users, n_times) - 1.0)  # fewer where users vary less than rows


def _size(*arrays: Floats) -> float:
    """A power of 2 no smaller than any value, so that dividing by it is exact."""
    largest = max(float(np.abs(array).max(initial=0.0)) for array in arrays)
    return float(2.0 ** np.frexp(largest)[1]) if largest > 0 else 1.0


def _moments(value: Floats) -> Floats:
    return np.array([np.sum(value**2), np.sum(value**3), np.sum(value**4)])


def expected_moments(weight: Floats, outcome: Floats) -> tuple[Floats, float]:
    """Expected moments of rows by their chance of an outcome, half a purchase added (Jeffreys).

    The chance may rise or fall with the weight. The second moment S = Σw²·rate follows the fitted rates, so that
    its covariance with the sum is ∇S · I⁻¹ · Σw·rate·x, x being the terms of the fit and I its information. For equal
    weights this is the third moment, as for any variance that was seen; for unequal ones it is less.
    """
    if not len(weight):
        return np.zeros(3), 0.0
    largest = max(1.0, float(outcome.max()))
    mean = [(np.sum(outcome**j) + 0.5 * largest**j) / (len(outcome) + 1.0) for j in (2, 3, 4)]
    size = np.log(np.abs(weight))
    bins = np.floor(_BINS * (size - size.min())).astype(np.int64)
    bins = (np.cumsum(np.bincount(bins) > 0) - 1)[bins]  # without empty ones
    rows, sold = (np.bincount(bins, each).astype(np.float64) for each in (None, outcome > 0))
    x = np.stack([np.ones(len(rows)), np.bincount(bins, size) / rows - size.mean()])
    tilt, information = _tilt(rows, sold, x)
    by_bin = np.stack([np.bincount(bins, weight**j) for j in (1, 2, 3, 4)]) * tilt
    slope = np.linalg.solve(information, x @ by_bin[0])
    return by_bin[1:].sum(axis=1) * np.array(mean), float((x @ by_bin[1]) @ slope) * mean[1]


def _tilt(rows: Floats, sold: Floats, x: Floats) -> tuple[Floats, Floats]:
    """How the rate of each bin compares with the common one, ∝ exp(b·x₁) with the mean 1, and the fit's information.

    b is the mode of a Poisson model with the prior N(0, _TILT²), by Newton's method.
    """
    total, b = float(sold.sum()), 0.0
    for _ in range(20):
        share = _shares(rows, b * x[1])
        center = float(share @ x[1])
        spread = total * (float(share @ x[1] ** 2) - center**2)
        step = (float(sold @ x[1]) - total * center - b / _TILT**2) / (spread + 1.0 / _TILT**2)
        b += float(np.clip(step, -1.0, 1.0))
        if abs(step) < 1e-9:
            break
    tilt = _shares(rows, b * x[1]) * rows.sum() / rows
    information = (x * (rows * tilt)) @ x.T
    information[1, 1] += rows.sum() / (total + 0.5) / _TILT**2
    return tilt, information


def _shares(rows: Floats, exponent: Floats) -> Floats:
    """rows · e^exponent, adding up to 1, without overflow."""
    share = rows * np.exp(exponent - exponent.max())
    return np.asarray(share / share.sum())


def _rare_controls(events: Events, side: float) -> tuple[Floats, Floats]:
    """Moments of control purchases where P > ½: expected ones, and the seen ones that they replace.

    A control row without a purchase is not in the log, but the treated rows say where it would be: each stands for
    (1−P)/P control cells with a weight of 1/(1−P).
    """
    nothing = np.zeros(3)
    rare = events.propensity > _MANY
    shown = rare & events.treated & (events.weight * side < 0) & (events.propensity < 1.0)
    if not shown.any():
        return nothing, nothing
    p = events.propensity[shown]
    cells, weight = (1.0 - p) / p, -events.weight[shown] * p / (1.0 - p)
    sold = rare & ~events.treated & (events.weight * side > 0)
    outcome = events.outcome[sold]
    largest = max(1.0, float(events.outcome.max(initial=0.0)))
    mean = [min((np.sum(outcome**j) + 0.5 * largest**j) / (cells.sum() + 1.0), largest**j) for j in (2, 3, 4)]
    expected = np.array([np.sum(cells * weight**j) for j in (2, 3, 4)]) * np.array(mean)
    return expected, _moments(events.weight[sold] * outcome)


def _quantile(center: float, variance: float, third: float, level: float, side: float, freedom: float) -> float:
    """A quantile of the shifted gamma distribution with these moments, its spread widened as Student's is."""
    tail = 0.5 + level / 2.0
    spread = np.sqrt(variance) * stdtrit(freedom, tail) / ndtri(tail)
    skewness = third / variance**1.5
    if abs(skewness) < 1e-4:
        return float(center + side * spread * ndtri(tail))
    shape = 4.0 / skewness**2
    outward = side * skewness > 0
    quantile: Any = gammaincinv(shape, tail if outward else 1.0 - tail)
    return float(center + spread * skewness / 2.0 * (quantile - shape))
