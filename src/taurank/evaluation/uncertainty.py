"""The interval of an estimate from a log: clusters, and the few heavy purchases that decide.

An estimate is a sum of rare events with unequal weights: purchases, divided by propensities. Where an item was shown
with P = 0.005 a single purchase counts 200 times, and most logs have none. The variance of what *was* bought, which
a bootstrap resamples, is then far too small. But all recommendations are in the log, bought or not, so that the
variance to expect is known: the sum of the squared weights of the treated rows times their purchase rate. The upper
limit uses it for the treated arm, and the lower one for the control arm where P is near 1.

Limits are quantiles of a gamma distribution with the estimate's mean, variance and (twice) its third moment, which
is Jeffreys' interval for a single Poisson count and agrees with Hall's correction for skewness for many events
(docs/estimates.md). Users are clusters, and so are times: what is common to all users at a time (a holiday, a sale)
does not average out over users, and a few times say little about its size. So where times vary more than single rows
do, that size is not estimated but integrated out, with a half-Cauchy prior, as for the spread between few studies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import chdtri, gammaincinv, ndtr, ndtri, stdtrit

from taurank.errors import InputError
from taurank.evaluation.bootstrap import check_fraction
from taurank.evaluation.events import Events, EventSums, power_of_two
from taurank.evaluation.visits import Visits, contributions, mean_of

Floats = npt.NDArray[np.float64]

_PRIOR = 10.0  # events' worth of trust in the expected variance, beside the one seen between users
_TIMES_DIFFER = 0.5  # times are clusters of their own if they vary more than rows do, at this level
_SHOCK = 2.0  # median a priori of the spread between times, in units of that of rows
_SHOCKS = (_SHOCK * np.tan(np.pi / 2.0 * (np.arange(100) + 0.5) / 100.0)) ** 2  # equally likely a priori


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Of the mean of ``per_user`` over ``visits`` (None: each user counts alike): ``interval(level)``.

    ``per_time`` are the means at each time, ``unit`` is what one outcome counts at most without a propensity, per
    user and time, ``limits`` are what no effect can exceed.
    """

    per_user: Floats
    per_time: Floats
    events: Events | EventSums
    unit: float
    limits: tuple[float, float] = (-np.inf, np.inf)
    visits: Visits | None = None

    @property
    def estimate(self) -> float:
        return mean_of(self.per_time, None if self.visits is None else self.visits.by_time)

    @cached_property
    def sums(self) -> EventSums:
        return EventSums.of(self.events) if isinstance(self.events, Events) else self.events

    @cached_property
    def _user_parts(self) -> Floats:
        return contributions(self.per_user, None if self.visits is None else self.visits.by_user, self.estimate)

    @cached_property
    def _time_parts(self) -> Floats:
        return contributions(self.per_time, None if self.visits is None else self.visits.by_time, self.estimate)

    def minus(self, other: Uncertainty) -> Uncertainty:
        """Of the paired difference."""
        if not isinstance(self.events, Events) or not isinstance(other.events, Events):
            raise InputError("a paired difference needs the rows of both estimates, and their sums alone are known.")
        return self.difference(other, self.events.minus(other.events))

    def difference(self, other: Uncertainty, events: Events | EventSums) -> Uncertainty:
        """Of the paired difference, whose events are known."""
        per_user = self.per_user - other.per_user
        n_rows = len(events.row) if isinstance(events, Events) else events.rows
        same = not n_rows and not np.nan_to_num(per_user).any()  # the same lists
        width = 0.0 if same else 2.0 * max(self.limits[1], other.limits[1])
        unit = max(self.unit, other.unit)
        per_time = self.per_time - other.per_time
        return Uncertainty(per_user, per_time, events, unit, (-width, width), self.visits)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Lower and upper limit; the limits of what is possible where one arm was never seen or one user is alone."""
        check_fraction("level", level)
        if len(self._user_parts) < 2:
            return self.limits
        size = max(self.sums.size, power_of_two(self._user_parts))
        scaled = self._divided(size)  # so that no power overflows
        low, high = (size * scaled._limit(level, side) for side in (-1.0, 1.0))
        if not self.sums.treated:  # nothing on the list was ever shown
            low, high = -np.inf if self.sums.positive else low, np.inf
        return max(low, self.limits[0]), min(high, self.limits[1])

    def _divided(self, size: float) -> Uncertainty:
        means = self.per_user / size, self.per_time / size
        return Uncertainty(*means, self.sums.at(size), self.unit / size, visits=self.visits)

    def _limit(self, level: float, side: float) -> float:
        """Below (side −1) or above (side 1) the estimate."""
        second, third, fourth = self.sums.expected(side, self.unit)
        seen, freedom = self._clustered(level), len(self._user_parts) - 1.0
        if second <= 0.0 and seen <= 0.0:
            return self.estimate
        trust = second**2 / fourth if fourth > 0 else 0.0  # the effective number of events behind the variance
        variance = (trust * seen + _PRIOR * max(seen, second)) / (trust + _PRIOR)
        third *= (variance / second) ** 1.5 if second > 0 else 0.0
        center = self.estimate + side * max(side * third / (2.0 * variance), 0.0)
        return _quantile(center, variance, 2.0 * third, level, side, freedom)

    def _clustered(self, level: float) -> float:
        """The variance of the mean with users and times as clusters, as a limit at this level needs it."""
        n, times = len(self._user_parts), len(self._time_parts)
        users = float(self._user_parts.var(ddof=1)) / n
        rows = self.sums.squares
        if times < 2 or rows <= 0.0:
            return users
        between = float(self._time_parts.var(ddof=1)) / times
        if between / rows * (times - 1) <= chdtri(times - 1, _TIMES_DIFFER):
            return users
        return _with_shocks(users, between, rows, times, 0.5 + level / 2.0)


def _with_shocks(users: float, between: float, rows: float, times: int, tail: float) -> float:
    """The variance of a normal distribution with the upper quantile of the mean's posterior.

    A shock has λ times the variance of the rows. Given λ, (T−1)·between / (rows·(1+λ)) is χ² with T−1 degrees of
    freedom, and the mean is normal with the variance users + λ·rows; √λ is half-Cauchy a priori.
    """
    log_likelihood = -0.5 * (times - 1.0) * (np.log1p(_SHOCKS) + between / (rows * (1.0 + _SHOCKS)))
    posterior = np.exp(log_likelihood - log_likelihood.max())
    spread = np.sqrt(users + _SHOCKS * rows)
    z = float(ndtri(tail))

    def excess(quantile: float) -> float:
        return float(posterior @ (ndtr(quantile / spread) - tail))

    return float(brentq(excess, z * float(spread[0]), z * float(spread[-1])) / z) ** 2


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
